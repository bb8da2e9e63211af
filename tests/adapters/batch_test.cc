// Batches of waiting requests: limits, fairness between tenants, waiting times beside those of the most popular first.
#include "libmaru/adapters/batch_former.h"
#include "tests/support/random.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <map>

namespace maru::adapters {
namespace {

constexpr BatchFormer::Limits kFair = {MARU_BATCH_FAIR, 256, 32, 4096, 1000};

maru_batch_request request(uint64_t id, uint64_t tenant, uint64_t adapter, uint32_t tokens = 1, uint32_t rank = 16,
                           uint32_t tier = MARU_ADAPTER_HOT) {
  return {id, tenant, adapter, tokens, rank, tier, 0};
}
std::vector<uint64_t> next(BatchFormer& former, uint64_t now_ms, size_t n = 256) {
  std::vector<uint64_t> ids(n);
  ids.resize(former.next(now_ms, ids.data(), n));
  return ids;
}

TEST(Batches, KeepTheirLimits) {
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  test::Random random(seed);
  for (const uint32_t policy : {MARU_BATCH_FAIR, MARU_BATCH_POPULAR}) {
    BatchFormer::Limits limits = kFair;
    limits.policy = policy;
    limits.adapters_max = 5;
    limits.ranks_max = 100;
    BatchFormer former(limits);
    std::map<uint64_t, maru_batch_request> waiting;
    for (uint64_t id = 1; id <= 3000; ++id) {
      const uint64_t adapter = random.below(40);
      waiting[id] = request(id, random.below(7), adapter, uint32_t(random.below(50)), uint32_t(8 << adapter % 5));
      ASSERT_TRUE(former.add(waiting[id], id));
    }
    EXPECT_FALSE(former.add(waiting[1], 0)) << "an id waits once";
    EXPECT_TRUE(former.cancel(17));
    EXPECT_FALSE(former.cancel(17));
    waiting.erase(17);
    for (uint64_t now = 3000; !waiting.empty(); now += 100) {
      const std::vector<uint64_t> batch = next(former, now);
      ASSERT_FALSE(batch.empty()) << "requests wait, and no batch has them";
      ASSERT_LE(batch.size(), 256u);
      std::map<uint64_t, uint32_t> ranks;
      for (const uint64_t id : batch) {
        ASSERT_TRUE(waiting.contains(id));
        if (waiting[id].adapter != 0) ranks[waiting[id].adapter] = waiting[id].rank;
        waiting.erase(id);
      }
      uint32_t sum = 0;
      for (const auto& [adapter, rank] : ranks) sum += rank;
      ASSERT_LE(ranks.size(), 5u);
      ASSERT_TRUE(sum <= 100 || ranks.size() == 1) << sum;
      ASSERT_EQ(former.waiting(), waiting.size());
    }
    EXPECT_TRUE(next(former, 0).empty());
  }
}

// A tenant that floods gets its share, and no other less than its own.
TEST(Batches, AreFairBetweenTenants) {
  BatchFormer former(kFair);
  former.set_weight(3, 2);
  std::map<uint64_t, uint64_t> tenant_of;
  uint64_t id = 0;
  const auto fill = [&](uint64_t tenant, size_t count, uint32_t tokens) {
    for (size_t i = 0; i < count; ++i) {
      tenant_of[++id] = tenant;
      former.add(request(id, tenant, tenant, tokens), 0);
    }
  };
  fill(1, 5000, 10);  // floods
  fill(2, 1000, 10);
  fill(3, 1000, 10);
  fill(4, 1000, 30);  // dear requests
  std::map<uint64_t, uint64_t> tokens;
  for (int round = 0; round < 4; ++round)
    for (const uint64_t served : next(former, 0)) tokens[tenant_of[served]] += tenant_of[served] == 4 ? 30 : 10;
  EXPECT_NEAR(double(tokens[1]), double(tokens[2]), 20);
  EXPECT_NEAR(double(tokens[4]), double(tokens[2]), 40);
  EXPECT_NEAR(double(tokens[3]), 2.0 * double(tokens[2]), 40);
}

TEST(Batches, GiveNoCreditForIdleness) {
  BatchFormer former(kFair);
  uint64_t id = 0;
  for (int i = 0; i < 2000; ++i) former.add(request(++id, 1, 1), 0);
  for (int i = 0; i < 4; ++i) (void)next(former, 0);
  // Served 1024 already; another tenant comes.
  const uint64_t first = id + 1;
  for (int i = 0; i < 2000; ++i) former.add(request(++id, 2, 2), 0);
  size_t seconds = 0;
  for (const uint64_t served : next(former, 0)) seconds += served >= first;
  EXPECT_NEAR(double(seconds), 128, 1);
}

TEST(Batches, PreferWhatIsResident) {
  BatchFormer::Limits limits = kFair;
  limits.adapters_max = 2;
  BatchFormer former(limits);
  former.add(request(1, 1, 1, 1, 16, MARU_ADAPTER_COLD), 0);
  former.add(request(2, 1, 2, 1, 16, MARU_ADAPTER_WARM), 0);
  former.add(request(3, 1, 3, 1, 16, MARU_ADAPTER_HOT), 0);
  former.add(request(4, 1, 1, 1, 16, MARU_ADAPTER_COLD), 0);
  EXPECT_EQ(next(former, 500), (std::vector<uint64_t>{3, 2}));
  former.add(request(5, 1, 3, 1, 16, MARU_ADAPTER_HOT), 500);
  // Age counts for more: the oldest goes first, and what shares its adapter with it.
  EXPECT_EQ(next(former, 1000, 2), (std::vector<uint64_t>{1, 4}));
}

// The measurement of the two policies: some adapters are popular, many are rare, and as much comes as can be served.
struct Waits {
  uint64_t longest_ms = 0, over_10_s = 0;
};
Waits simulate(uint32_t policy, uint64_t seed) {
  BatchFormer::Limits limits = kFair;
  limits.policy = policy;
  limits.adapters_max = 8;
  limits.ranks_max = 1u << 20;
  limits.requests_max = 64;
  BatchFormer former(limits);
  test::Random random(seed);
  std::map<uint64_t, uint64_t> since;
  std::vector<uint64_t> waits;
  uint64_t id = 0;
  constexpr uint64_t kEndMs = 60'000, kStepMs = 50;
  for (uint64_t now = 0; now < kEndMs; now += kStepMs) {
    for (int i = 0; i < 48; ++i) {
      // Seven of eight requests are for eight adapters, the others for 192.
      const uint64_t adapter = random.one_in(8) ? 9 + random.below(192) : 1 + random.below(8);
      former.add(request(++id, adapter, adapter), now);
      since[id] = now;
    }
    for (const uint64_t served : next(former, now)) waits.push_back(now - since[served]), since.erase(served);
  }
  Waits result;
  for (const auto& [unserved, came] : since) waits.push_back(kEndMs - came);
  result.longest_ms = std::ranges::max(waits);
  result.over_10_s = uint64_t(std::ranges::count_if(waits, [](uint64_t ms) { return ms > 10'000; }));
  return result;
}

TEST(Batches, MostPopularFirstStarves) {
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  const Waits popular = simulate(MARU_BATCH_POPULAR, seed), fair = simulate(MARU_BATCH_FAIR, seed);
  std::printf(
      "longest wait of a minute: most popular first %llu ms (%llu requests waited for more than 10 s), fair "
      "%llu ms\n",
      static_cast<unsigned long long>(popular.longest_ms), static_cast<unsigned long long>(popular.over_10_s),
      static_cast<unsigned long long>(fair.longest_ms));
  EXPECT_GT(popular.over_10_s, 0u);
  EXPECT_EQ(fair.over_10_s, 0u);
  EXPECT_LT(5 * fair.longest_ms, popular.longest_ms);
}

}  // namespace
}  // namespace maru::adapters
