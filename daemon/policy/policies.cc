#include "daemon/policy/policies.h"

#include "daemon/policy/built_in.h"
#include "daemon/policy/loaded_policy.h"

#include <algorithm>
#include <array>

namespace maru::daemon {

namespace {

struct BuiltIn {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(OptionReader&);
};

constexpr std::array kBuiltIn = {
    BuiltIn{"lru", make_lru},
    BuiltIn{"clock", make_clock},
    BuiltIn{"fifo", make_fifo},
    BuiltIn{"lfu", make_lfu},
    BuiltIn{"ttl", make_ttl},
    BuiltIn{"s3fifo", make_s3fifo},
    BuiltIn{"size_aware", make_size_aware},
    BuiltIn{"priority", make_priority},
    BuiltIn{"isolated_lru", make_isolated_lru},
    BuiltIn{"odds", make_odds},
    BuiltIn{"none", make_none},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kBuiltIn.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kBuiltIn[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> built_in_policies() { return kNames; }

bool is_built_in_policy(std::string_view name) { return std::find(kNames.begin(), kNames.end(), name) != kNames.end(); }

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options,
                                            const std::string& policy_dir) {
  for (const BuiltIn& each : kBuiltIn) {
    if (each.name != name) continue;
    OptionReader reader(name, options);
    std::unique_ptr<Policy> policy = each.make(reader);
    if (const Result<void> read = reader.finish(); !read) return tl::unexpected(read.error());
    return policy;
  }
  return load_policy(name, options, policy_dir);
}

}  // namespace maru::daemon
