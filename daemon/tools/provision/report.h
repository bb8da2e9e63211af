// The output of marud-provision: tables for people, JSON for programs.
#pragma once

#include "daemon/tools/provision/apply.h"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::daemon::provision {

nlohmann::json machine_json(const Machine& machine);
// One table for each kind of thing that is there.
std::string machine_text(const Machine& machine);

// `file` is the configuration, for the lines of problems.
nlohmann::json plan_json(const Plan& plan);
std::string plan_text(const Plan& plan);
std::string problems_text(const Plan& plan, const std::string& file);

nlohmann::json outcome_json(const ApplyOutcome& outcome);
std::string outcome_text(const ApplyOutcome& outcome);

}  // namespace maru::daemon::provision
