// The hits of a cache.
#pragma once

#include <cstdint>

namespace maru::policy_sim {

struct HitRatio {
  uint64_t references = 0;   // blocks asked for
  uint64_t prefix_hits = 0;  // of them, found with everything before them
  uint64_t block_hits = 0;   // found at all

  double prefix() const { return references == 0 ? 0 : double(prefix_hits) / double(references); }
  double block() const { return references == 0 ? 0 : double(block_hits) / double(references); }
};

}  // namespace maru::policy_sim
