// Why a block is taken away.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::daemon {

enum class EvictReason : uint8_t { kRequest, kBackground, kTakeover, kExpired, kAdmin };
inline constexpr size_t kEvictReasonCount = 5;

}  // namespace maru::daemon
