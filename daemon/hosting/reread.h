// All that a configuration that was read again changes and that waits for a restart, table by table.
#pragma once

#include "daemon/config/config.h"
#include "daemon/hosting/added_pools.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

// The configuration as it is now; nothing when it cannot be used, and why. It looks up the users and groups that it names,
// which lasts as long as the name service likes. So a thread of its own reads it, and the function owns all that it uses.
struct Reading {
  std::optional<Config> config;
  std::vector<std::string> problems;
};
using Reread = std::function<Reading()>;
// The result of a thread that had no memory for it.
Reading failed_reading();
// For the log: why the configuration stays as it is. Returns the configuration if it can be used.
std::optional<Config> usable(Reading reading);

// One line for each change, for the log and for the service manager: changed keys of tables that are in both, and tables that
// came or went. Also the [[provision]] tables, which marud-provision reads when marud is started. Not for the new pools, which
// are started, and the pools that left (PoolLifecycle::rescan()). For a pool the settings at its start count, else `running`.
std::vector<std::string> waiting_changes(const Config& running, const HostedPools& pools, const Config& fresh);

}  // namespace maru::daemon
