// Pools that were added at run time from a file of their own (marudctl device add FILE.toml). marud starts them again
// after its own end: the state directory keeps the text of the file, once for each pool, until the pool is removed. A
// pool that the configuration describes by now is the configuration's alone.
#pragma once

#include "daemon/config/config.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/state_file.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace maru::daemon {

using HostedPools = std::vector<std::unique_ptr<HostedPool>>;

// All problems in one line.
std::string problems_text(const std::vector<ConfigProblem>& problems);

// Fills in the settings that a pool takes over from marud as a whole, wherever it is described.
void complete_spec(const Config& config, PoolSpec& spec);

// The pools that the text of a file describes, ready to be started. EINVAL: its mistakes.
Result<std::vector<PoolSpec>> read_added(const std::string& toml, const Config& config);
// Of a file that an administrator adds now: it has no setting without effect, and unless root or marud's own user asks
// (`of_owner`) it has no program run. EINVAL likewise.
Result<std::vector<PoolSpec>> read_addition(const std::string& toml, const Config& config, bool of_owner);

// In the log, of a pool that has its place and is tried again (pool_lifecycle.h).
void say_that_it_is_without(const PoolSpec& spec, const Error& why);

// At marud's start. A pool that cannot be opened is logged and does not keep the others from serving: it has its place,
// and is tried again (pool_lifecycle.h). An error: a pool that the configuration says is required, or no pool at all
// can be used or waits.
Result<void> start_configured_pools(const Config& config, const StateDirectory& state,
                                    std::map<std::string, FileDescriptor>& stored, HostedPools& pools, uint64_t now_ms);

// Starts the added pools, after the configured pools. A pool whose file is bad by now is logged; the next start tries it again,
// until it is removed.
void start_added_pools(const Config& config, const StateDirectory& state, std::map<std::string, FileDescriptor>& stored,
                       HostedPools& pools, uint64_t now_ms);

}  // namespace maru::daemon
