// Durations, counted in fixed buckets. One thread writes; others get copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace maru::daemon::metrics {

class Histogram {
 public:
  // Upper bounds. The bounds up to a millisecond serve dashboards of the first design; a request that evicts takes longer.
  static constexpr std::array<uint64_t, 9> kBoundsNs = {
      100, 1'000, 10'000, 100'000, 1'000'000, 10'000'000, 100'000'000, 1'000'000'000, 10'000'000'000};

  void add(uint64_t ns) {
    size_t bucket = 0;
    while (bucket < kBoundsNs.size() && ns > kBoundsNs[bucket]) ++bucket;
    ++counts_[bucket];
    sum_ns_ += ns;
  }
  // Of the bucket alone; the last one has no bound.
  uint64_t count(size_t bucket) const { return counts_[bucket]; }
  uint64_t sum_ns() const { return sum_ns_; }

 private:
  std::array<uint64_t, kBoundsNs.size() + 1> counts_ = {};
  uint64_t sum_ns_ = 0;
};

}  // namespace maru::daemon::metrics
