#include "daemon/eventd/contents.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

namespace maru::eventd {

uint64_t place_of(const Blocks& blocks) {
  const std::hash<std::string_view> hash;
  return hash(blocks.medium) * 31 + hash(blocks.place);
}

bool Contents::hold(const BlockKey& key, const Item& item) {
  Presence& presence = blocks_[key];
  const auto found = std::find_if(presence.holders.begin(), presence.holders.end(),
                                  [&](const auto& one) { return one.first == item.rank; });
  if (found == presence.holders.end())
    presence.holders.emplace_back(item.rank, 1);
  else
    ++found->second;
  if (presence.is_announced || presence.holders.size() < item.ranks) return false;
  return presence.is_announced = true;
}

bool Contents::let_go(const BlockKey& key, const Item& item) {
  const auto block = blocks_.find(key);
  if (block == blocks_.end()) return false;
  Presence& presence = block->second;
  const auto found = std::find_if(presence.holders.begin(), presence.holders.end(),
                                  [&](const auto& one) { return one.first == item.rank; });
  if (found == presence.holders.end() || --found->second > 0) return false;
  presence.holders.erase(found);
  const bool is_lost = presence.is_announced && presence.holders.size() < item.ranks;
  if (is_lost) presence.is_announced = false;
  if (presence.holders.empty()) blocks_.erase(block);
  return is_lost;
}

// Calls `tell` for each longest run of blocks for which `changes` says so; both get places in the item.
template <typename Changes, typename Tell>
static void for_runs(size_t count, const Changes& changes, const Tell& tell) {
  size_t first = 0;
  for (size_t i = 0; i < count; ++i) {
    if (changes(i)) continue;
    tell(first, i - first);
    first = i + 1;
  }
  tell(first, count - first);
}

void Contents::announce(const Item& item, EventList& out) {
  const uint64_t place = place_of(item.blocks);
  for_runs(
      item.blocks.hashes.size(),
      [&](size_t i) {
        const bool is_news = hold({item.blocks.hashes[i], place}, item);
        announced_ += is_news ? 1 : 0;
        return is_news;
      },
      [&](size_t first, size_t count) { out.stored(item.blocks, first, count); });
}

void Contents::take_back(const Item& item, EventList& out) {
  const uint64_t place = place_of(item.blocks);
  // From the end: an item's last block is the child of the block before.
  const size_t count = item.blocks.hashes.size();
  size_t run = 0;
  for (size_t i = count; i-- > 0;) {
    if (let_go({item.blocks.hashes[i], place}, item)) {
      ++run;
      --announced_;
      continue;
    }
    out.removed(item.blocks, i + 1, run);
    run = 0;
  }
  out.removed(item.blocks, 0, run);
}

void Contents::add(const ItemKey& key, Item item, EventList& out) {
  const auto found = items_.find(key);
  if (found != items_.end()) {
    ++found->second->second.count;
    return;
  }
  const auto placed = order_.emplace_hint(order_.end(), next_++, Kept{key, std::move(item)});
  items_.emplace(key, placed);
  announce(placed->second.item, out);
}

void Contents::remove(const ItemKey& key, EventList& out) {
  const auto found = items_.find(key);
  if (found == items_.end() || --found->second->second.count > 0) return;
  const Order::iterator kept = found->second;
  items_.erase(found);
  take_back(kept->second.item, out);
  order_.erase(kept);
}

void Contents::remove_all(uint32_t source, EventList& out) {
  for (auto next = order_.end(); next != order_.begin();) {
    const auto kept = std::prev(next);
    if (kept->second.key.source != source) {
      next = kept;
      continue;
    }
    items_.erase(kept->second.key);
    take_back(kept->second.item, out);
    next = order_.erase(kept);
  }
}

void Contents::forget(uint32_t source) {
  for (auto kept = order_.begin(); kept != order_.end();) {
    if (kept->second.key.source != source) {
      ++kept;
      continue;
    }
    items_.erase(kept->second.key);
    kept = order_.erase(kept);
  }
}

void Contents::announce_all(EventList& out, const std::function<void()>& after_each) {
  blocks_.clear();
  announced_ = 0;
  out.cleared();
  for (const auto& [number, kept] : order_) {
    announce(kept.item, out);
    after_each();
  }
}

}  // namespace maru::eventd
