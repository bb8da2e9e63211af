// The words of a region that changes hands. Renting says which client should allocate in a region. Only the page words say
// which pages may be taken, so a client that does not know yet that it has lost a region does no harm.
//
// Writers: marud alone writes region words and moves pages between OUT and FREE; clients read the word. docs/format.md,
// "Regions change hands" and "A region is taken from its owner", has the steps, and the state after a death at each step.
#pragma once

#include "libmaru/shm/region/control_region.h"
#include "maru/format/control_region.h"

#include <cstdint>

namespace maru::shm {

// state:4 | generation:20 | host:12 | lane:12 | lane generation:16
struct RegionWord {
  uint64_t bits = 0;

  static RegionWord of(format::RegionState state, uint32_t generation, LaneId owner, uint32_t host = 0) {
    return {uint64_t(state) << 60 | uint64_t(generation & 0xF'FFFF) << 40 | uint64_t(host & 0xFFF) << 28 | owner.low()};
  }
  format::RegionState state() const { return format::RegionState(bits >> 60); }
  uint32_t generation() const { return uint32_t(bits >> 40) & 0xF'FFFF; }
  LaneId owner() const { return LaneId::from_low(uint32_t(bits & 0xFFF'FFFF)); }
  uint32_t host() const { return uint32_t(bits >> 28) & 0xFFF; }
  // The host that looks after the region; hosts() of the pool for none.
  uint32_t host_in(const ControlRegion& region) const {
    return state() == format::RegionState::kUnused ? region.hosts() : host();
  }
};

// Whether the region is rented to this lane now.
bool owns_region(const ControlRegion& region, uint32_t index, LaneId lane);

// FREE -> OUT, each by CAS: a client that takes a page first has it. Returns how many became OUT.
uint32_t close_region_pages(const ControlRegion& region, uint32_t index);
// The same of some pages: `end` does not count.
uint32_t close_pages(const ControlRegion& region, uint32_t first, uint32_t end);

// After its owner left: if no client has a page of the region, FREE -> OUT. Returns whether every page is OUT or POISONED now,
// and flushed: only then may the word say UNUSED. False: FREE pages stay so for the next owner, unless a client took a page in
// between; then the pages before it in the region are OUT.
bool vacate_region(const ControlRegion& region, uint32_t index);

// Writes marud's word for a region that it decides about; flushed.
void show_region(const ControlRegion& region, uint32_t index, RegionWord word);

// OUT -> FREE, each by CAS. Returns how many became FREE.
uint32_t open_region_pages(const ControlRegion& region, uint32_t index);

}  // namespace maru::shm
