// Adoption: the pass over the pages of a marud that starts over a pool which another one left ("marud restarts" of
// docs/format.md). Clients go on meanwhile: what names a lane that lives stays as it is.
//
// Every step may be repeated. If the process dies here: the next marud begins again. It has to know the lanes that were being
// taken back as well as this one does, so their identities say DEAD until all pages were adopted.
//
// Thread safety: one marud per pool and host; what clients change meanwhile is decided by the CAS of each step.
#pragma once

#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>
#include <span>

namespace maru::shm {

struct Adoption {
  LaneContext* daemon = nullptr;
  const DeadLanes* dead = nullptr;
  ReclaimSink* sink = nullptr;
  // Lanes that the marud before had begun to take back, as far as nobody knows. The pins that tell of a block which their
  // client left between READY and its entry may have ended, so the registry is asked for every READY block of theirs.
  std::span<const LaneId> begun{};
  // One for each page, 0 at first: how many children name it, as adopt_page finds them. What a living client has SEALED is not
  // among them: it may be about to add itself.
  std::span<uint32_t> children;
  uint64_t tails_freed_to = 0;  // page; of a durable pool, the end of the regions whose dead tails went
};

// For each of `begun` and the lane of the marud before: its pins end; the parents that its intents name go to the sink.
void adopt_lane(const ControlRegion& region, uint32_t lane, ReclaimSink& sink);

// Before adopt_page of any page, for each page whose children this host counts: the flag of a recount goes into its word if it
// has children. Every change of the count takes it away, so what adopt_page counts is believed of what keeps it alone.
void flag_count(const ControlRegion& region, uint32_t page);

// One page, from the first to the last: a mark of the marud before goes; what names a dead lane is freed, or RETIRED by this
// marud. In a durable pool the length that a head's line says is walked for its tails, and clients wrote that: so of a region
// with a dead head all tails of the dead go first, in one walk. Returns the page's word after that.
PageWord adopt_page(Adoption& adoption, uint32_t page);

// After adopt_page of all: the block of this page if its count may be too high, so that it is to be recounted; else none, and
// its flag is gone. `is_own`: flag_count was called for it; others recount their own, and here it is a hint.
PageRef suspect_of(const Adoption& adoption, uint32_t page, bool is_own);

// Overflow buckets whose word names a lane that left them. One pass, whatever names somebody wrote there.
void adopt_overflow(const ControlRegion& region, const DeadLanes& dead);

}  // namespace maru::shm
