// Draining a pool: nobody gets memory of it any more, and what nobody pins goes, region by region, a bounded step a turn. A
// region is taken as docs/format.md has it ("A region is taken from its owner", steps 2 to 4 and 7), and given to nobody: its
// word is DRAINING, its free pages OUT. Blocks go leaves first; those with children have their turn in a later round. What is
// pinned stays where it is, readable, until it is released. A pool is drained when every page is OUT or POISONED.
//
// Of a pool that several hosts share, a host drains its own part: the regions that it looks after, each of which becomes
// nobody's, for the others to rent, when it is empty. Theirs, and what nobody rents, are not its to empty.
//
// If marud dies here: the next marud finds DRAINING regions and settles them, and its host tells it to go on draining.
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint64_t kDrainPauseMs = 50;  // after a round that took nothing away

}  // namespace

// Goes on with this region as far as the budget lasts, which is looked at between two pages. Returns true at its end.
bool Pool::State::drain_one_region(uint32_t index, const LineBudget& budget) {
  RegionEntry& entry = regions[index];
  const uint32_t first = index * core.region.region_pages(), count = core.region.region_pages();
  if (drain_part == DrainPart::kBegin) {
    if (entry.is_foreign || (core.region.is_shared() && entry.state == RegionState::kUnused)) return true;
    if (entry.state != RegionState::kDraining) {
      const LaneId owner = entry.owner;
      const bool was_rented = entry.state == RegionState::kRented;
      regions.set_region(index, RegionState::kDraining, {});
      if (was_rented) drained_news.push_back({owner.lane, index, entry.generation});
      drain_took = true;
    }
    drain_part = DrainPart::kEvict;
    drain_page = 0;
  }
  std::vector<uint32_t> victims;
  while (drain_part == DrainPart::kEvict) {
    if (budget.is_spent()) return false;
    victims.clear();
    const uint64_t look = lanes.look_lines();
    for (uint64_t lines = 0; drain_page < count && victims.size() < shm::kEvictBatchMax && lines < budget.left();) {
      const uint32_t page = first + drain_page++;
      const PageWord found = core.word(page);
      if (!found.is(PageState::kReady) || found.low() != 0) continue;
      victims.push_back(page);
      lines += evictor.eviction_lines(page, look);
    }
    drain_took |= evictor.evict_pages(victims, EvictReason::kAdmin) != 0;
    if (drain_page < count) continue;
    drain_part = DrainPart::kClose;
    drain_page = 0;
  }
  while (drain_part == DrainPart::kClose) {
    if (budget.is_spent()) return false;
    const auto to = uint32_t(std::min<uint64_t>(count, drain_page + kLinkedPagesPerTurn));
    drain_took |= shm::close_pages(core.region, first + drain_page, first + to) != 0;
    core.meter.add(to - drain_page);
    drain_page = to;
    if (to < count) continue;
    drain_part = DrainPart::kCount;
    drain_page = 0;
    drain_used_before = drain_counts.pages;
  }
  for (; drain_page < count; ++drain_page) {
    if (budget.is_spent()) return false;
    const PageWord found = core.word(first + drain_page);
    const bool is_unused = found.is(PageState::kOut) || found.is(PageState::kFree) || found.is(PageState::kPoisoned);
    if (is_unused) continue;
    ++drain_counts.pages;
    if (!found.is(PageState::kReady) && !found.is(PageState::kRetiring)) continue;
    ++drain_counts.blocks;
    core.meter.add(lanes.look_lines());
    drain_counts.pinned += shm::is_pinned(core.region, lanes.in_use, first + drain_page);
  }
  if (core.region.is_shared() && drain_counts.pages == drain_used_before) settle_region(index);
  return true;
}

// Returns true when there is more to do right away.
bool Pool::State::step_drain(const LineBudget& budget) {
  if (rests(core.now_ms, drain_again_ms, kDrainPauseMs)) return false;
  while (!budget.is_spent()) {
    if (!drain_one_region(drain_region, budget)) break;
    drain_part = DrainPart::kBegin;
    if (++drain_region < regions.size()) continue;
    // A whole round.
    drain_region = 0;
    drain_left = std::exchange(drain_counts, {});
    drain_counted = true;
    if (!std::exchange(drain_took, false)) drain_again_ms = core.now_ms + kDrainPauseMs;
    return drain_again_ms <= core.now_ms;
  }
  return true;
}

void Pool::set_draining(bool draining, uint64_t now_ms) {
  if (now_ms != 0) state_->core.now_ms = now_ms;
  State& s = *state_;
  s.is_draining = draining;
  s.drain_region = 0;
  s.drain_part = State::DrainPart::kBegin;
  s.drain_again_ms = 0;
  s.drain_took = s.drain_counted = false;
  s.drain_counts = s.drain_left = {};
  if (draining) return;
  for (uint32_t i = 0; i < s.regions.size(); ++i)
    if (s.regions[i].state == format::RegionState::kDraining) s.orphan_region(i);  // the sweep settles it
}

bool Pool::is_drained() const { return state_->is_draining && state_->drain_counted && state_->drain_left.pages == 0; }

std::vector<TakenRegion> Pool::take_drained_regions() { return std::exchange(state_->drained_news, {}); }

nlohmann::json Pool::drain_json() const {
  const State& s = *state_;
  nlohmann::json row = {{"pages", s.core.pages()}};
  if (!s.is_draining) return row;
  row["drained"] = is_drained();
  if (!s.drain_counted) return row;
  row["left_pages"] = s.drain_left.pages;
  row["left_blocks"] = s.drain_left.blocks;
  row["pinned_blocks"] = s.drain_left.pinned;
  return row;
}

}  // namespace maru::daemon
