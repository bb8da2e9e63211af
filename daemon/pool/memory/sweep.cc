#include "daemon/pool/state.h"

#include <algorithm>

namespace maru::daemon {

void Pool::State::sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired) {
  PageWord found = core.word(page);
  switch (found.state()) {
    case PageState::kOut:
    case PageState::kFree: ++sweep_free; break;
    case PageState::kPoisoned:
      if (core.region.is_shared() && !regions[core.region.region_of(page)].is_foreign) know_poison(page);
      break;
    default: ++sweep_used;
  }
  const bool may_be_at_work = core.region.is_shared() && found.lane().lane != lanes.first;  // another host's marud
  if (found.is(PageState::kRetiring) && may_be_at_work) return;
  if (found.is(PageState::kRetiring)) {  // of a marud before: this one is not evicting now
    core.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
    return;
  }
  const uint32_t generation = found.generation();
  if (!found.is(PageState::kReady)) {
    if (queues.order.contains(page)) queues.remove(page);
    if (found.is(PageState::kRetired) && found.lane() == lanes.daemon) retired.add(PageRef::of(page, generation));
    // Left by somebody who is gone, after its reclaim: handed over to an older marud, say.
    const LaneId holder = found.lane();
    const bool is_being_reclaimed =
        holder.lane < lanes.records.size() && lanes.records[holder.lane].phase == LaneRecord::Phase::kReclaiming;
    if (found.names_lane() && lanes.is_dead(holder) && !is_being_reclaimed) {
      sweep_walked += core.reclaim_cost(page);
      core.meter.add(core.reclaim_cost(page));
      shm::reclaim_pages(core.self, lanes, page, page + 1, findings);
    }
    return;
  }
  if (!regions.owns_page(page)) return;
  if (core.is_expired(page, found)) expired.push_back(page);
  if (queues.held.has(page)) return;
  if (queues.order.contains(page) && !queues.order.knows(page, generation)) queues.remove(page);
  if (found.children() == 0 && !queues.order.contains(page)) missing.push_back(page);
}

// The next `count` pages, region by region; fewer where what somebody wrote makes them costly. Returns how many.
uint64_t Pool::State::sweep(uint64_t count) {
  std::vector<uint32_t> missing, expired;
  sweep_walked = 0;
  uint64_t swept = 0;
  for (; swept < std::min(count, core.pages()) && sweep_walked <= 2 * count; ++swept) {
    if (sweep_next >= core.pages()) sweep_next = 0;
    const auto page = uint32_t(sweep_next++);
    sweep_page(page, missing, expired);
    if (sweep_next % core.region.region_pages() != 0) continue;
    const uint32_t index = core.region.region_of(page);
    RegionEntry& entry = regions[index];
    if (sweep_free > 0) entry.no_run_since = kNever;  // not everybody who frees counts it
    entry.free_pages = sweep_free;
    entry.used_pages = sweep_used;
    sweep_free = sweep_used = 0;
    const bool settles = (entry.state == RegionState::kOrphaned && entry.used_pages == 0) ||
                         (entry.state == RegionState::kUnused && entry.used_pages > 0 && !core.region.is_shared());
    if (settles) settle_region(index);
  }
  queues.add_missing(missing, rounds.begun);
  evict_expired(std::move(expired), kSweepPagesPerTurn);
  return swept;
}

void Pool::State::sweep_shelf(uint32_t shelf) {
  std::vector<uint32_t> missing, expired;
  const uint32_t free_before = sweep_free, used_before = sweep_used;  // of the region that the slow sweep is in
  for (uint32_t page = queues.order.first_page(shelf); page < queues.order.end_page(shelf); ++page)
    sweep_page(page, missing, expired);
  sweep_free = free_before;
  sweep_used = used_before;
  queues.add_missing(missing, rounds.begun);
  evict_expired(std::move(expired), 0);  // not within the request that is served, which may sweep many shelves
  queues.shelves[shelf].swept_at_lost = lanes.lost_touches();
}

}  // namespace maru::daemon
