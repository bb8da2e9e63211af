// The evaluation as text for people and as JSON for machines.
#pragma once

#include "daemon/tools/policy_sim/evaluation.h"

#include <nlohmann/json.hpp>
#include <string>

namespace maru::policy_sim {

std::string text_report(const Options& options, const Workload& workload, const Evaluation& evaluation);
nlohmann::json json_report(const Options& options, const Workload& workload, const Evaluation& evaluation);

}  // namespace maru::policy_sim
