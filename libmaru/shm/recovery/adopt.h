// Adoption: the pass over the pages by a marud that starts over an earlier marud's pool ("marud restarts" of docs/format.md).
// Clients go on meanwhile: words that name a living lane stay as they are.
//
// Every step may be repeated. If the process dies here: the next marud begins again. It has to know the lanes that were being
// taken back as well as this one does, so their identities say DEAD until all pages were adopted.
//
// Thread safety: one marud per pool and host; the CAS of each step decides against changes of clients.
#pragma once

#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>
#include <span>

namespace maru::shm {

struct Adoption {
  LaneContext* daemon = nullptr;
  const DeadLanes* dead = nullptr;
  ReclaimSink* sink = nullptr;
  // Lanes that the earlier marud may have begun to take back. A pin may tell of a block that its client left between READY and
  // its entry. Such pins may have ended, so the registry is asked for every READY block of these lanes.
  std::span<const LaneId> begun{};
  // For each page, 0 at first: the number of children that name it, as adopt_page finds them. A living client's SEALED pages do
  // not count: the client may be about to add them itself.
  std::span<uint32_t> children;
  uint64_t tails_freed_to = 0;  // page; in a durable pool, the end of the regions whose dead tails went
};

// For each of `begun` and the lane of the earlier marud: its pins end; the parents that its intents name go to the sink.
void adopt_lane(const ControlRegion& region, uint32_t lane, ReclaimSink& sink);

// Before adopt_page of any page, for each page whose children this host counts: sets the flag of a recount in its word if it
// has children. Every change of the count clears the flag, so the count of adopt_page is believed only where the flag stays.
void flag_count(const ControlRegion& region, uint32_t page);

// One page, from the first to the last. A mark of the earlier marud goes; a page that names a dead lane is freed, or RETIRED by
// this marud. In a durable pool the length in a head's line decides the walk for its tails, and clients wrote that length. So
// in a region with a dead head all tails of the dead go first, in one walk. Returns the page's word after that.
PageWord adopt_page(Adoption& adoption, uint32_t page);

// After adopt_page of all: the block of this page if its count may be too high, so that it is to be recounted; else none, and
// its flag is gone. `is_own`: flag_count was called for it; other hosts recount their own blocks, and here it is a hint.
PageRef suspect_of(const Adoption& adoption, uint32_t page, bool is_own);

// Overflow buckets whose word names a lane that left them. One pass, independent of the names in the words.
void adopt_overflow(const ControlRegion& region, const DeadLanes& dead);

}  // namespace maru::shm
