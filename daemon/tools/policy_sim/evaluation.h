// Every policy at every size: the cells of the table.
#pragma once

#include "daemon/tools/policy_sim/hit_ratio.h"
#include "daemon/tools/policy_sim/options.h"
#include "daemon/tools/policy_sim/workload.h"

#include <string>
#include <vector>

namespace maru::policy_sim {

struct Cell {
  uint64_t pages = 0;
  HitRatio ratio;
  uint64_t evicted = 0;
  uint64_t not_stored = 0;  // blocks that found no memory
};

struct Row {
  std::string policy;
  std::vector<Cell> cells;  // as many as sizes
};

struct Evaluation {
  std::vector<Row> rows;  // as many as policies
  Row belady;
  HitRatio limitless;  // of a cache that evicts nothing
};

// Blocks until all is simulated, on several threads. EINVAL: a size that has less than a page for each region.
Result<Evaluation> evaluate(const Options& options, const Workload& workload);

}  // namespace maru::policy_sim
