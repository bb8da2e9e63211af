// The configuration in force, as JSON for people: each setting, with the defaults where it has none. No secrets: a
// token appears by its path.
#pragma once

#include "daemon/hosting/hosted_pool.h"

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace maru::daemon {

// The limits of users: "limits" of all, and each "limit" with others for some.
nlohmann::json limits_json(const Config& config);

std::string config_text(const Config& config, const std::vector<std::unique_ptr<HostedPool>>& pools);

}  // namespace maru::daemon
