#include "daemon/tierd/tiers/built_in.h"

namespace maru::tierd {

const maru_tier_calls* built_in_tier(std::string_view name) {
  for (const maru_tier_calls* calls : {&kFaultTier, &kFileTier, &kNullTier, &kRespTier, &kS3Tier})
    if (name == calls->name) return calls;
  return nullptr;
}

const char* built_in_tier_names() { return "fault, file, null, resp, s3"; }

}  // namespace maru::tierd
