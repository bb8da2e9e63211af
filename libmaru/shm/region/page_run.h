// Taking and giving back pages. A run is contiguous pages that hold one block: the head carries the state, the others are
// TAIL and name their distance to it.
//
// Taking: each page FREE -> RESERVED{lane}, one by one; then the head's line says how long the run is; then pages 2..k
// become TAIL. Giving back: from the last TAIL to the head, the head last, each with generation + 1. If the process dies here:
// every page is RESERVED by its lane, or a TAIL of such a page, or free. marud frees the pages of the dead lane, and heads
// through the same function as every client.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstdint>
#include <span>

namespace maru::shm {

// Takes one page if it is FREE. Returns its reference, or none.
PageRef take_page(const ControlRegion& region, LaneId lane, uint32_t page);

// Takes `count` contiguous pages from `page` and makes them a run, or takes nothing. They must lie in one region.
// *ret_blocker (may be null) receives the first page that was not FREE.
PageRef take_run(const ControlRegion& region, LaneId lane, uint32_t page, uint32_t count, uint32_t* ret_blocker);

// Makes a run of pages that the lane has RESERVED one by one already; `first` and the following count - 1. False: one of them
// was POISONED meanwhile, and the others were given back.
bool join_run(const ControlRegion& region, LaneId lane, uint32_t first, uint32_t count);

// marud's: takes a run for the client `to`, first for its own lane. The answer to the request in `mark` tells the client. If
// marud dies before the run is the client's, the next marud frees it; if the answer is lost, give_back_granted does. As
// take_run otherwise.
constexpr uint64_t grant_mark(LaneId to, uint32_t request_id) { return uint64_t(to.low()) << 32 | request_id; }
PageRef grant_run(const ControlRegion& region, LaneId daemon, LaneId to, uint32_t page, uint32_t count, uint64_t mark,
                  uint32_t* ret_blocker);
// The client's: runs of this lane with one of these marks, which are sorted, become FREE. Only when marud does not work on
// these requests any more. Returns how many pages.
uint64_t give_back_granted(const ControlRegion& region, LaneId lane, std::span<const uint64_t> marks);

// Gives back a RESERVED run of this lane. Returns how many pages became FREE; 0 if the head is not the lane's.
uint32_t give_back_run(const ControlRegion& region, LaneId lane, PageRef head);

// As giving back and taking a single page again, in one step: the next life of the page, still RESERVED. None if the page
// is not the lane's, or is a run.
PageRef renew_page(const ControlRegion& region, LaneId lane, PageRef page);

// The end of the pages behind a head that may be its tails: as many as its line says. In memory that loses nothing, it goes
// only as far as TAIL and POISONED pages follow each other. Joining goes up and giving back goes down, so the tails of a run
// that is whole or half-way have no gap. So many heads with scribbled lines cost one walk over the pages together, not one
// each. In a durable pool single lines may be lost: there the length alone counts.
uint32_t tails_end(const ControlRegion& region, uint32_t head);

// The tails of a head that the caller holds exclusively become FREE, last first.
uint32_t free_tails(const ControlRegion& region, uint32_t head);

}  // namespace maru::shm
