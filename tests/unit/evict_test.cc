#include "libmaru/shm/recovery/evict.h"
#include "small_pool.h"

namespace maru::shm {
namespace {

class EvictTest : public testing::Test {
 protected:
  std::vector<PageRef> evict(const std::vector<uint32_t>& pages) {
    std::vector<PageRef> retired(kEvictBatchMax);
    retired.resize(retire_unpinned(pool_.lane(0), pool_.lanes, pages.data(), pages.size(), &attempt_, retired.data()));
    return retired;
  }

  SmallPool pool_;
  uint16_t attempt_ = 0;
};

TEST_F(EvictTest, AnUnpinnedLeafIsTakenAway) {
  const PageRef ref = pool_.store(1, "a");
  EXPECT_EQ(evict({ref.page()}), std::vector<PageRef>{ref});
  EXPECT_EQ(pool_.word(ref.page()), PageWord::retired(ref.generation(), pool_.lane(0).id));
  EXPECT_FALSE(registry_exists(pool_.region, pool_.digest("a")));
  EXPECT_EQ(free_retired(pool_.lane(0), ref, nullptr), FinishStatus::kFreed);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(EvictTest, PinnedBlocksParentsAndOthersStay) {
  const PageRef pinned = pool_.store(1, "a"), parent = pool_.store(1, "b"), child = pool_.store(1, "c", parent);
  const PageRef flagged = pool_.store(1, "d"), reserved = pool_.take(1);
  pool_.set_word(flagged.page(), PageWord::ready(flagged.generation(), 0, true));
  const Pin pin = pool_.client(3).pins.pin(pinned);
  const std::vector<uint32_t> pages = {pinned.page(), parent.page(), child.page(), flagged.page(), reserved.page(), 40};
  EXPECT_EQ(evict(pages), std::vector<PageRef>{child});
  EXPECT_EQ(pool_.word(pinned.page()), PageWord::ready(pinned.generation(), 0)) << "put back";
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 1));
  EXPECT_EQ(pool_.word(flagged.page()), PageWord::ready(flagged.generation(), 0, true));
  EXPECT_TRUE(pool_.word(reserved.page()).is(PageState::kReserved));
  free_retired(pool_.lane(0), child, nullptr);
  pool_.client(3).pins.unpin(pin.slot, pinned);
  EXPECT_EQ(evict(pages), (std::vector<PageRef>{pinned, parent}));
}

TEST_F(EvictTest, APinOfAnEarlierLifeCounts) {
  const PageRef ref = pool_.store(1, "a");
  // As of a reader that has written its slot and not looked at the word yet.
  const uint32_t set = pin_set_start(pool_.region.layout(), ref.page());
  pool_.region.lane(2).pins[set].store_relaxed(PageRef::of(ref.page(), ref.generation() + 5).bits);
  EXPECT_TRUE(evict({ref.page()}).empty());
}

TEST_F(EvictTest, NothingGoesWhenTheLookForPinsCannotBeBelieved) {
  struct Lost final : RegionTrust {
    bool is_whole() const override { return false; }
  } lost;
  const PageRef ref = pool_.store(1, "a"), retired = pool_.store(1, "b");
  ASSERT_EQ(retire_ref(pool_.lane(0), retired), RetireStatus::kRetired);
  pool_.lane(0).trust = &lost;
  EXPECT_TRUE(evict({ref.page()}).empty());
  EXPECT_EQ(pool_.word(ref.page()), PageWord::ready(ref.generation(), 0)) << "put back";
  EXPECT_EQ(finish_retired(pool_.lane(0), retired, pool_.lanes, nullptr), FinishStatus::kPinned);
  pool_.lane(0).trust = nullptr;
  EXPECT_EQ(evict({ref.page()}), std::vector<PageRef>{ref});
  EXPECT_EQ(finish_retired(pool_.lane(0), retired, pool_.lanes, nullptr), FinishStatus::kFreed);
}

TEST_F(EvictTest, EveryBatchHasAnAttemptOfItsOwn) {
  const PageRef ref = pool_.store(1, "a");
  EXPECT_EQ(attempt_, 0);
  evict({40});
  evict({ref.page()});
  EXPECT_EQ(attempt_, 2);
}

TEST_F(EvictTest, ARunIsEvictedWhole) {
  const PageRef own = pool_.take(1, 3);
  ASSERT_EQ(publish(pool_.lane(1), own, pool_.block("a")).status, PublishStatus::kStored);
  EXPECT_EQ(evict({own.page(), own.page() + 1, own.page() + 2}), std::vector<PageRef>{own});
  uint32_t pages = 0;
  free_retired(pool_.lane(0), own, &pages);
  EXPECT_EQ(pages, 3u);
}

}  // namespace
}  // namespace maru::shm
