// How dear a block is to its engine by its content, from 1 (first to go) to 5. Temporary buffers are gone when the kernel
// returns; a KV block saves a prefill. Gradients, which live for one backward pass, count like activations.
#pragma once

#include "maru/maru.h"
#include "maru/policy.h"

#include <cstdint>

namespace maru::daemon {

inline constexpr uint32_t kContentClassMax = 5;

// `is_warm`: used at least once after it was stored; only LoRA weights differ by it. Unknown types count as KV
// cache, the default.
constexpr uint32_t content_class(uint32_t content_type, bool is_warm) {
  switch (content_type) {
    case MARU_CONTENT_TEMPORARY: return 1;
    case MARU_CONTENT_ACTIVATION:
    case MARU_CONTENT_GRADIENT: return 2;
    case MARU_CONTENT_LORA_WEIGHT: return is_warm ? 4 : 3;
    default: return kContentClassMax;
  }
}

}  // namespace maru::daemon
