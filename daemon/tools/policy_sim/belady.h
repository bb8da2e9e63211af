// The yardstick that no policy reaches: Belady's algorithm, which knows the future and gives up the block whose next use is
// furthest away. It works on single blocks, without chains: the head of a chain may go before its tail. So its hits on blocks
// bound those of every policy; its prefix hits are those that the same cache happens to give, and follow the published tables.
#pragma once

#include "daemon/tools/policy_sim/hit_ratio.h"
#include "daemon/tools/policy_sim/workload.h"

namespace maru::policy_sim {

HitRatio simulate_belady(const Workload& workload, uint64_t pages);

}  // namespace maru::policy_sim
