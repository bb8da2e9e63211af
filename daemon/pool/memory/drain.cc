#include "daemon/pool/memory/drain.h"

#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint64_t kDrainPauseMs = 50;  // after a round that took nothing away

}  // namespace

// Goes on with this region as far as the budget lasts, which is looked at between two pages. Returns true at its end.
bool Drain::drain_one_region(uint32_t index, const LineBudget& budget) {
  RegionEntry& entry = regions_[index];
  const uint32_t first = index * core_.region.region_pages(), count = core_.region.region_pages();
  if (part_ == Part::kBegin) {
    if (entry.is_foreign || (core_.region.is_shared() && entry.state == RegionState::kUnused)) return true;
    if (entry.state != RegionState::kDraining) {
      const LaneId owner = entry.owner;
      const bool was_rented = entry.state == RegionState::kRented;
      regions_.set_region(index, RegionState::kDraining, {});
      if (was_rented) news_.push_back({owner.lane, index, entry.generation});
      took_ = true;
    }
    part_ = Part::kEvict;
    page_ = 0;
  }
  std::vector<uint32_t> victims;
  while (part_ == Part::kEvict) {
    if (budget.is_spent()) return false;
    victims.clear();
    const uint64_t look = lanes_.look_lines();
    for (uint64_t lines = 0; page_ < count && victims.size() < shm::kEvictBatchMax && lines < budget.left();) {
      const uint32_t page = first + page_++;
      const PageWord found = core_.word(page);
      if (!found.is(PageState::kReady) || found.low() != 0) continue;
      victims.push_back(page);
      lines += evictor_.eviction_lines(page, look);
    }
    took_ |= evictor_.evict_pages(victims, EvictReason::kAdmin) != 0;
    if (page_ < count) continue;
    part_ = Part::kClose;
    page_ = 0;
  }
  while (part_ == Part::kClose) {
    if (budget.is_spent()) return false;
    const auto to = uint32_t(std::min<uint64_t>(count, page_ + kLinkedPagesPerTurn));
    took_ |= shm::close_pages(core_.region, first + page_, first + to) != 0;
    core_.meter.add(to - page_);
    page_ = to;
    if (to < count) continue;
    part_ = Part::kCount;
    page_ = 0;
    used_before_ = counts_.pages;
  }
  for (; page_ < count; ++page_) {
    if (budget.is_spent()) return false;
    const PageWord found = core_.word(first + page_);
    const bool is_unused = found.is(PageState::kOut) || found.is(PageState::kFree) || found.is(PageState::kPoisoned);
    if (is_unused) continue;
    ++counts_.pages;
    if (!found.is(PageState::kReady) && !found.is(PageState::kRetiring)) continue;
    ++counts_.blocks;
    core_.meter.add(lanes_.look_lines());
    counts_.pinned += shm::is_pinned(core_.region, lanes_.in_use, first + page_);
  }
  if (core_.region.is_shared() && counts_.pages == used_before_) grants_.settle_region(index);
  return true;
}

bool Drain::step(const LineBudget& budget) {
  if (rests(core_.now_ms, again_ms_, kDrainPauseMs)) return false;
  while (!budget.is_spent()) {
    if (!drain_one_region(region_, budget)) break;
    part_ = Part::kBegin;
    if (++region_ < regions_.size()) continue;
    // A whole round.
    region_ = 0;
    left_ = std::exchange(counts_, {});
    counted_ = true;
    if (!std::exchange(took_, false)) again_ms_ = core_.now_ms + kDrainPauseMs;
    return again_ms_ <= core_.now_ms;
  }
  return true;
}

void Drain::set(bool is_draining) {
  is_on_ = is_draining;
  region_ = 0;
  part_ = Part::kBegin;
  again_ms_ = 0;
  took_ = counted_ = false;
  counts_ = left_ = {};
  if (is_draining) return;
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].state == RegionState::kDraining) grants_.orphan_region(i);  // the sweep settles it
}

}  // namespace maru::daemon
