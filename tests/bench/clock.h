// Time, and how to keep the compiler from removing what is being timed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <time.h>
#include <vector>

namespace maru::bench {

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1'000'000'000 + uint64_t(time.tv_nsec);
}

// The value counts as used, and memory as read and written.
template <class T>
inline void keep(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// Adds up the timed parts of a sample, so that preparing keys and putting things back stay outside.
class Stopwatch {
 public:
  void start() { started_ns_ = now_ns(); }
  void stop() { total_ns_ += now_ns() - started_ns_; }
  double per(uint64_t units) const { return double(total_ns_) / double(units); }
  uint64_t total_ns() const { return total_ns_; }

 private:
  uint64_t started_ns_ = 0;
  uint64_t total_ns_ = 0;
};

// The median of the laps of a sample, in nanoseconds per unit: a lap in which the machine did something else for a
// millisecond does not count. Only for work whose every lap is alike; where something happens now and then (a cache is
// refilled), the mean without the slowest fifth is taken.
class Laps {
 public:
  void add(uint64_t ns, uint64_t units) { laps_.push_back(double(ns) / double(units)); }
  bool empty() const { return laps_.empty(); }
  double median() {
    const auto middle = laps_.begin() + std::ptrdiff_t(laps_.size() / 2);
    std::nth_element(laps_.begin(), middle, laps_.end());
    return *middle;
  }
  // The mean without the slowest fifth of the laps, and with them.
  double trimmed_mean() {
    std::sort(laps_.begin(), laps_.end());
    return mean_of(laps_.size() - laps_.size() / 5);
  }
  double mean() const { return mean_of(laps_.size()); }

 private:
  double mean_of(size_t count) const {
    return std::accumulate(laps_.begin(), laps_.begin() + std::ptrdiff_t(count), 0.0) / double(count);
  }
  std::vector<double> laps_;
};

// Runs work(begin, end) over [0, units) in laps.
template <class Work>
double typical_ns(uint64_t units, Work work) {
  constexpr uint64_t kLaps = 25;
  Laps laps;
  for (uint64_t lap = 0; lap < kLaps; ++lap) {
    const uint64_t begin = units * lap / kLaps, end = units * (lap + 1) / kLaps;
    if (begin == end) continue;
    const uint64_t started_ns = now_ns();
    work(begin, end);
    laps.add(now_ns() - started_ns, end - begin);
  }
  return laps.median();
}

}  // namespace maru::bench
