#include "libmaru/shm/blocks/find_batch.h"
#include "small_pool.h"

#include <random>

namespace maru::shm {
namespace {

constexpr uint64_t kNow = 1'700'000'001'000;

class FindBatchTest : public testing::Test {
 protected:
  FindBatchTest() : pool_({.pages = 256, .region_pages = 64, .pins_max = 256}) {}

  std::string key(size_t i) { return "key " + std::to_string(i); }
  std::vector<Digest> digests(size_t count) {
    std::vector<Digest> result;
    for (size_t i = 0; i < count; ++i) result.push_back(pool_.digest(key(i)));
    return result;
  }
  bool find(const std::vector<Digest>& asked, uint64_t now_ms = kNow) {
    found_.assign(asked.size(), {FindStatus::kPinsFull, PageRef::of(9, 9), 9});
    return find_and_pin_batch(pool_.lane(2), asked, now_ms, found_.data());
  }
  void release() {
    for (const Found& found : found_)
      if (found.status == FindStatus::kFound) {
        EXPECT_TRUE(pool_.client(2).pins.unpin(found.slot, found.ref));
      }
    EXPECT_EQ(pool_.client(2).pins.slots_in_use(), 0u);
  }

  SmallPool pool_;
  std::vector<Found> found_;
};

TEST_F(FindBatchTest, NoKeysAreNoWork) { EXPECT_TRUE(find({})); }

TEST_F(FindBatchTest, ABlockAskedForTwiceIsPinnedTwice) {
  const PageRef ref = pool_.store(1, key(0));
  const Digest digest = pool_.digest(key(0));
  ASSERT_TRUE(find({digest, digest, digest}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found_[i].ref, ref);
    EXPECT_TRUE(is_pinned(pool_.region, pool_.lanes, ref.page()));
    EXPECT_TRUE(pool_.client(2).pins.unpin(found_[i].slot, ref));
  }
  EXPECT_FALSE(is_pinned(pool_.region, pool_.lanes, ref.page()));
}

TEST_F(FindBatchTest, WhatExpiredIsAbsentAndNotHeld) {
  for (size_t i = 0; i < 40; ++i) {
    const PageRef ref = pool_.store(1, key(i));
    if (i % 3 == 0) pool_.region.block(ref.page()).expires_ms.store_relaxed(kNow);
  }
  ASSERT_TRUE(find(digests(40)));
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(found_[i].status == FindStatus::kAbsent, i % 3 == 0) << i;
    EXPECT_EQ(found_[i].ref, find_unpinned(pool_.region, pool_.digest(key(i)))) << "it says which one has expired";
  }
  release();
  ASSERT_TRUE(find(digests(40), 0));
  for (const Found& found : found_) EXPECT_EQ(found.status, FindStatus::kFound) << "0 ignores expiry";
  release();
}

TEST_F(FindBatchTest, ARetiringBlockIsRevivedAndARetiredOneIsAbsent) {
  const PageRef retiring = pool_.store(1, key(0)), retired = pool_.store(1, key(1));
  pool_.set_word(retiring.page(), PageWord::retiring(retiring.generation(), 0, 3));
  pool_.set_word(retired.page(), PageWord::retired(retired.generation(), LaneId{1, 7}));
  ASSERT_TRUE(find(digests(2)));
  EXPECT_EQ(found_[0].status, FindStatus::kFound);
  EXPECT_EQ(pool_.word(retiring.page()), PageWord::ready(retiring.generation(), 0));
  EXPECT_EQ(found_[1].status, FindStatus::kAbsent);
  release();
}

// Another key of the same bucket and the same tag: the location is the other one's, and only the digest says so.
TEST_F(FindBatchTest, AnotherBlockUnderTheSameTagIsNotIt) {
  const PageRef ref = pool_.store(1, key(0));
  const Digest there = pool_.digest(key(0));
  const Digest asked{there.lo, there.hi ^ 1};
  ASSERT_EQ(home_bucket(pool_.region, asked), home_bucket(pool_.region, there));
  ASSERT_TRUE(find({asked, there}));
  EXPECT_EQ(found_[0].status, FindStatus::kAbsent);
  EXPECT_EQ(found_[1].ref, ref);
  release();
}

TEST_F(FindBatchTest, WhatIsPinnedIfWantedIsNotHeldOtherwise) {
  const PageRef ref = pool_.store(1, key(0));
  const Digest digest = pool_.digest(key(0));
  found_ = {pin_if_wanted(pool_.lane(2), ref, digest, kNow)};
  EXPECT_EQ(found_[0].status, FindStatus::kFound);
  EXPECT_EQ(found_[0].ref, ref);
  release();
  for (const Digest& other : {Digest{digest.lo, digest.hi ^ 1}, Digest{digest.lo ^ 1, digest.hi}})
    EXPECT_EQ(pin_if_wanted(pool_.lane(2), ref, other, kNow).status, FindStatus::kAbsent);
  EXPECT_EQ(pin_if_wanted(pool_.lane(2), PageRef::of(ref.page(), 5), digest, kNow).status, FindStatus::kAbsent);
  pool_.region.block(ref.page()).expires_ms.store_relaxed(kNow);
  EXPECT_EQ(pin_if_wanted(pool_.lane(2), ref, digest, kNow).status, FindStatus::kAbsent);
  EXPECT_EQ(pool_.client(2).pins.slots_in_use(), 0u);
}

TEST_F(FindBatchTest, WithoutAPinSlotNothingIsHeld) {
  for (size_t i = 0; i < 100; ++i) pool_.store(1, key(i));
  const std::vector<Digest> asked = digests(100);
  ASSERT_TRUE(find(asked));
  const PageRef last = found_[99].ref;
  release();
  // Every slot that could hold the last one is taken by other lives of its page.
  std::vector<Pin> others;
  uint32_t generation = 100;
  for (Pin pin = pool_.client(2).pins.pin_own(PageRef::of(last.page(), generation)); pin.status == PinStatus::kPinned;
       pin = pool_.client(2).pins.pin_own(PageRef::of(last.page(), ++generation)))
    others.push_back(pin);
  EXPECT_FALSE(find(asked));
  EXPECT_EQ(pool_.client(2).pins.slots_in_use(), others.size());
}

// Present, absent, in overflow buckets, in any order: as one by one.
TEST_F(FindBatchTest, AgreesWithFindingOneByOne) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<PageRef> stored(400, PageRef::none());
  std::vector<Digest> all = digests(400);
  for (int round = 0; round < 200; ++round) {
    for (int step = 0; step < 20; ++step) {
      const size_t i = random() % 400;
      if (!stored[i].is_none()) {
        ASSERT_TRUE(pool_.remove(1, stored[i]));
        stored[i] = PageRef::none();
      } else if (pool_.count(PageState::kFree) != 0) {
        stored[i] = pool_.store(1, key(i));
      }
    }
    std::vector<size_t> order(random() % 100);
    std::vector<Digest> asked;
    for (size_t& i : order) asked.push_back(all[i = random() % 400]);
    ASSERT_TRUE(find(asked));
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(found_[i].status == FindStatus::kFound, !stored[order[i]].is_none()) << order[i];
      if (found_[i].status == FindStatus::kFound) {
        ASSERT_EQ(found_[i].ref, stored[order[i]]);
      }
    }
    release();
  }
}

}  // namespace
}  // namespace maru::shm
