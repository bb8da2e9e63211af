// Why a call fails: the errno, and a sentence for the caller.
#pragma once

#include "maru/adapters.h"

#include <cstdarg>
#include <cstdio>
#include <string>

namespace maru::adapters {

// Writes the sentence (of which the reason keeps as much as it has room for), and returns -code.
[[gnu::format(printf, 3, 4)]] inline int fail(maru_adapters_reason* reason, int code, const char* format, ...) {
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

// A text from a file, for a message: printable, and not longer than a line.
inline std::string shown(const std::string& text) {
  std::string result;
  for (const char character : text.substr(0, 80)) result += character >= ' ' && character <= '~' ? character : '?';
  return text.size() > 80 ? result + "..." : result;
}

}  // namespace maru::adapters
