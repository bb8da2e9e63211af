// A layout as bytes, and the values made from them.
#pragma once

#include "maru/layout.h"

#include <array>

namespace maru::layout {

using Encoded = std::array<uint8_t, MARU_LAYOUT_ENCODED_BYTES>;
using Fingerprint = std::array<uint8_t, MARU_LAYOUT_FINGERPRINT_BYTES>;

inline constexpr uint32_t kVersion = 1;  // of the bytes and of the JSON

// Of a checked, complete layout.
Encoded encode(const maru_layout& layout);
Fingerprint fingerprint(const maru_layout& layout);

}  // namespace maru::layout
