// A policy from a shared object in the policy folder.
#pragma once

#include "daemon/policy/policies.h"

namespace maru::daemon {

// As make_policy(), for a name that is not built in.
Result<std::unique_ptr<Policy>> load_policy(std::string_view name, const PolicyOptions& options,
                                            const std::string& policy_dir);

}  // namespace maru::daemon
