#include "daemon/tools/policy_sim/workload.h"

#include <algorithm>
#include <unordered_map>

namespace maru::policy_sim {
namespace {

// Good enough to tell blocks apart and to spread them over a policy's tables (the finaliser of SplitMix64).
uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

}  // namespace

Workload::Workload(const trace::Trace& trace) {
  std::unordered_map<uint64_t, uint32_t> numbers;  // by digest
  uint64_t tick = 0;
  arrivals.reserve(trace.requests.size());
  for (const trace::Request& request : trace.requests) {
    // Traces round their times; requests that came at once have an order all the same.
    tick = std::max(tick + 1, request.time_ms);
    Arrival arrival = {tick, {}};
    arrival.blocks.reserve(request.hash_ids.size());
    uint32_t parent = kNoBlock;
    uint64_t digest = 0;
    for (const uint64_t id : request.hash_ids) {
      digest = mixed(digest ^ mixed(id));
      const auto [found, is_new] = numbers.try_emplace(digest, uint32_t(blocks.size()));
      if (is_new) blocks.push_back({parent, uint32_t(arrival.blocks.size()), digest});
      parent = found->second;
      arrival.blocks.push_back(parent);
    }
    references += arrival.blocks.size();
    arrivals.push_back(std::move(arrival));
  }
}

}  // namespace maru::policy_sim
