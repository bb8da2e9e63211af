#include "libmaru/shm/blocks/prefix.h"
#include "small_pool.h"

#include <algorithm>
#include <random>
#include <set>

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
    std::vector<PlainDigest> keys;
    for (const Digest& digest : asked) keys.push_back(unpermute(pool_.region.secret(), digest));
    held_.assign(keys.size() + 1, {});
    return match_prefix(pool_.lane(2), prefix_keys(pool_.region, keys), now_ms, held_.data());
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
  EXPECT_EQ(result.expired, refs_[19]);
  release(result);
  result = match(digests(20), 0);
  EXPECT_TRUE(result.expired.is_none());
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

// Chains of a match, resolved by walking from its deepest block.
class ResolveChainTest : public PrefixTest {
 protected:
  // A chain of these pages, in this order.
  void store_on(const std::vector<uint32_t>& pages) {
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageRef own = take_run(pool_.region, pool_.lane(1).id, pages[i], 1, nullptr);
      const std::string name = key(i);  // the block refers to it
      NewBlock block = pool_.block(name, i ? refs_.back() : PageRef::none());
      block.length = 100 + i;
      ASSERT_EQ(publish(pool_.lane(1), own, block).status, PublishStatus::kStored) << i;
      refs_.push_back(own);
    }
  }
  // The first n of `asked` under a match of `blocks`; what is found must be what was stored.
  size_t resolve(const std::vector<Digest>& asked, size_t n, size_t blocks) {
    found_.assign(n, PageRef::of(9, 9));
    lengths_.assign(n, 0);
    return resolve_chain(pool_.region, refs_[blocks - 1], blocks, std::span(asked).first(n), found_.data(),
                         lengths_.data());
  }
  void expect_all_of(size_t blocks) {
    const std::vector<Digest> asked = digests(blocks);
    for (size_t n = 1; n <= blocks; ++n) {
      ASSERT_EQ(resolve(asked, n, blocks), n);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(found_[i], refs_[i]) << "key " << i << " of " << n;
        ASSERT_EQ(lengths_[i], 100 + i);
      }
    }
  }
  // Only where the stretches of the walk start is looked up.
  void expect_walked(size_t blocks) {
    std::set<size_t> starts;
    for (size_t i = 1; i < kChainWalks; ++i) starts.insert(blocks * i / kChainWalks - 1);
    for (size_t i = 0; i < blocks; ++i)
      if (!starts.contains(i)) hide_from_registry(i, i + 1);
    EXPECT_EQ(resolve(digests(blocks), blocks, blocks), blocks);
    EXPECT_EQ(found_, refs_);
    const size_t hidden = *starts.begin();
    hide_from_registry(hidden, hidden + 1);
    EXPECT_EQ(resolve(digests(blocks), blocks, blocks), blocks - hidden - 1) << "the first stretch has no start";
    for (size_t i = 0; i < blocks; ++i) EXPECT_EQ(found_[i], i <= hidden ? PageRef::none() : refs_[i]) << i;
  }
  // From here on a lookup of these keys fails, so that what is found was walked to.
  void hide_from_registry(size_t from, size_t to) {
    for (size_t i = from; i < to; ++i)
      EXPECT_TRUE(registry_remove(pool_.region, pool_.lane(1).id, pool_.digest(key(i)), refs_[i]));
  }
  static std::vector<uint32_t> pages(uint32_t count, uint32_t first, int step) {
    std::vector<uint32_t> result(count);
    for (uint32_t i = 0; i < count; ++i) result[i] = uint32_t(int(first) + int(i) * step);
    return result;
  }

  std::vector<PageRef> found_;
  std::vector<uint64_t> lengths_;
};

TEST_F(ResolveChainTest, PagesInARow) {
  store_on(pages(200, 0, 1));
  expect_all_of(200);
  expect_walked(200);
}

TEST_F(ResolveChainTest, PagesInARowTheOtherWayRound) {
  store_on(pages(200, 511, -1));
  expect_all_of(200);
  expect_walked(200);
}

TEST_F(ResolveChainTest, PagesAtADistance) {
  store_on(pages(150, 3, 3));
  expect_all_of(150);
  expect_walked(150);
}

TEST_F(ResolveChainTest, PagesInPiecesAndStrewn) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint32_t> order;
  for (uint32_t piece : {300u, 40u, 480u, 120u})
    for (uint32_t i = 0; i < 20; ++i) order.push_back(piece + i);
  std::vector<uint32_t> strewn = pages(60, 150, 1);
  std::shuffle(strewn.begin(), strewn.end(), random);
  order.insert(order.end(), strewn.begin(), strewn.end());
  store_on(order);
  expect_all_of(order.size());
  expect_walked(order.size());
}

TEST_F(ResolveChainTest, AStretchWhoseStartIsNotFoundIsLookedUp) {
  store_on(pages(128, 0, 1));
  hide_from_registry(63, 64);
  EXPECT_EQ(resolve(digests(128), 128, 128), 127u);
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(found_[i], i == 63 ? PageRef::none() : refs_[i]) << i;
}

TEST_F(ResolveChainTest, KeysOfAnotherChainAreLookedUp) {
  store_on(pages(40, 0, 1));
  std::vector<Digest> asked = digests(40);
  for (size_t i = 0; i < 20; ++i) asked[i] = pool_.digest("other " + std::to_string(i));
  const PageRef other = pool_.store(1, "other 7");
  EXPECT_EQ(resolve(asked, 40, 40), 21u);
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(found_[i], i == 7 ? other : i < 20 ? PageRef::none() : refs_[i]) << i;
  std::swap(asked[30], asked[35]);
  EXPECT_EQ(resolve(asked, 40, 40), 21u);
  EXPECT_EQ(found_[30], refs_[35]);
  EXPECT_EQ(found_[35], refs_[30]);
  asked[39] = pool_.digest("nothing");
  EXPECT_EQ(resolve(asked, 40, 40), 20u) << "not even the deepest is what was asked for";
}

TEST_F(ResolveChainTest, TheDeepestIsFoundAlthoughItsKeyIsGone) {
  store_on(pages(30, 0, 1));
  const PrefixResult result = match(digests(30));
  ASSERT_EQ(result.held, 1u);
  ASSERT_EQ(retire_ref(pool_.lane(1), refs_[29]), RetireStatus::kRetired);
  pool_.store(1, key(29), refs_[28]);  // somebody else's under the same key
  EXPECT_EQ(resolve(digests(30), 30, 30), 30u);
  EXPECT_EQ(found_, refs_) << "the one that the match holds";
  release_prefix(pool_.lane(2), held_.data(), result.held);
}

TEST_F(ResolveChainTest, WhatAParentWordNamesIsNotBelieved) {
  store_on(pages(40, 0, 1));  // keys 20 and 21 are a stretch
  pool_.region.block(refs_[21].page()).parent.store_relaxed(PageRef::of(refs_[20].page(), 5).bits);  // another life
  EXPECT_EQ(resolve(digests(40), 40, 40), 40u) << "the registry knows better";
  EXPECT_EQ(found_, refs_);
  for (const uint64_t damaged : {uint64_t{0}, ~uint64_t{0}, refs_[21].bits, PageRef::of(512, 0).bits}) {
    pool_.region.block(refs_[21].page()).parent.store_relaxed(damaged);
    EXPECT_EQ(resolve(digests(40), 40, 40), 40u) << damaged;
    EXPECT_EQ(found_, refs_);
  }
  pool_.region.block(refs_[21].page()).parent.store_relaxed(refs_[20].bits);
  pool_.set_word(refs_[10].page(), PageWord::retired(refs_[10].generation(), LaneId{1, 7}));
  EXPECT_EQ(resolve(digests(40), 40, 40), 39u);
  EXPECT_EQ(found_[10], PageRef::none());
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
