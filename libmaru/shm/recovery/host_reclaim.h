// Takes back the holdings of a whole host, after proof of its death and with the claim that says so (host_claim.h). reclaim.h
// handles a single lane. This file handles the parts that only a host has: all its lanes at once, its regions, and its marud's
// unfinished work. It also handles words that went back to an older state because the host took its caches with it.
//
// Every step may be repeated. If the reclaimer dies here: its successor, or the host that reclaims it, begins again.
#pragma once

#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>

namespace maru::shm {

// Whether a lane belongs to a host, in any generation.
class HostLanes final : public DeadLanes {
 public:
  HostLanes(const ControlRegion& region, uint32_t host) : region_(&region), host_(host) {}
  bool is_dead(LaneId lane) const override {
    return lane.lane < region_->lanes() && region_->host_of_lane(lane.lane) == host_;
  }

 private:
  const ControlRegion* region_;
  uint32_t host_;
};

// The host of a region, by its word; hosts() for no host.
uint32_t host_of_region(const ControlRegion& region, uint32_t index);
// Step 1: by CAS from the word that names the dead host; another host that has taken the region meanwhile keeps it. Returns
// whether the region is an orphan of `heir` now because of this call.
bool inherit_region(const ControlRegion& region, uint32_t index, uint32_t dead_host, uint32_t heir);

// The same for an ORPHANED region whose host has left, so that its slot is FREE. Another machine that attaches there meanwhile
// adopts its regions first, so only one host has it. ret_generation: of the region's word now.
bool inherit_left_region(const ControlRegion& region, uint32_t index, uint32_t heir, uint32_t* ret_generation);
// Step 4 of "Attach of a host": whether the region belongs to this LIVE host, and no host can inherit it any more.
bool adopt_region(const ControlRegion& region, uint32_t index, uint32_t host);

// Step 2, for each lane of the host: end_lane_pins (reclaim.h).

// Step 3 for one page, beside reclaim_pages: RETIRING of the host's marud goes back to READY.
void revive_retiring(const ControlRegion& region, uint32_t host, uint32_t page);

// Step 4, buckets [from, to): entries whose page is not a block of that life any more lose their valid bit. Returns how many.
uint32_t repair_entries(const ControlRegion& region, uint64_t from, uint64_t to);

// Step 5: overflow buckets [from, to) that name a lane of the host; then each of its lanes is as if no client had ever used it.
// Its accounts must have been folded, its touches and counters read. Its bit goes off last, by CAS.
void release_host_overflow(const ControlRegion& region, uint32_t host, uint64_t from, uint64_t to);
void clear_host_lane(const ControlRegion& region, uint32_t lane);
// Sets or clears the bit of one lane; other hosts may change the bits of other lanes in the same word meanwhile.
void set_lane_bit(const ControlRegion& region, uint32_t lane, bool is_in_use);

}  // namespace maru::shm
