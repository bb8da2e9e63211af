// The state of a look for the blocks below some others, between its slices; removal/trees.h does it.
#pragma once

#include "daemon/pool/evict_reason.h"
#include "libmaru/shm/region/page_word.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace maru::daemon {

using shm::PageRef;

// A look for all blocks below some blocks, and their removal, leaves first; in slices, since the pool may be large. Later
// slices check the findings of a slice again.
struct TreeWalk {
  enum class Phase : uint8_t { kClear, kLinks, kTree, kTake, kDone };
  Phase phase = Phase::kClear;
  // For each page its first child, for each child the next child: only the children name their parents.
  std::unique_ptr<uint32_t[]> first_child, next_child;
  uint64_t next = 0;             // kClear, kLinks: page; kTree: place in the tree
  std::vector<PageRef> tree;     // level by level, the roots first
  std::vector<size_t> levels;    // where each starts
  size_t level_end = 0;          // kTree: of the present level
  uint32_t child = 0xFFFF'FFFF;  // kTree: goes on here
  std::vector<bool> has_below;   // for each root: something that counts names it as its parent
  bool is_whole = false;         // the roots are all blocks that have no parent
  bool retires = false;          // the keys of blocks that cannot go are removed
  std::vector<PageRef> stays;    // blocks that keep their keys, above held blocks: children before their parents
  EvictReason reason = EvictReason::kAdmin;
  uint64_t deleted = 0, left = 0;  // blocks
  uint64_t retired = 0;            // of the left blocks: without a key, and gone when their pins are
};

}  // namespace maru::daemon
