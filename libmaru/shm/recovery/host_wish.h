// A host that has too few regions asks another host for one. Any host may take a region that no lane rents any more. The words
// are HostRecord::wanted and the region word; docs/format.md, "A host asks for a region", has the steps and the state after a
// death at each step.
//
// Thread safety: any marud of any host. Progress: every step is one CAS. No host waits for an answer, so a wish may be lost
// with either host.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstdint>

namespace maru::shm {

struct HostWish {
  uint64_t bits = 0;

  static constexpr HostWish of(uint32_t host, uint32_t generation) {
    return {uint64_t(generation) << 32 | uint64_t(host + 1)};
  }
  constexpr bool is_none() const { return bits == 0; }
  // May be no host at all: the word comes from shared memory.
  constexpr uint32_t host() const { return uint32_t(bits & 0xFF) - 1; }
  constexpr uint32_t generation() const { return uint32_t(bits >> 32); }
};

// Asks `rich`, in the name of `self` in its life `generation`. False: it has a wish to answer already.
bool ask_for_region(const ControlRegion& region, uint32_t rich, uint32_t self, uint32_t generation);
HostWish read_wish(const ControlRegion& region, uint32_t host);
// Whether the asking host is LIVE, in the life in which it asked. No other host gets a region.
bool is_asker_live(const ControlRegion& region, HostWish wish);
// It was answered, one way or the other. A wish that came meanwhile stays.
void end_wish(const ControlRegion& region, uint32_t host, HostWish wish);

// UNUSED -> RENTED{owner} for a host, from the word that says so. False: it is not UNUSED, or another host was faster.
// ret_generation: of the region's word now.
bool rent_unused_region(const ControlRegion& region, uint32_t index, LaneId owner, uint32_t host,
                        uint32_t* ret_generation);

}  // namespace maru::shm
