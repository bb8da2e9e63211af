// The time, and the arguments of a call in our types.
#pragma once

#include "libmaru/base/result.h"
#include "maru/maru.h"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>

namespace maru::client {

// Unix milliseconds, of the clock's last tick (1 to 4 ms old): read from memory that the kernel shares, without a call.
inline uint64_t now_ms() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

inline std::span<const std::byte> bytes_of(const maru_key& key) {
  return {static_cast<const std::byte*>(key.data), key.size};
}

inline int status_of(const Error& error) { return -error.code; }

}  // namespace maru::client
