// The settings of policies, checked by making them. Apart from the rest of the configuration, which touches nothing but
// its text.
#include "daemon/config/config.h"

namespace maru::daemon {

void check_policies(const std::vector<PoolSpec>& pools, std::vector<ConfigProblem>& problems) {
  for (const PoolSpec& spec : pools) {
    const auto made = make_policy(spec.pool.policy, spec.pool.policy_options, spec.pool.policy_dir);
    if (made) continue;
    // The mistake in an option has the line of the options.
    const bool is_option = made.error().code == EINVAL && spec.lines.contains("policy_options");
    problems.push_back({line_of(spec, is_option ? "policy_options" : "policy"),
                        "pool \"" + printable(spec.pool.name) + "\": policy: " + made.error().doing});
  }
}

}  // namespace maru::daemon
