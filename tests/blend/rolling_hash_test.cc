// Names of windows: rolled, from nothing, in each way, and by the formula.
#include "libmaru/blend/rolling_hash.h"
#include "libmaru/blend/roll_stretches.h"
#include "tests/support/random.h"

#include <cstdio>
#include <gtest/gtest.h>

namespace maru::test {
namespace {

// The formula, one reduction a token.
uint64_t by_the_formula(const blend::RollingHash& hash, const uint32_t* tokens) {
  uint64_t name = 0;
  for (uint32_t i = 0; i < hash.window(); ++i)
    name = uint64_t((blend::uint128{name} * hash.base() + tokens[i]) % blend::kPrime);
  return name;
}

TEST(RollingHash, EqualsTheFormulaFromNothingAndRolled) {
  const uint64_t seed = fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (const uint32_t window : {1u, 2u, 3u, 4u, 5u, 16u, 255u, 256u, 2047u, 2048u, 2051u, 4099u, 16128u}) {
    const blend::RollingHash hash(random.next(), window);
    std::vector<uint32_t> tokens(window + 20);
    for (uint32_t& token : tokens) token = random.one_in(3) ? UINT32_MAX : uint32_t(random.next());
    uint64_t rolled = hash.of(tokens.data());
    for (size_t at = 0;; ++at) {
      const uint64_t expected = by_the_formula(hash, tokens.data() + at);
      ASSERT_EQ(hash.of(tokens.data() + at), expected) << window << " tokens from " << at;
      ASSERT_EQ(rolled, expected) << window << " tokens, rolled to " << at;
      if (at == 20) break;
      rolled = hash.move()(rolled, tokens[at], tokens[at + window]);
    }
  }
}

TEST(RollingHash, EachWayRollsStretchesAsFromNothing) {
  const uint64_t seed = fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (blend::RollStretches* const roll : {blend::roll_stretches_plain, blend::roll_stretches_avx512()}) {
    if (roll == nullptr) continue;
    for (const uint32_t window : {1u, 7u, 64u, 256u, 1000u})
      for (const size_t stretch : {1u, 2u, 8u, 9u, 10u, 17u, 505u}) {
        const blend::RollingHash hash(random.next(), window);
        const size_t windows = blend::kLanes * stretch;
        std::vector<uint32_t> tokens(windows + window - 1);
        for (uint32_t& token : tokens)
          token = random.one_in(3) ? UINT32_MAX : random.one_in(3) ? 0 : uint32_t(random.next());
        std::vector<blend::NameBytes> rows(windows, {0, seed});
        for (size_t k = 0; k < blend::kLanes; ++k) rows[k * stretch].tokens = hash.of(&tokens[k * stretch]);
        roll(hash, tokens.data(), stretch, rows.data());
        for (size_t i = 0; i < windows; ++i) {
          ASSERT_EQ(rows[i].tokens, hash.of(&tokens[i])) << i << " of " << windows << ", " << window << " tokens";
          ASSERT_EQ(rows[i].space, seed) << i;
        }
      }
  }
}

TEST(RollingHash, EachWayHasTheSameSum) {
  std::vector<uint64_t> powers(4099, blend::kPrime - 1);
  const blend::WeightedSum sum(powers);
  const std::vector<uint32_t> tokens(powers.size(), UINT32_MAX);
  const blend::uint128 expected = blend::uint128{blend::kPrime - 1} * UINT32_MAX * powers.size();
  EXPECT_TRUE(sum.plain(tokens.data()) == expected);
  EXPECT_TRUE(sum.of(tokens.data()) == expected) << (blend::WeightedSum::has_fast_way() ? "AVX2" : "plain");
}

}  // namespace
}  // namespace maru::test
