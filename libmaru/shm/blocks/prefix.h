// Prefix search: how many leading keys of a sequence are present, all of them held.
//
// Engines ask this for every request: the prompt's blocks d0, d1, ... are cached up to some point, and only from there on the
// model has to compute. When the blocks were stored as a chain, each under the block before, two facts help. First, presence is
// monotone: a cached block has all its ancestors cached, because only childless blocks can be taken away. So the end can be
// searched for instead of walked to. Where the last key is present, all are. Otherwise sixteen probes at a time, prefetched
// together, narrow 256 keys down in two rounds of one cache miss each. Second, a pin on the deepest block holds the whole
// chain.
//
// But presence under a key does not say that it is *this* chain: another client may have stored block 7 as a root. So each
// block carries its depth and a sum over the digests from the root down to it, which depends on their order. Once the deepest
// block is pinned, its depth and sum are compared with the depth and sum of the caller's keys. If they differ, the keys are
// walked one by one and each is pinned.
//
// Cost: a miss for the bucket of the last key, and a miss for the block line. The first overlaps the reading of the keys (a
// nanosecond or two each, their sum included). Where keys are missing, two rounds of parallel misses more and a second reading
// for the sum. To send the first round out with the first miss was tried: its gain was too small to measure, and it takes time
// where the whole chain is present.
#pragma once

#include "libmaru/shm/blocks/block_store.h"

#include <cstdint>
#include <span>

namespace maru::shm {

// The keys of a search, and the chain sum of all of them: the code that reads the keys computes it on the way.
struct PrefixKeys {
  std::span<const PlainDigest> plain;
  uint64_t sum;
};
PrefixKeys prefix_keys(const ControlRegion& region, std::span<const PlainDigest> plain);

struct HeldBlock {
  PageRef ref;
  uint32_t slot = 0;  // of the pin
  uint32_t key = 0;   // the number of the block's key
};

struct PrefixResult {
  size_t blocks = 0;  // leading keys that are present
  size_t held = 0;    // pins in ret_held; together they hold all of them
  PageRef deepest;
  PageRef expired;         // the last key that was looked up and has expired; or none
  bool pins_full = false;  // nothing is held: the lane has no pin slot left
  bool walked = false;     // the chain did not prove itself
};

// ret_held: as many entries as there are keys. Blocks that expired are absent (now_ms, 0 ignores expiry).
PrefixResult match_prefix(LaneContext& lane, const PrefixKeys& prefix, uint64_t now_ms, HeldBlock* ret_held);
// Fetches the lines that a search reads first, given its last key: for a caller that has yet to read the other keys.
void prefetch_prefix(const ControlRegion& region, const PlainDigest& last);
void release_prefix(LaneContext& lane, const HeldBlock* held, size_t count);

// The places of blocks that the caller holds through a pin on a descendant. ret_refs[i] is none if the block is not there.
// ret_lengths: of the payloads. Returns how many are.
size_t resolve_batch(const ControlRegion& region, std::span<const Digest> digests, PageRef* ret_refs,
                     uint64_t* ret_lengths);
// The same for the first digests of a match of `blocks` blocks that is one chain, held by the caller's pin on `deepest`,
// which is a page. digests.size() is at most `blocks`.
//
// A lookup reads three lines that lie anywhere. But each block line names its parent, {page, generation}. So a walk from child
// to parent reads block lines alone. A parent's place is known only when its child's line is there, one miss after the other.
// So the chain is cut into kChainWalks stretches, as many as misses are worth having under way at once, and all are walked in
// turns. The start of a stretch is looked up in the registry, but for the deepest. A link alone proves nothing. A block counts
// if its line has the wanted digest, under an unchanged page word of that life of the page, as it would if the registry had
// named it. The pin keeps all of them where they are.
//
// A walk may have to stop: the keys are another chain's, or another process changes the registry during the lookup of a start.
// Then the rest of its stretch is looked up.
//
// Cost: a line a key, and three for each stretch.
inline constexpr size_t kChainWalks = 16;
size_t resolve_chain(const ControlRegion& region, PageRef deepest, size_t blocks, std::span<const Digest> digests,
                     PageRef* ret_refs, uint64_t* ret_lengths);

// Whether the pins of a match hold all of these blocks of its first keys. The pins are in the order of their keys. Each block
// is pinned, or is the parent of the next block. Blocks above a pinned block keep their keys, unless the memory of a block goes
// bad. Then its key may be another block's by now, which the pin does not hold. Reads a line a block, and a line for each key
// between the last of these and the next pin.
bool are_held(const ControlRegion& region, std::span<const PageRef> refs, std::span<const HeldBlock> pins);

}  // namespace maru::shm
