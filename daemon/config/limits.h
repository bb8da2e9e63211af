// Limits of users beside pools that they leave nothing of.
#pragma once

#include "daemon/config/config.h"

#include <vector>

namespace maru::daemon {

// A limit of bytes below one region of every pool lets its user have no memory at all, which no administrator means.
// Does not warn where a pool lies in a file or on a device: such a pool has the regions it was formatted with.
void check_limits_of_bytes(const Config& config, std::vector<ConfigProblem>& problems);

}  // namespace maru::daemon
