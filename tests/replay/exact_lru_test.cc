#include "daemon/tools/replay/exact_lru.h"

#include <cstdlib>
#include <gtest/gtest.h>

namespace maru::replay {
namespace {

trace::Request request_of(std::vector<uint64_t> ids) { return trace::Request{std::move(ids)}; }

TEST(ExactLru, CountsOnlyTheLeadingBlocksThatArePresent) {
  ExactLru lru(8);
  EXPECT_EQ(lru.request(request_of({1, 2, 3})), 0u);
  EXPECT_EQ(lru.request(request_of({1, 2, 9, 3})), 2u);
  EXPECT_EQ(lru.request(request_of({7, 1, 2})), 0u);
}

TEST(ExactLru, EvictsTheTailOfTheOldestChainFirst) {
  ExactLru lru(4);
  lru.request(request_of({1, 2, 3}));
  lru.request(request_of({4, 5}));  // 3 goes, the head of the chain stays
  EXPECT_EQ(lru.evicted(), 1u);
  EXPECT_EQ(lru.request(request_of({1, 2, 3})), 2u);
}

TEST(ExactLru, AHitMakesABlockHot) {
  ExactLru lru(2);
  lru.request(request_of({1}));
  lru.request(request_of({2}));
  EXPECT_EQ(lru.request(request_of({1})), 1u);
  lru.request(request_of({3}));  // 2 is the coldest now
  EXPECT_EQ(lru.request(request_of({1})), 1u);
  EXPECT_EQ(lru.request(request_of({2})), 0u);
}

TEST(ExactLru, WithoutCapacityNothingIsEvicted) {
  ExactLru lru(0);
  for (uint64_t id = 0; id < 1000; ++id) lru.request(request_of({id}));
  EXPECT_EQ(lru.request(request_of({0})), 1u);
  EXPECT_EQ(lru.evicted(), 0u);
}

// The ratios were computed by an independent simulation of the same trace (in Python, before this code existed).
TEST(ExactLru, ReachesTheKnownHitRatiosOfTheTrace) {
  const char* path = std::getenv("MARU_TRACE");
  ASSERT_NE(path, nullptr) << "MARU_TRACE names the trace";
  const Result<trace::Trace> trace = trace::read_trace(path, 0);
  ASSERT_TRUE(trace) << trace.error().text();
  EXPECT_NEAR(simulate_lru(*trace, trace->distinct_blocks / 50).ratio, 0.0793, 0.0001);
  EXPECT_NEAR(simulate_lru(*trace, trace->distinct_blocks / 5).ratio, 0.3453, 0.0001);
  EXPECT_NEAR(simulate_lru(*trace, 0).ratio, 0.3664, 0.0001);
}

}  // namespace
}  // namespace maru::replay
