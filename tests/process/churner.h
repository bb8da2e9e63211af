// A worker that does everything to a small set of keys that all workers share: the one that is killed at random instants.
// It checks every byte that it reads, and ends with status 3 when something is not as it must be.
#pragma once

#include <string>
#include <vector>

namespace maru::test {

// Keys that churners use: roots, and chains in which each key's parent is the one before.
inline constexpr uint32_t kChurnRoots = 300;
inline constexpr uint32_t kChurnChains = 24;
inline constexpr uint32_t kChurnDepth = 14;

inline std::string churn_root(uint64_t i) { return "root " + std::to_string(i); }
inline std::string churn_link(uint64_t chain, uint64_t depth) {
  return "chain " + std::to_string(chain) + " link " + std::to_string(depth);
}

}  // namespace maru::test
