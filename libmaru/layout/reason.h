// Why a call fails: the errno, and a sentence for the caller.
#pragma once

#include "maru/layout.h"

#include <cstdarg>
#include <cstdio>

namespace maru::layout {

// Writes the sentence (of which the reason keeps as much as it has room for), and returns -code.
[[gnu::format(printf, 3, 4)]] inline int fail(maru_layout_reason* reason, int code, const char* format, ...) {
  if (reason != nullptr) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(reason->text, sizeof(reason->text), format, arguments);
    va_end(arguments);
  }
  return -code;
}

// For %llu.
using ull = unsigned long long;

}  // namespace maru::layout
