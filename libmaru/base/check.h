// MARU_CHECK: a programmer's error, on in every build. Never for a state that another process can cause.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace maru {
[[noreturn]] inline void check_failed(const char* condition, const char* message, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message);
  std::abort();
}
}  // namespace maru

// `message` says which rule would break if this were false.
#define MARU_CHECK(condition, message) \
  ((condition) ? void(0) : ::maru::check_failed(#condition, message, __FILE__, __LINE__))
