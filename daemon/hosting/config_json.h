// The configuration in force, as JSON for people: what was configured, with the defaults of what was not. No secrets: of a
// token there is the path.
#pragma once

#include "daemon/hosting/hosted_pool.h"

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace maru::daemon {

// What users may have: "limits" of everybody, and each "limit" that says otherwise for some.
nlohmann::json limits_json(const Config& config);

std::string config_text(const Config& config, const std::vector<std::unique_ptr<HostedPool>>& pools);

}  // namespace maru::daemon
