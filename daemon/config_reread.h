// All that a configuration that was read again changes and that waits for a restart, table by table.
#pragma once

#include "daemon/added_pools.h"
#include "daemon/config.h"

#include <string>
#include <vector>

namespace maru::daemon {

// One line for each, for the log and for the service manager: keys of tables that are in both, tables that came or went, and
// the [[provision]] tables, which marud-provision reads when marud is started. Without the pools that came, which are started,
// and those that left (DeviceCommands::rescan()). Of the pools what they were begun with counts, else `running`.
std::vector<std::string> waiting_changes(const Config& running, const HostedPools& pools, const Config& fresh);

}  // namespace maru::daemon
