#include "libmaru/shm/blocks/prefix.h"

#include <algorithm>

namespace maru::shm {
namespace {

constexpr size_t kPrefixWays = 16;
constexpr size_t kWalkGroup = 32;
// Another attempt at a search is made only after a block was taken away in between.
constexpr uint32_t kSearchRetries = 8;

void add_all(ChainSum& sum, std::span<const PlainDigest> keys) {
  for (const PlainDigest& key : keys) sum.add(key);
}

// Keys from one probe to the next in a round that looks at `keys` of them.
size_t probe_step(size_t keys) { return (keys + kPrefixWays - 1) / kPrefixWays; }

// How many leading keys seem present, if presence is monotone. There is at least one.
size_t search_end(const ControlRegion& region, std::span<const PlainDigest> keys) {
  // The last one first: where it is, nothing else has to be looked at.
  if (registry_exists(region, permute(region.secret(), keys.back()))) return keys.size();
  size_t present = 0, absent = keys.size() - 1;  // everything below `present` seems present, `absent` seems absent
  size_t points[kPrefixWays];
  Digest probes[kPrefixWays];
  while (present < absent) {
    const size_t step = probe_step(absent - present);
    size_t count = 0;
    for (size_t at = present + step - 1; at < absent; at += step) {
      points[count] = at;
      probes[count] = permute(region.secret(), keys[at]);
      registry_prefetch(region, probes[count++]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (!registry_exists(region, probes[i])) {
        absent = points[i];
        break;
      }
      present = points[i] + 1;
    }
  }
  return present;
}

// The chain sum of the keys. It is computed during the misses of the search for the deepest key.
uint64_t sum_beside_misses(const ControlRegion& region, std::span<const PlainDigest> keys, const Digest& deepest) {
  ChainSum sum(region.secret());
  const size_t half = keys.size() / 2;
  registry_prefetch_locations(region, deepest);
  add_all(sum, keys.first(half));
  const Candidates candidates = registry_find(region, deepest);
  for (uint32_t i = 0; i < candidates.count; ++i) __builtin_prefetch(&region.block(candidates.ref(i).page()));
  add_all(sum, keys.subspan(half));
  return sum.sum();
}

// Walks from the first key on and pins each. It releases a pin again when a block's own parent link shows that another pin
// holds it.
void walk(LaneContext& lane, std::span<const PlainDigest> keys, uint64_t now_ms, HeldBlock* held,
          PrefixResult* result) {
  const ControlRegion& region = *lane.region;
  Digest digests[kWalkGroup];
  for (size_t group = 0; group < keys.size(); group += kWalkGroup) {
    const size_t end = std::min(group + kWalkGroup, keys.size());
    for (size_t i = group; i < end; ++i) {
      digests[i - group] = permute(region.secret(), keys[i]);
      registry_prefetch(region, digests[i - group]);
      registry_prefetch_locations(region, digests[i - group]);
    }
    for (size_t i = group; i < end; ++i) {
      const Found found = find_and_pin(lane, digests[i - group], now_ms);
      if (found.status == FindStatus::kPinsFull) {
        release_prefix(lane, held, result->held);
        *result = {};
        result->pins_full = true;
        return;
      }
      if (found.status != FindStatus::kFound) {
        if (result->expired.is_none()) result->expired = found.ref;
        return;
      }
      const uint64_t parent = region.block(found.ref.page()).parent.load_relaxed();  // under the pin
      if (result->held > 0 && held[result->held - 1].ref.bits == parent) {
        lane.pins->unpin(held[result->held - 1].slot, held[result->held - 1].ref);
        --result->held;
      }
      held[result->held++] = {found.ref, found.slot, uint32_t(i)};
      result->deepest = found.ref;
      result->blocks = i + 1;
    }
  }
}

}  // namespace

PrefixKeys prefix_keys(const ControlRegion& region, std::span<const PlainDigest> plain) {
  ChainSum sum(region.secret());
  add_all(sum, plain);
  return {plain, sum.sum()};
}

void prefetch_prefix(const ControlRegion& region, const PlainDigest& last) {
  const Digest d = permute(region.secret(), last);
  registry_prefetch(region, d);
  registry_prefetch_locations(region, d);
}

PrefixResult match_prefix(LaneContext& lane, const PrefixKeys& prefix, uint64_t now_ms, HeldBlock* ret_held) {
  const ControlRegion& region = *lane.region;
  const std::span<const PlainDigest> keys = prefix.plain;
  PrefixResult result;
  size_t limit = keys.size();
  for (uint32_t tries = 0; tries < kSearchRetries; ++tries) {
    const size_t end = limit != 0 ? search_end(region, keys.first(limit)) : 0;
    if (end == 0) return result;
    const Digest deepest = permute(region.secret(), keys[end - 1]);
    const uint64_t sum = end == keys.size() ? prefix.sum : sum_beside_misses(region, keys.first(end), deepest);

    const Found found = find_and_pin(lane, deepest, now_ms);
    if (found.status == FindStatus::kPinsFull) {
      result.pins_full = true;
      return result;
    }
    if (found.status == FindStatus::kAbsent) {  // taken away or expired since it was probed
      if (result.expired.is_none()) result.expired = found.ref;
      limit = end - 1;
      continue;
    }
    const format::BlockLine& line = region.block(found.ref.page());
    const uint32_t depth = uint32_t(line.shape.load_relaxed() >> 32);  // under the pin
    if (depth == end - 1 && line.chain.load_relaxed() == sum) {
      ret_held[0] = {found.ref, found.slot, uint32_t(end - 1)};
      result.blocks = end;
      result.held = 1;
      result.deepest = found.ref;
      return result;
    }
    lane.pins->unpin(found.slot, found.ref);
    break;
  }
  result.walked = true;
  walk(lane, keys, now_ms, ret_held, &result);
  return result;
}

void release_prefix(LaneContext& lane, const HeldBlock* held, size_t count) {
  for (size_t i = 0; i < count; ++i) lane.pins->unpin(held[i].slot, held[i].ref);
}

namespace {

// Whether `ref` is the visible block of this digest; its payload's length if so. Proved by the unchanged page word.
bool is_block_of(const ControlRegion& region, PageRef ref, const Digest& digest, uint64_t* ret_length) {
  const format::BlockLine& line = region.block(ref.page());
  if (!(block_digest(region, ref.page()) == digest)) return false;
  const uint64_t length = line.length.load_acquire();  // before the word is read: [pairs page.word]
  if (!PageWord{line.word.load_acquire()}.is_findable(ref.generation())) return false;
  *ret_length = format::payload_bytes_of(length);
  return true;
}

bool resolve_one(const ControlRegion& region, const Digest& digest, PageRef* ret_ref, uint64_t* ret_length) {
  const Candidates candidates = registry_find(region, digest);
  for (uint32_t i = 0; i < candidates.count; ++i) {
    if (!is_block_of(region, candidates.ref(i), digest, ret_length)) continue;
    *ret_ref = candidates.ref(i);
    return true;
  }
  return false;
}

}  // namespace

size_t resolve_batch(const ControlRegion& region, std::span<const Digest> digests, PageRef* ret_refs,
                     uint64_t* ret_lengths) {
  // A pipeline of three stages, each kStage keys behind the stage before: fetch the bucket, read the location and fetch the
  // block line, compare. Keys that are not plain are put off.
  constexpr size_t kStage = 16;
  const format::Bucket* homes[2 * kStage];
  PageRef found[kStage];
  const size_t n = digests.size();
  size_t count = 0;
  LaterKeys later;
  const auto resolve_later = [&](size_t i) { count += resolve_one(region, digests[i], &ret_refs[i], &ret_lengths[i]); };
  for (size_t i = 0; i < n + 2 * kStage; ++i) {
    if (i >= 2 * kStage) {
      const size_t k = i - 2 * kStage;
      ret_refs[k] = found[k % kStage];
      if (!ret_refs[k].is_none() && is_block_of(region, ret_refs[k], digests[k], &ret_lengths[k])) {
        ++count;
      } else {
        ret_refs[k] = PageRef::none();
        if (later.add(k, *homes[k % (2 * kStage)])) later.finish(region, resolve_later);
      }
    }
    if (i >= kStage && i - kStage < n) {
      const size_t k = i - kStage;
      found[k % kStage] = registry_find_plain(region, *homes[k % (2 * kStage)], digests[k]);
      if (!found[k % kStage].is_none()) __builtin_prefetch(&region.block(found[k % kStage].page()));
    }
    if (i < n) {
      homes[i % (2 * kStage)] = &region.bucket(home_bucket(region, digests[i]));
      __builtin_prefetch(&homes[i % (2 * kStage)]->tags);
      __builtin_prefetch(&homes[i % (2 * kStage)]->locations);
    }
  }
  later.finish(region, resolve_later);
  return count;
}

namespace {

// Fewer steps of a walk gain less than looking for its start costs.
constexpr size_t kStepsMin = 2;

// One of several walks from child to parent along a chain, over the keys first..left - 1.
struct Walk {
  PageRef ref;       // the block of key left - 1, its line fetched; none where the walk has ended early
  size_t first = 0;  // the last key that it comes to
  size_t left = 0;   // one past the next key
};

// Reads the walk's present block and fetches the line of its parent. False if the block does not have the walk's next key.
// `is_own`: the caller's pin is on this block; it may have been retired meanwhile, and the pin still holds it.
inline bool step(const ControlRegion& region, Walk& walk, bool is_own, const Digest& digest, PageRef* ret_ref,
                 uint64_t* ret_length) {
  const format::BlockLine& line = region.block(walk.ref.page());
  if (!(block_digest(region, walk.ref.page()) == digest)) return false;
  const uint64_t length = line.length.load_acquire();  // both before the word is read: [pairs page.word]
  const PageRef parent = PageRef::from_bits(line.parent.load_acquire());
  const PageWord word{line.word.load_acquire()};  // [pairs page.word]
  if (is_own ? word.generation() != walk.ref.generation() : !word.is_findable(walk.ref.generation())) return false;
  *ret_ref = walk.ref;
  *ret_length = format::payload_bytes_of(length);
  if (--walk.left == walk.first) return true;
  if (!region.is_page(parent)) {
    walk.ref = PageRef::none();
    return true;
  }
  __builtin_prefetch(&region.block(parent.page()));
  walk.ref = parent;
  return true;
}

}  // namespace

bool are_held(const ControlRegion& region, std::span<const PageRef> refs, std::span<const HeldBlock> pins) {
  const auto parent_of = [&](PageRef ref) {
    return region.is_page(ref)
               ? PageRef::from_bits(region.block(ref.page()).parent.load_relaxed())  // held by the match
               : PageRef::none();
  };
  if (refs.empty()) return true;
  size_t next = 0;  // the first pin of the keys from i on
  while (next < pins.size() && pins[next].key < refs.size()) ++next;
  PageRef held;  // the block of key i
  if (next < pins.size()) {
    held = pins[next].ref;
    for (size_t i = pins[next].key; i >= refs.size(); --i) held = parent_of(held);
  }
  for (size_t i = refs.size(); i-- > 0;) {
    if (next > 0 && pins[next - 1].key == i) held = pins[--next].ref;
    if (held.is_none() || refs[i].bits != held.bits) return false;
    held = parent_of(refs[i]);  // the same as of `held`, but known without waiting for the block before
  }
  return true;
}

size_t resolve_chain(const ControlRegion& region, PageRef deepest, size_t blocks, std::span<const Digest> digests,
                     PageRef* ret_refs, uint64_t* ret_lengths) {
  const size_t n = digests.size();
  const size_t count = std::min(kChainWalks, (n + kStepsMin - 1) / kStepsMin);
  Walk walks[kChainWalks];
  const format::Bucket* homes[kChainWalks];
  for (size_t i = 0; i < count; ++i) {
    walks[i].first = n * i / count;
    walks[i].left = n * (i + 1) / count;
    homes[i] = &region.bucket(home_bucket(region, digests[walks[i].left - 1]));
    __builtin_prefetch(&homes[i]->tags);
    __builtin_prefetch(&homes[i]->locations);
  }
  const bool from_deepest = n == blocks;
  for (size_t i = 0; i < count; ++i) {
    walks[i].ref =
        from_deepest && i + 1 == count ? deepest : registry_find_plain(region, *homes[i], digests[walks[i].left - 1]);
    if (!walks[i].ref.is_none()) __builtin_prefetch(&region.block(walks[i].ref.page()));
  }
  for (size_t steps = (n + count - 1) / count; steps > 0; --steps) {
    for (size_t i = 0; i < count; ++i) {
      Walk& walk = walks[i];
      if (walk.ref.is_none() || walk.left == walk.first) continue;
      const size_t key = walk.left - 1;
      if (!step(region, walk, from_deepest && key == n - 1, digests[key], &ret_refs[key], &ret_lengths[key]))
        walk.ref = PageRef::none();
    }
  }
  size_t found = n;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = walks[i].first, rest = walks[i].left - first;
    if (rest == 0) continue;
    found -= rest;
    found += resolve_batch(region, digests.subspan(first, rest), ret_refs + first, ret_lengths + first);
  }
  return found;
}

}  // namespace maru::shm
