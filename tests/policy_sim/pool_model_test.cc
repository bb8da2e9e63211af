#include "daemon/tools/policy_sim/pool_model.h"
#include "daemon/policy/policies.h"
#include "daemon/tools/replay/exact_lru.h"
#include "tests/policy_sim/workloads.h"

#include <gtest/gtest.h>

namespace maru::policy_sim {
namespace {

std::unique_ptr<Policy> policy_of(const char* name) {
  auto policy = daemon::make_policy(name, {}, "");
  EXPECT_TRUE(policy) << name;
  return std::move(*policy);
}

HitRatio replayed(const Workload& workload, const PoolShape& shape, const char* name = "lru") {
  const auto policy = policy_of(name);
  return PoolModel(workload, shape, *policy).replay();
}

TEST(PoolModel, FindsThePrefixThatIsThere) {
  const Workload workload(trace_of({{1, 2, 3}, {1, 2, 9, 3}, {7, 1, 2}}));
  const HitRatio ratio = replayed(workload, {.pages = 16});
  EXPECT_EQ(ratio.references, 10u);
  EXPECT_EQ(ratio.prefix_hits, 2u);
}

TEST(PoolModel, LosesTheTailOfAChainFirst) {
  const Workload workload(trace_of({{1, 2, 3}, {4, 5}, {1, 2, 3}}));
  EXPECT_EQ(replayed(workload, {.pages = 4}).prefix_hits, 2u);
}

TEST(PoolModel, KeepsNoBlockWithoutItsParent) {
  for (const std::string_view name : daemon::built_in_policies()) {
    const HitRatio ratio =
        replayed(Workload(conversation(1500)), {.pages = 1000, .regions = 4, .clients = 3}, std::string(name).c_str());
    EXPECT_EQ(ratio.prefix_hits, ratio.block_hits) << name;
  }
}

TEST(PoolModel, StoresNothingOfARequestThatIsLargerThanThePool) {
  const auto policy = policy_of("lru");
  const Workload workload(trace_of({{1, 2, 3, 4, 5}, {1}, {1}}));
  PoolModel pool(workload, {.pages = 4}, *policy);
  EXPECT_EQ(pool.replay().prefix_hits, 1u);
  EXPECT_EQ(pool.not_stored(), 5u);
}

TEST(PoolModel, AClientEvictsFromItsOwnRegionsFirst) {
  // Two clients with a region of two pages each: the first has 1 and 3, the second 2 and 4. When 9 comes to the first, 2 is the
  // coldest of all, and 1 goes.
  const Workload workload(trace_of({{1}, {2}, {3}, {4}, {1}, {3}, {9}, {2}}));
  EXPECT_EQ(replayed(workload, {.pages = 4, .regions = 2, .clients = 2}).prefix_hits, 3u);
  EXPECT_EQ(replayed(workload, {.pages = 4, .regions = 2, .clients = 1}).prefix_hits, 2u);
}

TEST(PoolModel, BackgroundEvictionStopsAtTheLowWatermark) {
  const Workload workload(trace_of({{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}));
  const auto policy = policy_of("lru");
  PoolModel pool(workload, {.pages = 10, .high_watermark = 0.8, .low_watermark = 0.5}, *policy);
  pool.replay();
  EXPECT_EQ(pool.evicted(), 3u);
}

// The exact LRU that maru-replay compares with was written for itself, with other structures.
TEST(PoolModel, TheLruOfMarudIsAnExactLru) {
  const trace::Trace trace = conversation(3000);
  const Workload workload(trace);
  for (const uint64_t pages : {500u, 3000u, 20000u})
    EXPECT_NEAR(replayed(workload, {.pages = pages}).prefix(), replay::simulate_lru(trace, pages).ratio, 0.0003)
        << pages;
}

// The ratios were computed by an independent simulation of the same trace, before this code existed.
TEST(PoolModel, ReachesTheKnownHitRatiosOfTheTrace) {
  const Workload workload(conversation());
  EXPECT_NEAR(replayed(workload, {.pages = 182790 / 50}).prefix(), 0.0793, 0.0005);
  EXPECT_NEAR(replayed(workload, {.pages = 182790 / 5}).prefix(), 0.3453, 0.0005);
}

TEST(PoolModel, GivesTheSameAnswerTwice) {
  const Workload workload(conversation(1500));
  for (const char* name : {"clock", "s3fifo", "odds"})
    EXPECT_EQ(replayed(workload, {.pages = 2000, .regions = 4}, name).prefix_hits,
              replayed(workload, {.pages = 2000, .regions = 4}, name).prefix_hits)
        << name;
}

}  // namespace
}  // namespace maru::policy_sim
