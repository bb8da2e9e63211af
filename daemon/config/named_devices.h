// The devices that a configuration names by their paths: a service manager can wait for them before it starts marud. A
// pool whose device is found by uuid, NUMA node or kind has no path that is known before marud looks.
#pragma once

#include <string>
#include <vector>

namespace maru::daemon {

struct ConfigProblem;

// Of all pools with backend = "dax": the paths below /dev, each once, in the order of the file, in their normal
// spelling; links are not followed. Needs nothing of the machine but the file: no user, group or policy is looked up,
// so that it can be asked while the machine boots and no name service answers yet. A file that cannot be read, that is
// no TOML, or whose pools, backends or devices are of another type becomes problems; marud's start reports the other
// mistakes. Blocks as long as the file does.
std::vector<std::string> named_devices(const std::string& config_path, std::vector<ConfigProblem>& problems);

}  // namespace maru::daemon
