#include "daemon/tools/policy_sim/belady.h"

#include <set>
#include <unordered_map>
#include <utility>

namespace maru::policy_sim {

HitRatio simulate_belady(const Workload& workload, uint64_t pages) {
  // When each reference's block is asked for again, counted in references.
  std::vector<uint64_t> next(workload.references);
  std::vector<uint64_t> ahead(workload.blocks.size(), ~uint64_t{0});
  uint64_t position = workload.references;
  for (size_t i = workload.arrivals.size(); i-- > 0;) {
    const std::vector<uint32_t>& blocks = workload.arrivals[i].blocks;
    for (size_t k = blocks.size(); k-- > 0;) {
      next[--position] = ahead[blocks[k]];
      ahead[blocks[k]] = position;
    }
  }

  HitRatio ratio;
  std::set<std::pair<uint64_t, uint32_t>> present;           // by next use
  std::vector<uint64_t> next_of(workload.blocks.size(), 0);  // 0: not there; no next use is the first reference
  for (const Arrival& arrival : workload.arrivals) {
    bool is_prefix = true;
    for (const uint32_t block : arrival.blocks) {
      const uint64_t again = next[ratio.references++];
      const bool is_hit = next_of[block] != 0;
      is_prefix &= is_hit;
      ratio.block_hits += is_hit;
      ratio.prefix_hits += is_prefix;
      if (is_hit) present.erase({next_of[block], block});
      present.insert({again, block});
      next_of[block] = again;
      if (present.size() <= pages) continue;
      const auto furthest = std::prev(present.end());
      next_of[furthest->second] = 0;
      present.erase(furthest);
    }
  }
  return ratio;
}

}  // namespace maru::policy_sim
