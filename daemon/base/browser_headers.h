// Headers of every reply by HTTP, for browsers.
#pragma once

#include <utility>

namespace maru::daemon {

inline constexpr std::pair<const char*, const char*> kSafetyHeaders[] = {
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"}};

// Content-Security-Policy. The page may load its own parts and ask the program that serves it, and nothing else; no text that
// came from a client can become a script in it. Data is nothing to show at all.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
inline constexpr const char* kDataPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox";

}  // namespace maru::daemon
