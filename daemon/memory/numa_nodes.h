// Which NUMA nodes have memory now. libnuma looks once, when a process starts, and memory comes and goes while marud runs.
#pragma once

#include <set>
#include <string>

namespace maru::daemon {

// The nodes that this process may use. The files are for tests. If a machine does not tell, libnuma's nodes count.
std::set<int> nodes_with_memory(const std::string& machine = "/sys/devices/system/node/has_memory",
                                const std::string& process = "/proc/self/status");

// For people: "found no memory on node 7, expected one of the nodes 0, 1".
std::string no_memory_text(int node, const std::set<int>& nodes);

}  // namespace maru::daemon
