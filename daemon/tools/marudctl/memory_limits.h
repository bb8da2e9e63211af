// For marudctl doctor: processes that the kernel will kill because a control group may have less memory than the pool
// that is used in it.
#pragma once

#include "daemon/tools/marudctl/machine.h"

namespace maru::marudctl {

// `status` and `clients` are marud's replies. Reads files below `root` alone. Processes of one group share one diagnosis.
std::vector<Diagnosis> judge_limits(const std::string& root, const nlohmann::json& status,
                                    const nlohmann::json& clients);

}  // namespace maru::marudctl
