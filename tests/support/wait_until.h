// Waiting for what another process does: asks again and again until it is true or far too much time is over. The time is a
// bound for a test that has failed already, never a measurement.
#pragma once

#include <chrono>
#include <thread>

namespace maru::test {

inline constexpr std::chrono::seconds kFarTooLong{30};

template <typename F>
[[nodiscard]] bool wait_until(F&& is_true, std::chrono::milliseconds at_most = kFarTooLong) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace maru::test
