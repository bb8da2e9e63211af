// The yardstick that no policy reaches: Belady's algorithm. It knows the future, and evicts the block whose next use is
// furthest away. It works on single blocks, without chains: the head of a chain may go before its tail. So its hits on blocks
// bound the hits of every policy. Its prefix hits are a by-product of the same cache; published tables count them in this way.
#pragma once

#include "daemon/tools/policy_sim/hit_ratio.h"
#include "daemon/tools/policy_sim/workload.h"

namespace maru::policy_sim {

HitRatio simulate_belady(const Workload& workload, uint64_t pages);

}  // namespace maru::policy_sim
