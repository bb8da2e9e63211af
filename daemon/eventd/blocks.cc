#include "daemon/eventd/blocks.h"

namespace maru::eventd {
namespace {

constexpr size_t kEventBytes = 160;  // names of fields
constexpr size_t kHashBytes = 9;

// Whether two runs may be one event.
bool is_alike(const Blocks& one, const Blocks& other) {
  return one.block_size == other.block_size && one.has_tokens() == other.has_tokens() && one.medium == other.medium &&
         one.lora_name == other.lora_name && one.cache_salt == other.cache_salt && one.lora_id == other.lora_id &&
         one.place == other.place && one.more == other.more && one.extra_keys.empty() == other.extra_keys.empty();
}

std::optional<uint64_t> parent_of(const Blocks& blocks, size_t place) {
  return place == 0 ? blocks.parent : std::optional(blocks.hashes[place - 1]);
}

void append_run(Blocks& to, const Blocks& from, size_t first, size_t count) {
  const auto copy = [&](auto& target, const auto& source, size_t each) {
    const auto begin = source.begin() + ptrdiff_t(first * each);
    target.insert(target.end(), begin, begin + ptrdiff_t(count * each));
  };
  copy(to.hashes, from.hashes, 1);
  if (from.has_tokens()) copy(to.tokens, from.tokens, from.block_size);
  if (!from.extra_keys.empty()) copy(to.extra_keys, from.extra_keys, 1);
}

Blocks without_run(const Blocks& from) {
  Blocks blocks;
  blocks.block_size = from.block_size;
  blocks.medium = from.medium;
  blocks.lora_name = from.lora_name;
  blocks.cache_salt = from.cache_salt;
  blocks.lora_id = from.lora_id;
  blocks.place = from.place;
  blocks.place_pairs = from.place_pairs;
  blocks.more = from.more;
  blocks.more_pairs = from.more_pairs;
  return blocks;
}

}  // namespace

void EventList::stored(const Blocks& blocks, size_t first, size_t count) {
  for (; count > kHashesMax; first += kHashesMax, count -= kHashesMax) stored(blocks, first, kHashesMax);
  if (count == 0) return;
  const std::optional<uint64_t> parent = parent_of(blocks, first);
  const size_t run_bytes = count * (kHashBytes + (blocks.has_tokens() ? 5 * blocks.block_size : 0));
  if (!events_.empty()) {
    Blocks& last = events_.back().blocks;
    if (events_.back().kind == RouterEvent::Kind::kStored && parent && last.hashes.back() == *parent &&
        last.hashes.size() + count <= kHashesMax && is_alike(last, blocks)) {
      append_run(last, blocks, first, count);
      bytes_ += run_bytes;
      return;
    }
  }
  RouterEvent event = {RouterEvent::Kind::kStored, without_run(blocks)};
  event.blocks.parent = parent;
  append_run(event.blocks, blocks, first, count);
  events_.push_back(std::move(event));
  bytes_ += kEventBytes + run_bytes + blocks.place.size() + blocks.more.size();
}

void EventList::removed(const Blocks& blocks, size_t first, size_t count) {
  for (; count > kHashesMax; count -= kHashesMax) removed(blocks, first + count - kHashesMax, kHashesMax);
  if (count == 0) return;
  const auto append = [&](Blocks& to) {
    for (size_t i = first + count; i-- > first;)
      to.hashes.push_back(blocks.hashes[i]);  // the last of a prompt goes first
  };
  bytes_ += count * kHashBytes;
  if (!events_.empty()) {
    Blocks& last = events_.back().blocks;
    if (events_.back().kind == RouterEvent::Kind::kRemoved && last.hashes.size() + count <= kHashesMax &&
        last.medium == blocks.medium && last.place == blocks.place) {
      append(last);
      return;
    }
  }
  RouterEvent event = {RouterEvent::Kind::kRemoved, {}};
  event.blocks.medium = blocks.medium;
  event.blocks.place = blocks.place;
  event.blocks.place_pairs = blocks.place_pairs;
  append(event.blocks);
  events_.push_back(std::move(event));
  bytes_ += kEventBytes + blocks.place.size();
}

void EventList::cleared() {
  events_.push_back({RouterEvent::Kind::kCleared, {}});
  bytes_ += kEventBytes;
}

void EventList::append(const RouterEvent& event) {
  events_.push_back(event);
  bytes_ += kEventBytes + event.blocks.hashes.size() * kHashBytes + 5 * event.blocks.tokens.size();
}

}  // namespace maru::eventd
