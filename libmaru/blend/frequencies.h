// The frequencies of a rotary embedding, and the checks of its fields.
#pragma once

#include "maru/rope.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>

namespace maru::blend {

// Writes the sentence, and returns -code.
[[gnu::format(printf, 3, 4)]] inline int refuse(maru_rope_reason* reason, int code, const char* format, ...) {
  if (reason != nullptr) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(reason->text, sizeof(reason->text), format, arguments);
    va_end(arguments);
  }
  return -code;
}

using ull = unsigned long long;  // for %llu

// 0 or -EINVAL.
int check_rope(const maru_rope& rope, maru_rope_reason* reason);

// Of a rope that was checked.
inline uint32_t rotary_dim_of(const maru_rope& rope) { return rope.rotary_dim != 0 ? rope.rotary_dim : rope.head_dim; }
inline uint32_t pairs_of(const maru_rope& rope) { return rotary_dim_of(rope) / 2; }
// pairs_of() frequencies, in radians a position.
void frequencies_of(const maru_rope& rope, double* ret_frequencies);

}  // namespace maru::blend
