// A trace made ready for simulation: every distinct block has a number, and knows its parent and its depth. A block's identity
// follows from its id and all ids before it. So two requests share a block only if they share the whole prefix up to it.
#pragma once

#include "daemon/tools/trace/trace.h"

#include <cstdint>
#include <vector>

namespace maru::policy_sim {

inline constexpr uint32_t kNoBlock = ~0u;

struct Block {
  uint32_t parent = kNoBlock;
  uint32_t depth = 0;  // blocks above it
  uint64_t digest = 0;
};

struct Arrival {
  uint64_t tick = 0;             // as marud's: milliseconds, above 0; no two requests have the same one
  std::vector<uint32_t> blocks;  // from the head to the tail
};

struct Workload {
  std::vector<Block> blocks;
  std::vector<Arrival> arrivals;
  uint64_t references = 0;

  explicit Workload(const trace::Trace& trace);
};

}  // namespace maru::policy_sim
