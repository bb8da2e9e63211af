#include "libmaru/shm/prefix.h"

#include <algorithm>

namespace maru::shm {
namespace {

// Far enough ahead that a line has arrived when its turn comes, near enough that it is still in the first-level cache.
constexpr size_t kPrefetchAhead = 24;
constexpr size_t kWalkGroup = 32;
// Another attempt at a search is made only after a block was taken away in between.
constexpr uint32_t kSearchRetries = 8;

uint64_t chain_sum(const ControlRegion& region, std::span<const Digest> digests, size_t from, size_t to) {
  uint64_t sum = 0;
  for (size_t i = from; i < to; ++i) sum += chain_term(region.secret(), digests[i], uint32_t(i));
  return sum;
}

// The points that cut (below, above) into kPrefixWays parts; the last one is above - 1.
size_t probe_points(size_t below_plus_1, size_t above, size_t* points) {
  const size_t width = above - below_plus_1;
  const size_t step = (width + kPrefixWays - 1) / kPrefixWays;
  size_t count = 0;
  for (size_t at = below_plus_1 + step - 1; at < above - 1; at += step) points[count++] = at;
  points[count++] = above - 1;
  return count;
}

// How many leading digests seem present, if presence is monotone.
size_t search_end(const ControlRegion& region, std::span<const Digest> digests, size_t n) {
  size_t present = 0, absent = n;  // everything below `present` seems present, `absent` (if < n) seems absent
  size_t points[kPrefixWays + 1];
  while (present < absent) {
    const size_t count = probe_points(present, absent, points);
    for (size_t i = 0; i < count; ++i) registry_prefetch(region, digests[points[i]]);
    registry_prefetch_locations(region, digests[points[count - 1]]);  // where the whole range is present
    for (size_t i = 0; i < count; ++i) {
      if (!registry_exists(region, digests[points[i]])) {
        absent = points[i];
        break;
      }
      present = points[i] + 1;
    }
  }
  return present;
}

// Walks from digests[from] on and pins each; what a block's own parent link shows to be held by it is let go again.
void walk(LaneContext& lane, std::span<const Digest> digests, size_t from, uint64_t now_ms, HeldBlock* held,
          PrefixResult* result) {
  const ControlRegion& region = *lane.region;
  for (size_t group = from; group < digests.size(); group += kWalkGroup) {
    const size_t end = std::min(group + kWalkGroup, digests.size());
    for (size_t i = group; i < end; ++i) {
      registry_prefetch(region, digests[i]);
      registry_prefetch_locations(region, digests[i]);
    }
    for (size_t i = group; i < end; ++i) {
      const Found found = find_and_pin(lane, digests[i], now_ms);
      if (found.status == FindStatus::kPinsFull) {
        release_prefix(lane, held, result->held);
        *result = {};
        result->pins_full = true;
        return;
      }
      if (found.status != FindStatus::kFound) return;
      const uint64_t parent = region.block(found.ref.page()).parent.load_relaxed();  // under the pin
      if (result->held > 0 && held[result->held - 1].ref.bits == parent) {
        lane.pins->unpin(held[result->held - 1].slot, held[result->held - 1].ref);
        --result->held;
      }
      held[result->held++] = {found.ref, found.slot};
      result->deepest = found.ref;
      result->blocks = i + 1;
    }
  }
}

}  // namespace

size_t prefix_first_probes(size_t n, size_t* ret_points) { return n ? probe_points(0, n, ret_points) : 0; }

PrefixResult match_prefix(LaneContext& lane, std::span<const Digest> digests, uint64_t now_ms, HeldBlock* ret_held) {
  const ControlRegion& region = *lane.region;
  PrefixResult result;
  size_t limit = digests.size();
  for (uint32_t tries = 0; tries < kSearchRetries; ++tries) {
    const size_t end = search_end(region, digests, limit);
    if (end == 0) return result;
    const Digest& deepest = digests[end - 1];
    registry_prefetch_locations(region, deepest);
    uint64_t sum = chain_sum(region, digests, 0, end / 2);
    const Candidates candidates = registry_find(region, deepest);
    for (uint32_t i = 0; i < candidates.count; ++i) __builtin_prefetch(&region.block(candidates.ref(i).page()));
    sum += chain_sum(region, digests, end / 2, end);

    const Found found = find_and_pin(lane, deepest, now_ms);
    if (found.status == FindStatus::kPinsFull) {
      result.pins_full = true;
      return result;
    }
    if (found.status == FindStatus::kAbsent) {  // taken away or expired since it was probed
      limit = end - 1;
      continue;
    }
    const format::BlockLine& line = region.block(found.ref.page());
    const uint32_t depth = uint32_t(line.shape.load_relaxed() >> 32);  // under the pin
    if (depth == end - 1 && line.chain.load_relaxed() == sum) {
      ret_held[0] = {found.ref, found.slot};
      result.blocks = end;
      result.held = 1;
      result.deepest = found.ref;
      return result;
    }
    lane.pins->unpin(found.slot, found.ref);
    break;
  }
  result.walked = true;
  walk(lane, digests, 0, now_ms, ret_held, &result);
  return result;
}

void release_prefix(LaneContext& lane, const HeldBlock* held, size_t count) {
  for (size_t i = 0; i < count; ++i) lane.pins->unpin(held[i].slot, held[i].ref);
}

size_t exists_batch(const ControlRegion& region, std::span<const Digest> digests, uint8_t* ret_present) {
  const size_t n = digests.size();
  for (size_t i = 0; i < std::min(n, kPrefetchAhead); ++i) registry_prefetch(region, digests[i]);
  size_t present = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kPrefetchAhead < n) registry_prefetch(region, digests[i + kPrefetchAhead]);
    ret_present[i] = registry_exists(region, digests[i]);
    present += ret_present[i];
  }
  return present;
}

size_t resolve_batch(const ControlRegion& region, std::span<const Digest> digests, PageRef* ret_refs,
                     uint64_t* ret_lengths) {
  constexpr size_t kGroup = 64;
  Candidates candidates[kGroup];
  size_t found = 0;
  for (size_t group = 0; group < digests.size(); group += kGroup) {
    const size_t count = std::min(kGroup, digests.size() - group);
    for (size_t i = 0; i < count; ++i) {
      registry_prefetch(region, digests[group + i]);
      registry_prefetch_locations(region, digests[group + i]);
    }
    for (size_t i = 0; i < count; ++i) {
      candidates[i] = registry_find(region, digests[group + i]);
      for (uint32_t k = 0; k < candidates[i].count; ++k)
        __builtin_prefetch(&region.block(candidates[i].ref(k).page()));
    }
    for (size_t i = 0; i < count; ++i) {
      ret_refs[group + i] = PageRef::none();
      for (uint32_t k = 0; k < candidates[i].count; ++k) {
        const PageRef ref = candidates[i].ref(k);
        const format::BlockLine& line = region.block(ref.page());
        if (!(block_digest(region, ref.page()) == digests[group + i])) continue;
        const uint64_t length = line.length.load_acquire();  // before the word is read: [pairs page.word]
        if (!PageWord{line.word.load_acquire()}.is_findable(ref.generation())) continue;
        ret_refs[group + i] = ref;
        ret_lengths[group + i] = length;
        ++found;
        break;
      }
    }
  }
  return found;
}

}  // namespace maru::shm
