// What one call of the library needs for its duration: the time, memory of its thread, and its arguments in our types.
#pragma once

#include "libmaru/base/result.h"
#include "maru/maru.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <type_traits>
#include <utility>

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

// Memory of the calling thread that grows and stays. What destructors of the program's own thread-local objects ask for when
// it has gone with its thread already is left behind.
template <typename T>
std::span<T> scratch(size_t n) {
  static_assert(std::is_trivially_destructible_v<T>);
  // Words, which stay usable until the thread is gone, and the one who frees.
  static thread_local T* memory = nullptr;
  static thread_local size_t size = 0;
  struct Owner {
    ~Owner() {
      delete[] std::exchange(memory, nullptr);
      size = 0;
    }
    void hold() const {}
  };
  static thread_local const Owner owner;
  if (size < n) {
    owner.hold();
    const size_t larger = std::max(n, 2 * size);  // many calls in a row may ask for one more each
    T* const more = new T[larger]();
    delete[] std::exchange(memory, more);
    size = larger;
  }
  return {memory, n};
}

}  // namespace maru::client
