#include "daemon/pool/eviction/queues.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {

void Queues::set_up() {
  order = EvictionOrder(core_.region.policy_table(), core_.region.region_pages(), *this);
  order.count_lines(&core_.meter);
  shelves.assign(order.shelves(), {});
  held.resize(core_.pages());
}

void Queues::tell_time() {
  order.set_pool({core_.tick(core_.now_ms), core_.pages(), core_.region.region_pages(), core_.region.page_bytes()});
}

uint64_t Queues::tick_of(uint32_t page, uint32_t generation) const {
  const uint64_t now = core_.tick(core_.now_ms);
  if (order.knows(page, generation)) return std::min(now, order.last_use(page));
  return std::min(now, core_.tick(core_.region.detail(page).stored_ms.load_relaxed()));  // a hint: any value does
}

void Queues::know(uint32_t page, uint32_t generation) {
  if (order.knows(page, generation)) return;
  if (order.contains(page)) remove(page);
  order.learn(page, generation, tick_of(page, generation));
}

void Queues::insert(uint32_t page, uint32_t generation) {
  if (!regions_.owns_page(page)) return;
  know(page, generation);
  if (shelves[order.shelf_of(page)].is_unordered) return;  // it finds its place with all others
  if (!order.insert(page)) mend(order.shelf_of(page));
}

void Queues::remove(uint32_t page) {
  if (!regions_.owns_page(page)) return;
  if (!order.remove(page)) mend(order.shelf_of(page));
}

void Queues::rebuild(uint32_t shelf) {
  if (regions_[order.region_of_shelf(shelf)].is_foreign) return;
  shelves[shelf].is_unordered = false;
  if (order.is_unlearned(shelf)) relearn(shelf);
  ++core_.totals.queues_rebuilt;
  std::vector<uint32_t> members;
  for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page) {
    const PageWord found = core_.word(page);
    if (!found.is(PageState::kReady) || held.has(page)) continue;
    // A block with children was in a queue if it was touched; otherwise it comes when its last child leaves.
    const bool is_known = order.knows(page, found.generation());
    if (found.children() != 0 && !(is_known && order.contains(page))) continue;
    if (!is_known) order.learn(page, found.generation(), tick_of(page, found.generation()));
    members.push_back(page);
  }
  core_.meter.add(order.shelf_pages() / 2 + members.size());  // the entries, and the facts behind each place
  order.rebuild(shelf, members);
}

// Whether this turn has room for a further shelf.
bool Queues::may_rebuild() {
  if (mend_pages_left_ < order.shelf_pages()) return false;
  mend_pages_left_ -= order.shelf_pages();
  return true;
}

void Queues::mend(uint32_t shelf) {
  ShelfEntry& entry = shelves[shelf];
  if (regions_[order.region_of_shelf(shelf)].is_foreign || entry.is_unordered) return;
  if (may_rebuild()) return rebuild(shelf);
  entry.is_unordered = true;
  order.forget(shelf);
  unordered_shelves_.push_back(shelf);
}

// Uses that are older than already applied uses, from rings that were read earlier in the last round, have put many of this
// shelf's blocks out of its queues. Requests that wait for this round wait for their places, too.
void Queues::leave_for_later(uint32_t shelf, uint64_t round) {
  if (!std::exchange(shelves[shelf].is_late, true)) {
    late_shelves_.push_back({shelf, round});
    return;
  }
  const auto is_it = [&](const LateShelf& late) { return late.index == shelf; };
  const auto late = std::ranges::find_if(late_shelves_, is_it);
  late->round = std::min(late->round, round);
}

void Queues::place_late(uint64_t pages_left) {
  for (; !late_shelves_.empty() && pages_left >= order.shelf_pages(); pages_left -= order.shelf_pages()) {
    const uint32_t shelf = late_shelves_.front().index;
    if (regions_.owns_page(order.first_page(shelf))) rebuild(shelf);  // not given away meanwhile
    shelves[shelf].is_late = false;
    late_shelves_.pop_front();
  }
}

// Late shelves have every other step, so that a client's scribbling cannot take it away. Returns true when shelves still wait.
bool Queues::step_mending() {
  mends_late_ = !mends_late_;
  if (mends_late_ && !late_shelves_.empty()) {
    place_late(std::max<uint64_t>(kMendedPagesPerTurn, order.shelf_pages()));
    return true;
  }
  if (is_reordering()) step_reorder();
  while (!unordered_shelves_.empty()) {
    const uint32_t shelf = unordered_shelves_.back();
    if (shelves[shelf].is_unordered) {
      if (!may_rebuild()) break;
      rebuild(shelf);
    }
    unordered_shelves_.pop_back();
  }
  return !unordered_shelves_.empty() || !late_shelves_.empty() || is_reordering();
}

void Queues::add_missing(std::vector<uint32_t>& missing, uint64_t round) {
  const LineBudget places(core_.meter, kPlaceLinesPerTurn);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  for (size_t start = 0; start < missing.size();) {
    const uint32_t shelf = order.shelf_of(missing[start]);
    size_t end = start;
    while (end < missing.size() && order.shelf_of(missing[end]) == shelf) ++end;
    if (end - start > kSingleInsertsMax || places.is_spent()) {
      if (may_rebuild())
        rebuild(shelf);
      else
        leave_for_later(shelf, round);
    } else {
      for (size_t i = start; i < end; ++i) {
        const PageWord found = core_.word(missing[i]);
        if (!found.is(PageState::kReady) || held.has(missing[i])) continue;
        insert(missing[i], found.generation());
      }
    }
    start = end;
  }
}

void Queues::inherit_use(PageRef parent, uint64_t child_tick) {
  if (!core_.region.is_page(parent)) return;
  const uint32_t page = parent.page(), generation = parent.generation();
  if (!core_.word(page).is(PageState::kReady, generation) || !regions_.owns_page(page)) return;
  know(page, generation);
  if (!order.inherit(page, std::min(child_tick, core_.tick(core_.now_ms)))) mend(order.shelf_of(page));
}

bool Queues::note_copy(PageRef ref) {
  core_.meter.add(2);  // its word, and its entry
  if (!core_.region.is_page(ref) || !regions_.owns_page(ref.page())) return false;
  if (!core_.word(ref.page()).is(PageState::kReady, ref.generation())) return false;
  if (!order.knows(ref.page(), ref.generation())) return false;
  order.note_copy(ref.page());
  return true;
}

void Queues::child_left(PageRef parent, EvictionOrder::Coldest* coldest) {
  if (!core_.region.is_page(parent)) return;
  const uint32_t page = parent.page(), generation = parent.generation();
  const PageWord found = core_.word(page);
  if (!found.is(PageState::kReady, generation) || !regions_.owns_page(page) || held.has(page)) return;
  if (found.children() != 0) return;
  insert(page, generation);
  if (coldest) coldest->push(page);
}

void Queues::leave_unordered(uint32_t shelf) {
  order.forget(shelf);
  shelves[shelf].is_unordered = true;
  unordered_shelves_.push_back(shelf);
}

void Queues::begin_adoption() {
  for (uint32_t i = 0; i < shelves.size(); ++i)
    shelves[i].is_unordered = !regions_[order.region_of_shelf(i)].is_foreign;
}

bool Queues::is_awaited(uint64_t round) const {
  return std::ranges::any_of(late_shelves_, [&](const LateShelf& late) { return late.round <= round; });
}

void Queues::begin_turn() { mend_pages_left_ = std::max<uint64_t>(kMendedPagesPerTurn, order.shelf_pages()); }

}  // namespace maru::daemon
