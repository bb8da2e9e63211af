// Which sanitizer this program was built with: a few tests cannot tell what they should under one, and say so.
#pragma once

namespace maru::test {

#if defined(__has_feature)  // clang; g++ has macros instead
#define MARU_HAS_FEATURE(name) __has_feature(name)
#else
#define MARU_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || MARU_HAS_FEATURE(address_sanitizer)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || MARU_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif

#undef MARU_HAS_FEATURE

}  // namespace maru::test
