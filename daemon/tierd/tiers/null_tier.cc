// The tier that keeps nothing: each store succeeds, each lookup finds nothing. It measures the rest of maru-tierd.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/completions.h"
#include "daemon/tierd/tiers/options.h"

#include <cerrno>
#include <cstdio>

namespace maru::tierd {
namespace {

struct NullTier {
  Completions completions;
};

NullTier& of(maru_tier* tier) { return *reinterpret_cast<NullTier*>(tier); }

int open_null(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  OptionReader reader(options, n);
  if (const std::string mistake = reader.mistake("none"); !mistake.empty()) {
    std::snprintf(problem, problem_bytes, "%s", mistake.c_str());
    return -EINVAL;
  }
  auto* const tier = new NullTier;
  if (!tier->completions.is_open()) {
    delete tier;
    std::snprintf(problem, problem_bytes, "no descriptor is left; raise the limit of open files");
    return -EMFILE;
  }
  *ret_tier = reinterpret_cast<maru_tier*>(tier);
  return 0;
}

size_t submit(maru_tier* tier, const maru_tier_request* requests, size_t n) {
  for (size_t i = 0; i < n; ++i)
    of(tier).completions.put({requests[i].ticket, requests[i].kind == MARU_TIER_STORE ? 0 : -ENOENT, 0, 0, 0});
  return n;
}

void get_properties(maru_tier*, maru_tier_properties* ret_properties) {
  *ret_properties = {.size = sizeof(*ret_properties),
                     .capabilities = MARU_TIER_LISTS | MARU_TIER_BOUNDS_SELF,
                     .reserved0 = 0,
                     .entry_bytes_max = 0,
                     .depth_bytes = 0};
}

void get_usage(maru_tier*, maru_tier_usage* ret_usage) {
  *ret_usage = {};
  ret_usage->size = sizeof(*ret_usage);
}

void get_health(maru_tier*, maru_tier_health* ret_health) {
  *ret_health = {};
  ret_health->size = sizeof(*ret_health);
  ret_health->is_ready = 1;
}

}  // namespace

const maru_tier_calls kNullTier = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "null",
    .open = open_null,
    .close = [](maru_tier* tier) { delete &of(tier); },
    .event_descriptor = [](maru_tier* tier) { return of(tier).completions.descriptor(); },
    .submit = submit,
    .complete = [](maru_tier* tier, maru_tier_completion* done,
                   size_t n) { return of(tier).completions.take(done, n); },
    .get_properties = get_properties,
    .get_usage = get_usage,
    .get_health = get_health,
    .list = [](maru_tier*, uint64_t*, maru_tier_entry*, size_t) { return 0; },
    .get_group = nullptr,
    .list_groups = nullptr,
    .list_oldest = nullptr,
};

}  // namespace maru::tierd
