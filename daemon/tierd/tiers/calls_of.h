// The table of maru/tier.h for a tier that is a class with completions (completions.h), and the opening of it from options.
//
// A plug-in is a type with
//   Tier, Wish         the class, and the argument of its open(const Wish&)
//   kName              constant
//   read(reader, wish) fills the wish; returns the first mistake, empty: there is none
//   problem(error)     a sentence about an open() that failed
#pragma once

#include "daemon/tierd/tiers/options.h"
#include "libmaru/base/result.h"
#include "maru/tier.h"

#include <cerrno>
#include <cstdio>
#include <new>
#include <string_view>

namespace maru::tierd {

template <typename Plugin>
typename Plugin::Tier& tier_of(maru_tier* tier) {
  return *reinterpret_cast<typename Plugin::Tier*>(tier);
}

template <typename Plugin>
int open_tier(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  const auto refuse = [&](int code, const std::string& text) {
    std::snprintf(problem, problem_bytes, "%s", text.c_str());
    return -code;
  };
  try {
    OptionReader reader(options, n);
    typename Plugin::Wish wish;
    if (const std::string mistake = Plugin::read(reader, wish); !mistake.empty()) return refuse(EINVAL, mistake);
    auto tier = Plugin::Tier::open(wish);
    if (!tier) return refuse(tier.error().code, Plugin::problem(tier.error()));
    *ret_tier = reinterpret_cast<maru_tier*>(tier->release());
    return 0;
  } catch (const std::bad_alloc&) {
    std::snprintf(problem, problem_bytes, "no memory is left to open a tier of the kind %s", Plugin::kName);
    return -ENOMEM;
  }
}

// Without list() of the class there is none, and likewise with groups.
template <typename Plugin>
constexpr maru_tier_calls calls_of() {
  using Tier = typename Plugin::Tier;
  maru_tier_calls calls = {};
  calls.size = sizeof(calls);
  calls.abi = MARU_TIER_ABI;
  calls.name = Plugin::kName;
  calls.open = open_tier<Plugin>;
  calls.close = [](maru_tier* tier) { delete &tier_of<Plugin>(tier); };
  calls.event_descriptor = [](maru_tier* tier) { return tier_of<Plugin>(tier).completions().descriptor(); };
  calls.submit = [](maru_tier* tier, const maru_tier_request* requests, size_t n) {
    return tier_of<Plugin>(tier).submit(requests, n);
  };
  calls.complete = [](maru_tier* tier, maru_tier_completion* done, size_t n) {
    return tier_of<Plugin>(tier).completions().take(done, n);
  };
  calls.get_properties = [](maru_tier* tier, maru_tier_properties* properties) {
    tier_of<Plugin>(tier).get_properties(*properties);
  };
  calls.get_usage = [](maru_tier* tier, maru_tier_usage* usage) { tier_of<Plugin>(tier).get_usage(*usage); };
  calls.get_health = [](maru_tier* tier, maru_tier_health* health) { tier_of<Plugin>(tier).get_health(*health); };
  calls.list = [](maru_tier*, uint64_t*, maru_tier_entry*, size_t) { return -EOPNOTSUPP; };
  if constexpr (requires(Tier& tier, uint64_t* cursor, maru_tier_entry* entries) { tier.list(cursor, entries, 1); })
    calls.list = [](maru_tier* tier, uint64_t* cursor, maru_tier_entry* entries, size_t n) {
      return tier_of<Plugin>(tier).list(cursor, entries, n);
    };
  if constexpr (requires(Tier& tier, maru_tier_group& group) { tier.get_group(std::string_view(), group); }) {
    calls.get_group = [](maru_tier* tier, const void* name, uint32_t bytes, maru_tier_group* group) {
      tier_of<Plugin>(tier).get_group({static_cast<const char*>(name), bytes}, *group);
    };
    calls.list_groups = [](maru_tier* tier, const maru_tier_group* after, maru_tier_group* groups, size_t n) {
      return tier_of<Plugin>(tier).list_groups(after, groups, n);
    };
    calls.list_oldest = [](maru_tier* tier, const void* name, uint32_t bytes, maru_tier_entry* entries, size_t n) {
      return tier_of<Plugin>(tier).list_oldest({static_cast<const char*>(name), bytes}, entries, n);
    };
  }
  return calls;
}

}  // namespace maru::tierd
