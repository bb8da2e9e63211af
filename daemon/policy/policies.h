// The policies that marud knows: those built in, and those loaded from the policy folder.
#pragma once

#include "libmaru/base/result.h"
#include "maru/policy.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::daemon {

// name -> value, as text
using PolicyOptions = std::vector<std::pair<std::string, std::string>>;

// In the order of the documentation; the first is the default.
std::span<const std::string_view> built_in_policies();
bool is_built_in_policy(std::string_view name);

// A policy of this name. Errors (errno, the found value, the expected value, the remedy): ENOENT no such policy, neither built
// in nor in `policy_dir`; EPERM the folder or the file does not belong to root, or others may write it; EINVAL an option that
// the policy does not have, or a value that it cannot have; ELIBACC the shared object cannot be loaded or has another ABI.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options,
                                            const std::string& policy_dir);

}  // namespace maru::daemon
