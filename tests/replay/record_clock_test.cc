// The clock of recordings says what the kernel's does, over comparisons of the two and in several threads.
#include "libmaru/record/clock.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace maru::record {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;  // from which on the clock does not believe the counter

TEST(RecordClock, IsTheMonotonicClockWithinAMillisecond) {
  Clock clock;
  const uint64_t end = clock_ns() + 2500 * kMillisecond;  // two comparisons
  const auto look = [&] {
    for (uint64_t after = 0; after < end;) {
      const uint64_t before = clock_ns(), said = clock.now_ns();
      after = clock_ns();
      ASSERT_GT(said + kMillisecond, before);
      ASSERT_LT(said, after + kMillisecond);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(look);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace maru::record
