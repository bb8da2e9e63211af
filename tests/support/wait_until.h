// Waiting for what another process does: asks again and again until it is true or far too much time is over. The time is a
// bound for a test that has failed already, never a measurement.
#pragma once

#include "tests/support/random.h"

#include <chrono>
#include <cstdint>
#include <thread>

namespace maru::test {

// $MARU_PATIENCE makes every bound so many times longer: what runs under a sanitizer or on an emulated processor is slow, and
// not wrong.
inline uint32_t far_too_long_ms() { return uint32_t(30'000 * number_from_environment("MARU_PATIENCE", 1)); }
inline std::chrono::milliseconds far_too_long() { return std::chrono::milliseconds(far_too_long_ms()); }

template <typename F>
[[nodiscard]] bool wait_until(F&& is_true, std::chrono::milliseconds at_most = far_too_long()) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace maru::test
