#include "daemon/tools/replay/latency_histogram.h"

#include <gtest/gtest.h>
#include <memory>

namespace maru::replay {
namespace {

TEST(LatencyHistogram, BucketsFollowEachOtherWithoutGapOrOverlap) {
  for (uint32_t bucket = 1; bucket < LatencyHistogram::kBuckets; ++bucket) {
    const uint64_t first = LatencyHistogram::upper_end(bucket - 1) + 1;
    ASSERT_EQ(LatencyHistogram::bucket_of(first), bucket);
    ASSERT_EQ(LatencyHistogram::bucket_of(LatencyHistogram::upper_end(bucket)), bucket);
  }
  EXPECT_EQ(LatencyHistogram::bucket_of(UINT64_MAX), LatencyHistogram::kBuckets - 1);
}

TEST(LatencyHistogram, PercentilesAreRightToThreePercent) {
  const auto histogram = std::make_unique<LatencyHistogram>();
  for (uint64_t ns = 1; ns <= 100'000; ++ns) histogram->record(ns);
  EXPECT_NEAR(double(histogram->quantile_ns(0.5)), 50'000, 1'600);
  EXPECT_NEAR(double(histogram->quantile_ns(0.99)), 99'000, 3'100);
  EXPECT_EQ(histogram->quantile_ns(1.0), 100'000u);
  EXPECT_EQ(histogram->max_ns(), 100'000u);
  EXPECT_EQ(histogram->count(), 100'000u);
}

TEST(LatencyHistogram, AnEmptyOneSaysNothing) {
  const auto histogram = std::make_unique<LatencyHistogram>();
  EXPECT_EQ(histogram->quantile_ns(0.5), 0u);
  EXPECT_EQ(histogram->max_ns(), 0u);
}

TEST(LatencyHistogram, ASumHoldsBoth) {
  const auto low = std::make_unique<LatencyHistogram>(), high = std::make_unique<LatencyHistogram>();
  for (int i = 0; i < 90; ++i) low->record(10);
  for (int i = 0; i < 10; ++i) high->record(1'000'000);
  low->add(*high);
  EXPECT_EQ(low->count(), 100u);
  EXPECT_EQ(low->quantile_ns(0.9), 10u);
  EXPECT_GT(low->quantile_ns(0.95), 900'000u);
  EXPECT_EQ(low->max_ns(), 1'000'000u);
}

}  // namespace
}  // namespace maru::replay
