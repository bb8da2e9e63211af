// Latencies in buckets whose width is 1/32 of their value: percentiles are right to about 3 %, the largest is exact. Another
// process may read the memory during the writes: one writer, any number of readers.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace maru::replay {

class LatencyHistogram {
 public:
  static constexpr uint32_t kSubBits = 5;
  static constexpr uint32_t kBuckets = (64 - kSubBits + 1) << kSubBits;

  void record(uint64_t ns) {
    // There is a single writer, so a load and a store suffice in place of a locked addition.
    raise(counts_[bucket_of(ns)]);
    raise(count_);
    if (ns > max_ns_.load(std::memory_order_relaxed)) max_ns_.store(ns, std::memory_order_relaxed);
  }

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t max_ns() const { return max_ns_.load(std::memory_order_relaxed); }

  // Adds the counts of another histogram, whose writer must have ended.
  void add(const LatencyHistogram& other) {
    for (uint32_t i = 0; i < kBuckets; ++i)
      counts_[i].fetch_add(other.counts_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    count_.fetch_add(other.count(), std::memory_order_relaxed);
    if (other.max_ns() > max_ns()) max_ns_.store(other.max_ns(), std::memory_order_relaxed);
  }

  // The upper end of the bucket in which the quantile lies; 0 when nothing was recorded.
  uint64_t quantile_ns(double quantile) const {
    const uint64_t wanted = uint64_t(quantile * double(count()) + 0.5);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i].load(std::memory_order_relaxed);
      if (seen != 0 && seen >= wanted) return upper_end(i) < max_ns() ? upper_end(i) : max_ns();
    }
    return max_ns();
  }

  // Values below 32 have a bucket each; above, the five bits after the leading one choose.
  static uint32_t bucket_of(uint64_t ns) {
    if (ns < (1u << kSubBits)) return uint32_t(ns);
    const uint32_t shift = uint32_t(std::bit_width(ns)) - 1 - kSubBits;
    return ((shift + 1) << kSubBits) + uint32_t((ns >> shift) - (1u << kSubBits));
  }
  static uint64_t upper_end(uint32_t bucket) {
    if (bucket < (1u << kSubBits)) return bucket;
    const uint32_t shift = (bucket >> kSubBits) - 1;
    const uint64_t leading = (1ull << kSubBits) + (bucket & ((1u << kSubBits) - 1));
    return ((leading + 1) << shift) - 1;
  }

 private:
  static void raise(std::atomic<uint64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> max_ns_{0};
};

}  // namespace maru::replay
