#include "libmaru/record/clock.h"

#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace maru::record {
namespace {

constexpr uint64_t kComparePauseNs = 1'000'000'000;
constexpr long kFirstPauseNs = 2'000'000;
constexpr int64_t kOffNsMax = 1'000'000;

// Without order: the processor may look some instructions earlier or later.
uint64_t counter() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

// It then runs at one pace, and is the same on all processors.
bool is_the_kernels_clock() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return bool(file >> name) && name == "tsc";
#else
  return false;
#endif
}

}  // namespace

uint64_t clock_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

// The shortest of some pairs: a thread may be stopped between its two looks.
Clock::Anchor Clock::look() {
  Anchor best;
  uint64_t shortest = ~uint64_t{0};
  for (int i = 0; i < 5; ++i) {
    const uint64_t before = counter(), ns = clock_ns(), lasted = counter() - before;
    if (lasted >= shortest) continue;
    shortest = lasted;
    best = {before + lasted / 2, ns, 0};
  }
  return best;
}

Clock::Clock() {
  if (!is_the_kernels_clock()) return;
  first_ = look();
  const timespec pause = {0, kFirstPauseNs};
  ::nanosleep(&pause, nullptr);
  has_counter_ = true;
  compare();
}

void Clock::compare() {
  if (is_comparing_.test_and_set(std::memory_order_acquire)) return;
  const uint64_t number = compared_;  // under the flag, as all of this
  Anchor& next = anchors_[number % std::size(anchors_)];
  next = look();
  next.pace = uint64_t((__uint128_t(next.ns - first_.ns) << 32) / (next.counter - first_.counter));
  if (const Anchor* before = anchor_.load(std::memory_order_relaxed)) {
    const auto off = int64_t(before->at(next.counter) - next.ns);
    // After a long pause an older pace proves nothing.
    const bool is_fresh = next.ns - before->ns < 2 * kComparePauseNs;
    if (is_fresh && (off > kOffNsMax || off < -kOffNsMax)) has_counter_.store(false, std::memory_order_relaxed);
  }
  anchor_.store(&next, std::memory_order_release);
  ++compared_;
  is_comparing_.clear(std::memory_order_release);
}

uint64_t Clock::now_ns() {
  if (!has_counter_.load(std::memory_order_relaxed)) return clock_ns();  // as where it is set
  const Anchor& anchor = *anchor_.load(std::memory_order_acquire);
  const uint64_t count = counter(), ns = anchor.at(count);
  if (ns - anchor.ns <= kComparePauseNs) return ns;
  compare();
  return clock_ns();
}

}  // namespace maru::record
