#include "libmaru/shm/blocks/find_batch.h"

#include <algorithm>

namespace maru::shm {
namespace {

constexpr size_t kGroup = 16;

// The part of a group whose location is plain: fetched, and later pinned together.
struct PlainBlocks {
  size_t count = 0;
  size_t key[kGroup];  // index of the key in the batch
  PageRef ref[kGroup];
  Pin pin[kGroup];
};

// The homes of a group's keys, whose lines are on their way.
struct Homes {
  const format::Bucket* of[kGroup];

  void fetch(const ControlRegion& region, std::span<const Digest> digests) {
    for (size_t i = 0; i < digests.size(); ++i) {
      of[i] = &region.bucket(home_bucket(region, digests[i]));
      __builtin_prefetch(&of[i]->tags);
      __builtin_prefetch(&of[i]->locations);
    }
  }
};

void locate(const ControlRegion& region, std::span<const Digest> digests, const Homes& homes, size_t from, size_t to,
            PlainBlocks* plain) {
  plain->count = 0;
  for (size_t i = from; i < to; ++i) {
    const PageRef ref = registry_find_plain(region, *homes.of[i - from], digests[i]);
    if (ref.is_none()) continue;
    __builtin_prefetch(&region.block(ref.page()));
    plain->key[plain->count] = i;
    plain->ref[plain->count++] = ref;
  }
}

// Whether the pinned block is the wanted block and its time is not over.
bool is_wanted(const ControlRegion& region, PageRef ref, const Digest& digest, uint64_t now_ms) {
  if (!(block_digest(region, ref.page()) == digest)) return false;
  const uint64_t expires_ms = region.block(ref.page()).expires_ms.load_relaxed();  // under the pin
  return expires_ms == 0 || now_ms == 0 || now_ms < expires_ms;
}

void pin_plain(LaneContext& lane, std::span<const Digest> digests, uint64_t now_ms, PlainBlocks* plain,
               Found* ret_found) {
  lane.pins->pin_batch(plain->ref, plain->count, plain->pin);
  for (size_t k = 0; k < plain->count; ++k) {
    if (plain->pin[k].status != PinStatus::kPinned) continue;
    if (is_wanted(*lane.region, plain->ref[k], digests[plain->key[k]], now_ms))
      ret_found[plain->key[k]] = {FindStatus::kFound, plain->ref[k], plain->pin[k].slot};
    else
      lane.pins->unpin(plain->pin[k].slot, plain->ref[k]);
  }
}

}  // namespace

Found pin_if_wanted(LaneContext& lane, PageRef likely, const Digest& digest, uint64_t now_ms) {
  const Pin pin = lane.pins->pin(likely);
  if (pin.status != PinStatus::kPinned) return {};
  if (is_wanted(*lane.region, likely, digest, now_ms)) return {FindStatus::kFound, likely, pin.slot};
  lane.pins->unpin(pin.slot, likely);
  return {};
}

bool find_and_pin_batch(LaneContext& lane, std::span<const Digest> digests, uint64_t now_ms, Found* ret_found) {
  const ControlRegion& region = *lane.region;
  const size_t n = digests.size();
  PlainBlocks plain;
  Homes homes;
  homes.fetch(region, digests.first(std::min(kGroup, n)));
  for (size_t from = 0; from < n; from += kGroup) {
    const size_t to = std::min(from + kGroup, n);
    std::fill(ret_found + from, ret_found + to, Found{});
    locate(region, digests, homes, from, to, &plain);
    homes.fetch(region, digests.subspan(to, std::min(kGroup, n - to)));
    pin_plain(lane, digests, now_ms, &plain, ret_found);
    for (size_t i = from; i < to; ++i) {
      if (ret_found[i].status == FindStatus::kFound) continue;
      ret_found[i] = find_and_pin(lane, digests[i], now_ms);
      if (ret_found[i].status != FindStatus::kPinsFull) continue;
      for (size_t k = 0; k < to; ++k)
        if (ret_found[k].status == FindStatus::kFound) lane.pins->unpin(ret_found[k].slot, ret_found[k].ref);
      return false;
    }
  }
  return true;
}

}  // namespace maru::shm
