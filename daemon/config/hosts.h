// Keys of a [[pool]] about hosts: profile, coherent, hosts, suspect_after_ms, fencing_command, fencing_names,
// fencing_timeout_ms.
#pragma once

#include "daemon/config/config.h"

#include <vector>

namespace maru::daemon {

class ConfigTable;

void read_sharing(ConfigTable& table, PoolSpec& spec);
void check_sharing(const PoolSpec& spec, std::vector<ConfigProblem>& problems);

}  // namespace maru::daemon
