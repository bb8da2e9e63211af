// The rules alone: when they move an adapter, and that nothing flips.
#include "libmaru/adapters/residency.h"
#include "tests/support/random.h"

#include <cstdio>
#include <gtest/gtest.h>
#include <memory>

namespace maru::adapters {
namespace {

constexpr Rules kRules = {60'000, 10, 5, 30'000, {100, 1000}, {1u << 30, 1u << 30}};

Standing warm(uint32_t uses, uint64_t since_ms) { return {uses, 0, {false, true}, {0, since_ms}}; }
Standing hot(uint32_t uses, uint64_t since_ms) { return {uses, 0, {true, false}, {since_ms, 0}}; }

TEST(Residency, EntersAndLeavesAtDifferentUses) {
  constexpr uint64_t kNow = 1'000'000, kLong = kNow - 100'000, kJust = kNow - 100;
  EXPECT_EQ(wish(kRules, warm(10, kLong), kNow), Move::kPromote);
  EXPECT_EQ(wish(kRules, warm(9, kLong), kNow), Move::kStay);
  EXPECT_EQ(wish(kRules, hot(9, kLong), kNow), Move::kStay);
  EXPECT_EQ(wish(kRules, hot(5, kLong), kNow), Move::kStay);
  EXPECT_EQ(wish(kRules, hot(4, kLong), kNow), Move::kDemote);
  EXPECT_EQ(wish(kRules, warm(1, kLong), kNow), Move::kStay);
  EXPECT_EQ(wish(kRules, warm(0, kLong), kNow), Move::kDrop);
  for (const Standing& standing : {warm(10, kJust), hot(0, kJust), warm(0, kJust)})
    EXPECT_EQ(wish(kRules, standing, kNow), Move::kStay) << "it has just come";
  EXPECT_EQ(wish(kRules, Standing{100, 0, {}, {}}, kNow), Move::kStay) << "a COLD one comes with a request";
}

TEST(Residency, CountsUsesOfTheWindowAlone) {
  const auto entry = std::make_unique<Entry>();
  uint64_t now = 10'000'000;
  for (int i = 0; i < 7; ++i) count_use(*entry, kRules, now);
  EXPECT_EQ(window_uses(*entry, kRules, now), 7u);
  now += 20'000;
  count_use(*entry, kRules, now);
  EXPECT_EQ(window_uses(*entry, kRules, now), 8u);
  EXPECT_EQ(window_uses(*entry, kRules, now + 45'000), 1u);
  EXPECT_EQ(window_uses(*entry, kRules, now + 61'000), 0u);
  // Long afterwards the same words count for another time.
  EXPECT_EQ(window_uses(*entry, kRules, now + 600'000), 0u);
  count_use(*entry, kRules, now + 600'000);
  EXPECT_EQ(window_uses(*entry, kRules, now + 600'000), 1u);
}

// Uses that swing around a threshold: rules with one threshold move at each look, these at most once in a stay.
TEST(Residency, MovesBoundedlyOften) {
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  test::Random random(seed);
  uint64_t now = 1'000'000, since = now;
  bool is_hot = false, simple_is_hot = false;
  int moves = 0, simple_moves = 0;
  constexpr uint64_t kLooks = 1000, kLookMs = 2000;
  for (uint64_t look = 0; look < kLooks; ++look, now += kLookMs) {
    const auto uses = uint32_t(8 + random.below(4));  // 8 to 11
    const Move move = wish(kRules, is_hot ? hot(uses, since) : warm(uses, since), now);
    if (move != Move::kStay) is_hot = move == Move::kPromote, since = now, ++moves;
    if ((uses >= 10) != simple_is_hot) simple_is_hot = !simple_is_hot, ++simple_moves;
  }
  EXPECT_LE(moves, 1);
  EXPECT_GT(simple_moves, 100);
  // Even uses that swing as widely as they can move it no more often than it has stayed.
  moves = 0, is_hot = false;
  for (uint64_t look = 0; look < kLooks; ++look, now += kLookMs) {
    const auto uses = uint32_t(random.below(20));
    const Move move = wish(kRules, is_hot ? hot(uses, since) : warm(uses, since), now);
    if (move == Move::kPromote || move == Move::kDemote) is_hot = move == Move::kPromote, since = now, ++moves;
  }
  EXPECT_LE(uint64_t(moves), kLooks * kLookMs / kRules.stay_ms + 1);
}

TEST(Residency, AFullBudgetChangesHandsForMuchMoreUse) {
  EXPECT_FALSE(is_clearly_more_used(10, 10));
  EXPECT_FALSE(is_clearly_more_used(11, 10));
  EXPECT_FALSE(is_clearly_more_used(101, 100));
  EXPECT_TRUE(is_clearly_more_used(13, 10));
  EXPECT_TRUE(is_clearly_more_used(125, 100));
  EXPECT_TRUE(is_clearly_more_used(2, 0));
}

}  // namespace
}  // namespace maru::adapters
