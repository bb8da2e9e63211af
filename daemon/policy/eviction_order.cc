#include "daemon/policy/eviction_order.h"

#include <algorithm>
#include <bit>
#include <tuple>

// All words here are written by marud's one thread; the relaxed order is enough for it, and readers elsewhere only look.

namespace maru::daemon {

using format::PolicyEntry;

namespace {

// A search for a place goes this many times the mean distance between two samples. In a queue that is in order one in e^16 goes
// further (unless very many blocks have the same place), so a longer one is taken for damage.
constexpr uint32_t kStepsPerGap = 16;

// Equally cold blocks of a queue that a choice examines for a copy, the coldest block included.
constexpr uint32_t kTiesMax = 16;
constexpr uint64_t kLookLinesMax = 1024;  // of a choice without a bound on its lines

}  // namespace

EvictionOrder::EvictionOrder(std::span<PolicyEntry> entries, uint32_t region_pages, const BlockFacts& facts)
    : entries_(entries), region_pages_(region_pages), facts_(&facts) {
  const uint64_t most = std::max<uint64_t>(kShelfPages, entries.size() / kShelvesMax);
  shelves_per_region_ = uint32_t((region_pages + most - 1) / most);
  shelf_pages_ = (region_pages + shelves_per_region_ - 1) / shelves_per_region_;
  shelves_.resize(entries.size() / region_pages * shelves_per_region_);
  copies_.resize(entries.size());
  samples_ = 1u << (uint32_t(std::bit_width(shelf_pages_)) / 2);
  steps_max_ = std::min(shelf_pages_, kStepsPerGap * (shelf_pages_ / samples_ + 1));
}

void EvictionOrder::set_policy(Policy& policy, bool keep_words, bool keep_unknown) {
  for (uint32_t i = 0; i < shelves_.size(); ++i)
    if (!keep_unknown || !shelves_[i].lists.empty()) clear(i);
  if (!keep_words)
    for (PolicyEntry& each : entries_) each.word.store_relaxed(0);
  policy_ = &policy;
}

PolicyBlock EvictionOrder::block(uint32_t page) const {
  PolicyBlock block;
  block.word = entry(page).word.load_relaxed();
  block.last_use = last_use(page);
  if (const uint32_t needs = policy_->needs(); needs != kNeedsNothing) facts_->read(page, needs, block);
  return block;
}

uint64_t EvictionOrder::blocks(uint32_t queue) const {
  const auto found = queue_blocks_.find(queue);
  return found == queue_blocks_.end() ? 0 : found->second;
}

// -- queues -----------------------------------------------------------------------------------------------------------

// The list that the entry of a page, read once, says it is in, if that can be.
EvictionOrder::List* EvictionOrder::list_of(uint32_t page, uint32_t said) {
  const uint32_t number = said - 1;
  if (number >= lists_.size() || lists_[number].count == 0 || lists_[number].shelf != shelf_of(page)) return nullptr;
  return &lists_[number];
}

uint32_t EvictionOrder::list_for(uint32_t page, uint32_t queue) {
  const uint32_t tenant = facts_->tenant(page), shelf = shelf_of(page);
  const auto [found, is_new] = shelves_[shelf].lists.try_emplace(uint64_t(tenant) << 32 | queue, 0);
  if (!is_new) return found->second;
  if (unused_lists_.empty()) {
    unused_lists_.push_back(uint32_t(lists_.size()));
    lists_.emplace_back();
  }
  found->second = unused_lists_.back();
  unused_lists_.pop_back();
  lists_[found->second] = {shelf, queue, tenant, 0, 0, 0};
  return found->second;
}

void EvictionOrder::count_off(uint32_t queue, uint64_t blocks) {
  const auto found = queue_blocks_.find(queue);
  found->second -= blocks;
  if (found->second == 0) queue_blocks_.erase(found);  // some policies name a queue once and never again
}

void EvictionOrder::drop_list(uint32_t number) {
  List& list = lists_[number];
  shelves_[list.shelf].lists.erase(uint64_t(list.tenant) << 32 | list.queue);
  list = {};
  unused_lists_.push_back(number);
}

bool EvictionOrder::is_linked(uint32_t link, uint32_t number) const {
  return link != 0 && link <= entries_.size() && shelf_of(link - 1) == lists_[number].shelf &&
         entry(link - 1).list.load_relaxed() == number + 1;
}

// Between two neighbours of one list; 0 is the end.
void EvictionOrder::link(uint32_t page, uint32_t number, uint32_t colder, uint32_t warmer) {
  List& list = lists_[number];
  PolicyEntry& each = entry(page);
  each.older.store_relaxed(colder);
  each.newer.store_relaxed(warmer);
  each.list.store_relaxed(number + 1);
  if (colder)
    entry(colder - 1).newer.store_relaxed(page + 1);
  else
    list.cold = page + 1;
  if (warmer)
    entry(warmer - 1).older.store_relaxed(page + 1);
  else
    list.warm = page + 1;
  ++list.count;
  ++shelves_[list.shelf].count;
  ++queue_blocks_[list.queue];
}

bool EvictionOrder::remove(uint32_t page) {
  PolicyEntry& each = entry(page);
  const uint32_t said = each.list.load_relaxed(), number = said - 1;
  if (said == 0) return true;
  List* list = list_of(page, said);
  each.list.store_relaxed(0);
  if (list == nullptr) return false;
  const uint32_t colder = each.older.load_relaxed(), warmer = each.newer.load_relaxed();
  const bool colder_agrees = colder == 0
                                 ? list->cold == page + 1
                                 : is_linked(colder, number) && entry(colder - 1).newer.load_relaxed() == page + 1;
  const bool warmer_agrees = warmer == 0
                                 ? list->warm == page + 1
                                 : is_linked(warmer, number) && entry(warmer - 1).older.load_relaxed() == page + 1;
  // A list has ends as long as it has blocks, even with wrong links: callers rely on it.
  const bool is_alone = colder == 0 && warmer == 0;
  if (!colder_agrees || !warmer_agrees || is_alone != (list->count == 1)) return false;
  if (colder)
    entry(colder - 1).newer.store_relaxed(warmer);
  else
    list->cold = warmer;
  if (warmer)
    entry(warmer - 1).older.store_relaxed(colder);
  else
    list->warm = colder;
  --list->count;
  --shelves_[list->shelf].count;
  count_off(list->queue, 1);
  if (list->count == 0) drop_list(number);
  return true;
}

// -- a block ----------------------------------------------------------------------------------------------------------

void EvictionOrder::learn(uint32_t page, uint32_t generation, uint64_t tick) {
  PolicyEntry& each = entry(page);
  // A policy that is new learns of lives that were known.
  if (has_copies_ && each.generation.load_relaxed() != generation + 1) copies_.remove(page);
  each.generation.store_relaxed(generation + 1);
  each.last_use_ms.store_relaxed(tick);
  each.word.store_relaxed(0);
  if (is_unlearned_page(page)) return;
  PolicyBlock fresh = block(page);
  policy_->stored(fresh, pool_);
  each.word.store_relaxed(fresh.word);
}

bool EvictionOrder::use(uint32_t page, uint64_t tick) {
  if (is_unlearned_page(page)) return inherit(page, tick);
  const PolicyBlock before = block(page);
  PolicyBlock changed = before;
  changed.last_use = std::max(changed.last_use, tick);
  policy_->used(changed, pool_);
  return change(page, before, changed);
}

bool EvictionOrder::inherit(uint32_t page, uint64_t tick) {
  if (last_use(page) >= tick) return true;
  if (is_unlearned_page(page)) {
    entry(page).last_use_ms.store_relaxed(tick);
    return true;
  }
  const PolicyBlock before = block(page);
  PolicyBlock changed = before;
  changed.last_use = tick;
  return change(page, before, changed);
}

bool EvictionOrder::child_left(uint32_t page, uint32_t child) {
  if (is_unlearned_page(page) || is_unlearned_page(child)) return true;
  const PolicyBlock before = block(page);
  PolicyBlock changed = before;
  policy_->child_left(changed, block(child), pool_);
  return changed.word == before.word || change(page, before, changed);
}

// Writes the word and the tick. A listed block whose place changes goes to the warm end of a queue, or out of the queues.
bool EvictionOrder::change(uint32_t page, const PolicyBlock& before, const PolicyBlock& changed) {
  PolicyEntry& each = entry(page);
  const auto write = [&] {
    each.word.store_relaxed(changed.word);
    each.last_use_ms.store_relaxed(changed.last_use);
  };
  if (!contains(page)) {
    write();
    return true;
  }
  const PolicyPlace from = policy_->place(before), to = policy_->place(changed);
  const List* list = list_of(page, each.list.load_relaxed());
  if (list != nullptr && list->queue == to.queue &&
      (to.order == from.order || (to.order > from.order && list->warm == page + 1))) {
    write();
    return true;
  }
  const bool is_sound = remove(page);
  write();
  if (!is_sound) return false;
  return !goes_to_an_end(page, to) || insert_at(page, to);
}

uint64_t EvictionOrder::order_of(uint32_t link) const { return policy_->place(block(link - 1)).order; }

bool EvictionOrder::goes_to_an_end(uint32_t page, const PolicyPlace& place) const {
  const auto& lists = shelves_[shelf_of(page)].lists;
  const auto found = lists.find(uint64_t(facts_->tenant(page)) << 32 | place.queue);
  if (found == lists.end()) return true;
  const List& list = lists_[found->second];
  return place.order >= order_of(list.warm) || place.order <= order_of(list.cold);
}

bool EvictionOrder::is_at_an_end(uint32_t page) const { return goes_to_an_end(page, policy_->place(block(page))); }

bool EvictionOrder::insert(uint32_t page) { return contains(page) || insert_at(page, policy_->place(block(page))); }

// Looks at some blocks of this list, chosen at random, and returns the warmest of them that goes before `order`; 0: there is
// none. In a list of n blocks about n / samples_ blocks lie between that block and the place, even if the list has few of the
// shelf's pages.
uint32_t EvictionOrder::sample_below(uint32_t number, uint64_t order) {
  const List& list = lists_[number];
  if (list.count <= samples_) return 0;
  const uint32_t first = first_page(list.shelf), count = end_page(list.shelf) - first;
  uint32_t best = 0;
  uint64_t best_order = 0;
  for (uint32_t i = 0; i < samples_; ++i) {
    sample_seed_ = sample_seed_ * 6364136223846793005ull + 1442695040888963407ull;
    const uint32_t link = first + uint32_t((sample_seed_ >> 32) * count >> 32) + 1;
    if (!is_linked(link, number)) continue;
    const uint64_t its_order = order_of(link);
    if (its_order >= order || (best != 0 && its_order < best_order)) continue;
    best = link;
    best_order = its_order;
  }
  if (meter_) meter_->add(samples_);
  return best;
}

bool EvictionOrder::insert_at(uint32_t page, const PolicyPlace& place) {
  const uint32_t number = list_for(page, place.queue);
  uint32_t colder = lists_[number].warm, warmer = 0;
  if (colder != 0 && order_of(colder) > place.order) {
    // The warm end is too warm, so the walk ends before it. Without a sample the walk begins at the cold end: a block that
    // comes back to a short queue is usually old.
    colder = order_of(lists_[number].cold) < place.order ? sample_below(number, place.order) : 0;
    warmer = colder == 0 ? lists_[number].cold : entry(colder - 1).newer.load_relaxed();
    for (uint32_t steps = 0; is_linked(warmer, number) && order_of(warmer) < place.order; ++steps) {
      if (meter_) meter_->add(1);
      if (steps > steps_max_) return false;  // a cycle, or not in order
      colder = warmer;
      warmer = entry(warmer - 1).newer.load_relaxed();
    }
    if (!is_linked(warmer, number)) return false;
  }
  link(page, number, colder, warmer);
  return true;
}

void EvictionOrder::was_evicted(uint32_t page) {
  if (!is_unlearned_page(page)) policy_->evicted(block(page));
}

void EvictionOrder::note_copy(uint32_t page) {
  has_copies_ = true;
  copies_.add(page);
}

// -- a shelf ----------------------------------------------------------------------------------------------------------

void EvictionOrder::forget(uint32_t shelf_index) {
  Shelf& shelf = shelves_[shelf_index];
  for (const auto& [key, number] : shelf.lists) {
    count_off(lists_[number].queue, lists_[number].count);
    lists_[number] = {};
    unused_lists_.push_back(number);
  }
  shelf.lists.clear();
  shelf.count = 0;
  shelf.is_damaged = false;
}

void EvictionOrder::forget_copies(uint32_t shelf_index) {
  for (uint32_t page = first_page(shelf_index); has_copies_ && page < end_page(shelf_index); ++page)
    copies_.remove(page);
}

void EvictionOrder::unlearn(uint32_t shelf_index) {
  forget(shelf_index);
  shelves_[shelf_index].is_unlearned = true;
}

void EvictionOrder::learn_anew(uint32_t shelf_index) {
  shelves_[shelf_index].is_unlearned = false;
  for (PolicyEntry& each : entries_.subspan(first_page(shelf_index), end_page(shelf_index) - first_page(shelf_index)))
    each.word.store_relaxed(0);
}

void EvictionOrder::clear(uint32_t shelf_index) {
  forget(shelf_index);
  for (uint32_t page = first_page(shelf_index); page < end_page(shelf_index); ++page) entry(page).list.store_relaxed(0);
}

void EvictionOrder::rebuild(uint32_t shelf_index, std::span<const uint32_t> pages) {
  clear(shelf_index);
  struct Placed {
    PolicyPlace place;
    uint32_t page;
  };
  std::vector<Placed> placed;
  placed.reserve(pages.size());
  for (const uint32_t page : pages) placed.push_back({policy_->place(block(page)), page});
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.place.order, a.page) < std::tie(b.place.order, b.page);
  });
  for (const Placed& each : placed) {
    if (contains(each.page)) continue;
    const uint32_t number = list_for(each.page, each.place.queue);
    link(each.page, number, lists_[number].warm, 0);
  }
}

std::vector<uint32_t> EvictionOrder::listed(uint32_t shelf_index) const {
  std::vector<uint32_t> pages;
  for (const auto& [key, number] : shelves_[shelf_index].lists) {
    uint32_t link = lists_[number].cold;
    for (uint64_t steps = 0; link != 0 && steps < lists_[number].count && is_linked(link, number); ++steps) {
      pages.push_back(link - 1);
      link = entry(link - 1).newer.load_relaxed();
    }
  }
  return pages;
}

// -- choosing ---------------------------------------------------------------------------------------------------------

EvictionOrder::Key EvictionOrder::key(uint32_t page) const { return key(page, last_use(page)); }

EvictionOrder::Key EvictionOrder::key(uint32_t page, uint64_t with_last_use) const {
  PolicyBlock known = block(page);
  known.last_use = with_last_use;
  const PolicyPlace place = policy_->place(known);
  const uint32_t tenant = facts_->tenant(page);
  Key key = {facts_->tenant_class(tenant), place.queue, place.order, copy_of(page), page};
  if (policy_->ranking() == Ranking::kByRank)
    key.major = policy_->rank(known, facts_->tenant_usage(tenant), *this, pool_);
  return key;
}

EvictionOrder::Coldest::Coldest(EvictionOrder& order, std::span<const uint32_t> regions, uint64_t* lines_left)
    : order_(order),
      by_rank_(order.policy_->ranking() == Ranking::kByRank),
      regions_(regions.begin(), regions.end()),
      lines_left_(lines_left),
      look_lines_left_(lines_left ? *lines_left / 4 : kLookLinesMax) {
  std::sort(regions_.begin(), regions_.end());
  if (!order_.policy_->evicts()) return;
  for (const uint32_t region : regions_)
    for (uint32_t shelf = order_.first_shelf(region); shelf < order_.first_shelf(region + 1); ++shelf) {
      spares_left_ += order_.shelves_[shelf].count;
      push_shelf(shelf);
    }
  turns_left_ = 4 * spares_left_;
}

void EvictionOrder::Coldest::push_shelf(uint32_t shelf) {
  uint64_t last = ~uint64_t{0};  // the end pushed before: with Ranking::kByPlace one stands for all queues of a tenant
  for (const auto& [key, number] : order_.shelves_[shelf].lists) {
    const uint64_t end = by_rank_ ? key : key >> 32 << 32;
    if (end != last) push_end({shelf, uint32_t(end >> 32), uint32_t(end)});
    last = end;
  }
}

// The coldest block of an end now, + 1; 0: none.
uint32_t EvictionOrder::Coldest::cold_link(const End& end) const {
  Shelf& shelf = order_.shelves_[end.shelf];
  const auto& lists = shelf.lists;
  const auto found = lists.lower_bound(uint64_t(end.tenant) << 32 | end.queue);
  if (found == lists.end() || uint32_t(found->first >> 32) != end.tenant) return 0;
  if (by_rank_ && uint32_t(found->first) != end.queue) return 0;
  const uint32_t cold = order_.lists_[found->second].cold;
  if (order_.is_linked(cold, found->second)) return cold;
  shelf.is_damaged = true;  // it could not be taken out, and would come again and again
  return 0;
}

void EvictionOrder::Coldest::push_end(const End& end) {
  const uint32_t link = cold_link(end);
  if (link == 0) {
    live_.erase(end);
    return;
  }
  const Key key = order_.key(link - 1);
  live_[end] = key;
  heap_.push({key, end});
}

void EvictionOrder::Coldest::push(uint32_t page) {
  const List* list = order_.list_of(page, order_.entry(page).list.load_relaxed());
  if (list == nullptr || !order_.policy_->evicts()) return;
  if (!std::binary_search(regions_.begin(), regions_.end(), order_.region_of(page))) return;
  const End end = {list->shelf, list->tenant, by_rank_ ? list->queue : 0};
  const auto live = live_.find(end);
  if (live != live_.end() && live->second <= order_.key(page)) return;  // corrected when it comes up
  push_end(end);
}

// An equally cold block behind this one in its queue, with a copy elsewhere, + 1; 0: there is none nearby.
uint32_t EvictionOrder::Coldest::copy_behind(const Key& cold) {
  const uint32_t said = order_.entry(cold.page).list.load_relaxed();
  if (order_.list_of(cold.page, said) == nullptr) return 0;
  const uint64_t lines = 1 + uint64_t(std::popcount(order_.policy_->needs()));  // its entry, and facts for the policy
  uint32_t each = cold.page + 1;
  for (uint32_t steps = 1; steps < kTiesMax && look_lines_left_ >= lines; ++steps) {
    each = order_.entry(each - 1).newer.load_relaxed();
    if (!order_.is_linked(each, said - 1)) return 0;
    look_lines_left_ -= lines;
    if (lines_left_) *lines_left_ -= std::min(*lines_left_, lines);
    if (order_.meter_) order_.meter_->add(lines);
    const Key next = order_.key(each - 1);
    if (std::tie(next.tenant_class, next.major, next.order) != std::tie(cold.tenant_class, cold.major, cold.order))
      return 0;
    if (next.copy == Copy::kHere) return each;
  }
  return 0;
}

bool EvictionOrder::Coldest::peek(uint32_t* ret_page, Key* ret_key) {
  // Ends: every turn drops an entry, corrects one, or spends a spare. A corrected entry needs it again only if a client
  // scribbles over the words meanwhile, or if the policy changes its answer each time. After so many turns wrong words are
  // taken as they are. All blocks share a single allowance for spares, so that scribbled words cannot spend it once for each
  // block. Each end is looked behind once, until its cold end changes.
  turns_left_ += heap_.size() + 2 * live_.size() + 16;
  for (; !heap_.empty(); turns_left_ -= turns_left_ != 0) {
    const Entry top = heap_.top();
    const auto live = live_.find(top.end);
    if (live == live_.end() || live->second != top.key) {  // this end has another entry
      heap_.pop();
      continue;
    }
    const uint32_t link = cold_link(top.end);
    if (link == 0) {
      heap_.pop();
      live_.erase(live);
      continue;
    }
    Key now = order_.key(link - 1);
    if (now.copy == Copy::kNotLooked && top.key.copy == Copy::kNone) now.copy = Copy::kNone;
    if (now != top.key && turns_left_ != 0) {
      heap_.pop();
      push_end(top.end);
      continue;
    }
    if (now.tenant_class == kTenantProtected) return false;
    if (now.copy == Copy::kNotLooked && turns_left_ != 0 && look_lines_left_ != 0) {
      if (const uint32_t copy = copy_behind(now); copy != 0) {
        now = order_.key(copy - 1);
      } else {
        // Ends that were not looked behind yet may have one.
        heap_.pop();
        now.copy = Copy::kNone;
        live->second = now;
        heap_.push({now, top.end});
        continue;
      }
    }
    PolicyBlock asked = order_.block(now.page);
    if (spares_left_ > 0 && turns_left_ != 0 && order_.policy_->spare(asked, order_.pool_)) {
      --spares_left_;
      const bool is_removed = order_.remove(now.page);
      order_.entry(now.page).word.store_relaxed(asked.word);
      if (is_removed && order_.insert(now.page)) {
        push(now.page);  // maybe into a queue that was empty
      } else {
        order_.shelves_[top.end.shelf].is_damaged = true;
      }
      if (lines_left_) *lines_left_ -= std::min(*lines_left_, kLinesOfASpare);
      if (lines_left_ && *lines_left_ == 0) return false;
      continue;
    }
    *ret_page = now.page;
    *ret_key = now;
    return true;
  }
  return false;
}

}  // namespace maru::daemon
