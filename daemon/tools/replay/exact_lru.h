// The yardstick for the hit ratio: an exact LRU of whole blocks, fed with the same requests one after the other.
//
// A request first counts its leading blocks that are present. Then it uses all of its blocks from the last to the first, so
// that the head ends up most recently used. Chains then lose their leaves first, as they do in a pool, where a block with
// children cannot go.
#pragma once

#include "daemon/tools/trace/trace.h"

#include <cstdint>
#include <list>
#include <unordered_map>

namespace maru::replay {

class ExactLru {
 public:
  // Holds `capacity` blocks at most; 0 is a cache without limit.
  explicit ExactLru(uint64_t capacity) : capacity_(capacity) {}

  // The number of leading blocks that were present.
  uint64_t request(const trace::Request& request);

  uint64_t evicted() const { return evicted_; }

 private:
  uint64_t capacity_;
  uint64_t evicted_ = 0;
  std::list<uint64_t> hottest_first_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> present_;
};

struct LruOutcome {
  uint64_t hits = 0;
  uint64_t evicted = 0;
  double ratio = 0;  // of all block references
};

LruOutcome simulate_lru(const trace::Trace& trace, uint64_t capacity);

}  // namespace maru::replay
