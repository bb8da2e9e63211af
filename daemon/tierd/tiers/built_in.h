// The plug-ins that are part of maru-tierd.
#pragma once

#include "maru/tier.h"

#include <string_view>

namespace maru::tierd {

extern const maru_tier_calls kFileTier;
extern const maru_tier_calls kFaultTier;
extern const maru_tier_calls kNullTier;
extern const maru_tier_calls kRespTier;
extern const maru_tier_calls kS3Tier;

// By name; null: there is none of this name.
const maru_tier_calls* built_in_tier(std::string_view name);
// For people: "fault, file, null, resp, s3".
const char* built_in_tier_names();

}  // namespace maru::tierd
