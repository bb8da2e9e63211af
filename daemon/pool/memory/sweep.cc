#include "daemon/pool/memory/sweep.h"

#include <algorithm>

namespace maru::daemon {

void Sweep::sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired) {
  PageWord found = core_.word(page);
  switch (found.state()) {
    case PageState::kOut:
    case PageState::kFree: ++free_; break;
    case PageState::kPoisoned:
      if (core_.region.is_shared() && !regions_[core_.region.region_of(page)].is_foreign) poison_.know(page);
      break;
    default: ++used_;
  }
  const bool may_be_at_work = core_.region.is_shared() && found.lane().lane != lanes_.first;  // another host's marud
  if (found.is(PageState::kRetiring) && may_be_at_work) return;
  if (found.is(PageState::kRetiring)) {  // of a marud before: this one is not evicting now
    core_.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
    return;
  }
  const uint32_t generation = found.generation();
  if (!found.is(PageState::kReady)) {
    if (queues_.order.contains(page)) queues_.remove(page);
    if (found.is(PageState::kRetired) && found.lane() == lanes_.daemon) retired_.add(PageRef::of(page, generation));
    // Left by a client that is gone, after its reclaim: handed over to an older marud, for example.
    const LaneId holder = found.lane();
    const bool is_being_reclaimed =
        holder.lane < lanes_.records.size() && lanes_.records[holder.lane].phase == LaneRecord::Phase::kReclaiming;
    if (found.names_lane() && lanes_.is_dead(holder) && !is_being_reclaimed) {
      walked_ += core_.reclaim_cost(page);
      core_.meter.add(core_.reclaim_cost(page));
      shm::reclaim_pages(core_.self, lanes_, page, page + 1, findings_);
    }
    return;
  }
  if (!regions_.owns_page(page)) return;
  if (core_.is_expired(page, found)) expired.push_back(page);
  if (queues_.held.has(page)) return;
  if (queues_.order.contains(page) && !queues_.order.knows(page, generation)) queues_.remove(page);
  if (found.children() == 0 && !queues_.order.contains(page)) missing.push_back(page);
}

uint64_t Sweep::step(uint64_t count) {
  std::vector<uint32_t> missing, expired;
  walked_ = 0;
  uint64_t swept = 0;
  for (; swept < std::min(count, core_.pages()) && walked_ <= 2 * count; ++swept) {
    if (next_ >= core_.pages()) next_ = 0;
    const auto page = uint32_t(next_++);
    sweep_page(page, missing, expired);
    if (next_ % core_.region.region_pages() != 0) continue;
    const uint32_t index = core_.region.region_of(page);
    RegionEntry& entry = regions_[index];
    if (free_ > 0) entry.no_run_since = kNever;  // not every process that frees counts it
    entry.free_pages = free_;
    entry.used_pages = used_;
    free_ = used_ = 0;
    const bool settles = (entry.state == RegionState::kOrphaned && entry.used_pages == 0) ||
                         (entry.state == RegionState::kUnused && entry.used_pages > 0 && !core_.region.is_shared());
    if (settles) grants_.settle_region(index);
  }
  queues_.add_missing(missing, rounds_.begun);
  expired_.evict(std::move(expired), kSweepPagesPerTurn);
  return swept;
}

void Sweep::sweep_shelf(uint32_t shelf) {
  std::vector<uint32_t> missing, expired;
  const uint32_t free_before = free_, used_before = used_;  // of the region that the slow sweep is in
  for (uint32_t page = queues_.order.first_page(shelf); page < queues_.order.end_page(shelf); ++page)
    sweep_page(page, missing, expired);
  free_ = free_before;
  used_ = used_before;
  queues_.add_missing(missing, rounds_.begun);
  expired_.evict(std::move(expired), 0);  // not within the request that is served, which may sweep many shelves
  queues_.shelves[shelf].swept_at_lost = lanes_.lost_touches();
}

}  // namespace maru::daemon
