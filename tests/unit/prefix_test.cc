#include "libmaru/shm/prefix.h"
#include "small_pool.h"

#include <random>

namespace maru::shm {
namespace {

constexpr uint64_t kNow = 1'700'000'001'000;

class PrefixTest : public testing::Test {
 protected:
  PrefixTest() : pool_({.pages = 512, .region_pages = 64, .pins_max = 512}) {}

  std::string key(size_t i) { return "key " + std::to_string(i); }
  void store_chain(size_t count, PageRef parent = PageRef::none(), size_t first = 0) {
    for (size_t i = 0; i < count; ++i) {
      parent = pool_.store(1, key(first + i), parent);
      refs_.push_back(parent);
    }
  }
  std::vector<Digest> digests(size_t count) {
    std::vector<Digest> result;
    for (size_t i = 0; i < count; ++i) result.push_back(pool_.digest(key(i)));
    return result;
  }
  PrefixResult match(const std::vector<Digest>& asked, uint64_t now_ms = kNow) {
    held_.assign(asked.size() + 1, {});
    return match_prefix(pool_.lane(2), asked, now_ms, held_.data());
  }
  void release(const PrefixResult& result) {
    release_prefix(pool_.lane(2), held_.data(), result.held);
    EXPECT_EQ(pool_.client(2).pins.slots_in_use(), 0u);
  }

  SmallPool pool_;
  std::vector<PageRef> refs_;
  std::vector<HeldBlock> held_;
};

TEST_F(PrefixTest, AChainIsFoundByOneSearchAndHeldByOnePin) {
  store_chain(100);
  for (const size_t asked : {1u, 2u, 15u, 16u, 17u, 99u, 100u, 101u, 130u, 300u}) {
    const PrefixResult result = match(digests(asked));
    EXPECT_EQ(result.blocks, std::min<size_t>(asked, 100)) << asked;
    EXPECT_EQ(result.held, 1u);
    EXPECT_FALSE(result.walked);
    EXPECT_EQ(result.deepest, refs_[result.blocks - 1]);
    EXPECT_TRUE(is_pinned(pool_.region, pool_.lanes, result.deepest.page()));
    release(result);
  }
}

TEST_F(PrefixTest, NothingThereIsZeroBlocks) {
  EXPECT_EQ(match({}).blocks, 0u);
  const PrefixResult result = match(digests(50));
  EXPECT_EQ(result.blocks, 0u);
  EXPECT_EQ(result.held, 0u);
}

TEST_F(PrefixTest, SearchAndWalkAgreeForEveryLength) {
  for (size_t length = 0; length < 70; ++length) {
    const PrefixResult result = match(digests(70));
    EXPECT_EQ(result.blocks, length);
    release(result);
    store_chain(1, length ? refs_.back() : PageRef::none(), length);
  }
}

TEST_F(PrefixTest, BlocksStoredAsRootsAreWalkedAndEachHeld) {
  for (size_t i = 0; i < 40; ++i) refs_.push_back(pool_.store(1, key(i)));
  const PrefixResult result = match(digests(60));
  EXPECT_EQ(result.blocks, 40u);
  EXPECT_TRUE(result.walked);
  EXPECT_EQ(result.held, 40u);
  release(result);
}

TEST_F(PrefixTest, AForeignBlockUnderTheSameKeyDoesNotLengthenAChain) {
  store_chain(10);
  pool_.store(1, key(11));  // block 11 as a root by somebody else; block 10 is missing
  PrefixResult result = match(digests(12));
  EXPECT_EQ(result.blocks, 10u);
  release(result);
  pool_.store(1, key(10));  // now all are there, but not as one chain
  result = match(digests(12));
  EXPECT_EQ(result.blocks, 12u);
  EXPECT_TRUE(result.walked);
  EXPECT_EQ(result.held, 3u) << "the chain by its deepest, and the two roots";
  release(result);
}

TEST_F(PrefixTest, AnotherOrderIsNoChain) {
  store_chain(20);
  std::vector<Digest> asked = digests(20);
  std::swap(asked[3], asked[7]);
  const PrefixResult result = match(asked);
  EXPECT_EQ(result.blocks, 20u) << "all are there, found by walking";
  EXPECT_TRUE(result.walked);
  release(result);
}

TEST_F(PrefixTest, AChainThatSharesItsBeginning) {
  store_chain(30);
  PageRef parent = refs_[9];
  std::vector<Digest> asked = digests(10);
  for (size_t i = 0; i < 10; ++i) {
    const std::string other = "other " + std::to_string(i);
    parent = pool_.store(1, other, parent);
    asked.push_back(pool_.digest(other));
  }
  const PrefixResult result = match(asked);
  EXPECT_EQ(result.blocks, 20u);
  EXPECT_FALSE(result.walked);
  release(result);
}

TEST_F(PrefixTest, ExpiredBlocksEndIt) {
  store_chain(20);
  for (size_t i = 15; i < 20; ++i) pool_.region.block(refs_[i].page()).expires_ms.store_relaxed(kNow - 1);
  PrefixResult result = match(digests(20));
  EXPECT_EQ(result.blocks, 15u);
  release(result);
  result = match(digests(20), 0);
  EXPECT_EQ(result.blocks, 20u) << "0 ignores expiry";
  release(result);
}

TEST_F(PrefixTest, NoPinSlotHoldsNothingAndSaysSo) {
  store_chain(5);
  for (uint32_t round = 0; round < 4; ++round)
    for (uint32_t page = 0; page < 512; ++page) pool_.client(2).pins.pin_own(PageRef::of(page, 100 + round));
  const PrefixResult result = match(digests(5));
  EXPECT_TRUE(result.pins_full);
  EXPECT_EQ(result.held, 0u);
  EXPECT_EQ(result.blocks, 0u);
}

TEST_F(PrefixTest, ExistsAndResolveInBatches) {
  store_chain(70);
  std::vector<Digest> asked = digests(100);
  std::vector<uint8_t> present(100);
  EXPECT_EQ(registry_exists_batch(pool_.region, asked.data(), asked.size(), present.data()), 70u);
  std::vector<PageRef> refs(100);
  std::vector<uint64_t> lengths(100);
  EXPECT_EQ(resolve_batch(pool_.region, asked, refs.data(), lengths.data()), 70u);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(present[i], i < 70);
    EXPECT_EQ(refs[i], i < 70 ? refs_[i] : PageRef::none());
    if (i < 70) {
      EXPECT_EQ(lengths[i], 100u);
    }
  }
  EXPECT_EQ(registry_exists_batch(pool_.region, nullptr, 0, nullptr), 0u);
}

TEST_F(PrefixTest, TheFirstProbesAreInsideAndEndWithTheLast) {
  size_t points[kPrefixWays + 1];
  EXPECT_EQ(prefix_first_probes(0, points), 0u);
  for (size_t n = 1; n < 600; ++n) {
    const size_t count = prefix_first_probes(n, points);
    ASSERT_GE(count, 1u);
    ASSERT_LE(count, kPrefixWays);
    EXPECT_EQ(points[count - 1], n - 1);
    for (size_t i = 1; i < count; ++i) EXPECT_LT(points[i - 1], points[i]) << n;
  }
}

// Trees of blocks, some stored as roots: the answer is the number of leading keys that a plain look finds.
TEST_F(PrefixTest, AgreesWithAPlainWalk) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<PageRef> stored(60, PageRef::none());
  for (int step = 0; step < 2000; ++step) {
    const size_t i = random() % 60;
    if (stored[i].is_none()) {
      const bool chained = i > 0 && !stored[i - 1].is_none() && random() % 8 != 0;
      stored[i] = pool_.store(1, key(i), chained ? stored[i - 1] : PageRef::none());
    } else if (random() % 4 == 0 && pool_.remove(1, stored[i])) {
      stored[i] = PageRef::none();
    }
    const size_t asked = 1 + random() % 60;
    size_t expected = 0;
    while (expected < asked && !stored[expected].is_none()) ++expected;
    const PrefixResult result = match(digests(asked));
    // Roots above a gap look like the end of a prefix to a search; the walk that follows is what counts then.
    ASSERT_EQ(result.blocks, expected) << "step " << step << " asked " << asked;
    release(result);
  }
}

}  // namespace
}  // namespace maru::shm
