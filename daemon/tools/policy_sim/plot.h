// The evaluation as a picture: prefix hit ratio over the size of the pool, one line for each policy, as a stand-alone SVG.
#pragma once

#include "daemon/tools/policy_sim/evaluation.h"

#include <string>

namespace maru::policy_sim {

std::string draw_plot(const Options& options, const Workload& workload, const Evaluation& evaluation);

}  // namespace maru::policy_sim
