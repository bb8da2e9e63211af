// The devices that a configuration names by their paths: a service manager can wait for them before it starts marud. A
// pool whose device is found by uuid, NUMA node or kind has no path that is known before marud looks.
#pragma once

#include <string>
#include <vector>

namespace maru::daemon {

struct ConfigProblem;

// Lists the paths below /dev of all pools with backend = "dax", each once, in the order of the file, in their normal spelling;
// links are not followed. Needs only the file of this machine: it looks up no user, group or policy, so it works while the
// machine boots and no name service answers yet. A file that cannot be read, that is no TOML, or whose pools, backends or
// devices have another type becomes problems; marud's start reports the other mistakes. Blocks as long as the file does.
std::vector<std::string> named_devices(const std::string& config_path, std::vector<ConfigProblem>& problems);

}  // namespace maru::daemon
