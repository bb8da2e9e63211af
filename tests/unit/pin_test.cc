#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "small_pool.h"

namespace maru::shm {
namespace {

// Lanes of 16 slots in two sets, and 8 slots of overflow.
class PinTest : public testing::Test {
 protected:
  // READY blocks whose pins fall into one set.
  std::vector<PageRef> blocks_of_one_set(size_t count) {
    std::vector<PageRef> refs;
    for (uint32_t page = 0; page < pool_.region.pages() && refs.size() < count; ++page) {
      if (pin_set_start(pool_.region.layout(), page) != 0) continue;
      pool_.set_word(page, PageWord::ready(1, 0));
      refs.push_back(PageRef::of(page, 1));
    }
    EXPECT_EQ(refs.size(), count);
    return refs;
  }
  bool is_pinned(PageRef ref) { return shm::is_pinned(pool_.region, pool_.lanes, ref.page()); }
  uint64_t overflow_count() { return pool_.region.lane(1).header->pin_overflow.load_relaxed(); }

  SmallPool pool_;
  PinTable& pins_ = pool_.client(1).pins;
};

TEST_F(PinTest, APinIsSeenUntilItEnds) {
  const PageRef ref = blocks_of_one_set(1)[0];
  EXPECT_FALSE(is_pinned(ref));
  const Pin pin = pins_.pin(ref);
  ASSERT_EQ(pin.status, PinStatus::kPinned);
  EXPECT_TRUE(is_pinned(ref));
  EXPECT_EQ(pool_.region.lane(1).pins[pin.slot].load_relaxed(), ref.bits);
  EXPECT_TRUE(pins_.unpin(pin.slot, ref));
  EXPECT_FALSE(is_pinned(ref));
  EXPECT_EQ(pins_.slots_in_use(), 0u);
}

TEST_F(PinTest, ThePinsOfLanesOutsideTheSetDoNotCount) {
  const PageRef ref = blocks_of_one_set(1)[0];
  pins_.pin(ref);
  LaneSet others = pool_.lanes;
  others.remove(1);
  EXPECT_FALSE(shm::is_pinned(pool_.region, others, ref.page()));
}

TEST_F(PinTest, PinsOfOneBlockShareASlot) {
  const PageRef ref = blocks_of_one_set(1)[0];
  const Pin first = pins_.pin(ref), second = pins_.pin(ref), third = pins_.pin(ref);
  EXPECT_EQ(first.slot, second.slot);
  EXPECT_EQ(first.slot, third.slot);
  EXPECT_EQ(pins_.slots_in_use(), 1u);
  EXPECT_TRUE(pins_.unpin(first.slot, ref));
  EXPECT_TRUE(pins_.unpin(first.slot, ref));
  EXPECT_TRUE(is_pinned(ref)) << "one of three is left";
  EXPECT_TRUE(pins_.unpin(first.slot, ref));
  EXPECT_FALSE(is_pinned(ref));
}

TEST_F(PinTest, UnpinningTwiceOrAnotherBlockIsRefused) {
  const std::vector<PageRef> refs = blocks_of_one_set(2);
  const Pin pin = pins_.pin(refs[0]);
  EXPECT_FALSE(pins_.unpin(pin.slot, refs[1]));
  EXPECT_FALSE(pins_.unpin(pin.slot, PageRef::of(refs[0].page(), 2)));
  EXPECT_FALSE(pins_.unpin(1000, refs[0]));
  EXPECT_TRUE(pins_.unpin(pin.slot, refs[0]));
  EXPECT_FALSE(pins_.unpin(pin.slot, refs[0]));
}

TEST_F(PinTest, WhatIsNotVisibleIsGoneAndLeavesNoSlot) {
  const PageRef ref = blocks_of_one_set(1)[0];
  const LaneId lane{2, 7};
  for (const PageWord word :
       {PageWord::free(1), PageWord::out(1), PageWord::reserved(1, lane), PageWord::sealed(1, lane),
        PageWord::retired(1, lane), PageWord::tail(1, 1), PageWord::ready(2, 0), PageWord::ready(0, 0),
        PageWord::retiring(2, 0, 1), PageWord::of(PageState(12), 1, 0)}) {
    pool_.set_word(ref.page(), word);
    EXPECT_EQ(pins_.pin(ref).status, PinStatus::kGone);
    EXPECT_FALSE(is_pinned(ref));
    EXPECT_EQ(pool_.word(ref.page()), word);
  }
}

TEST_F(PinTest, ARetiringBlockIsRevived) {
  const PageRef ref = blocks_of_one_set(1)[0];
  pool_.set_word(ref.page(), PageWord::retiring(1, 0, 9));
  EXPECT_EQ(pins_.pin(ref).status, PinStatus::kPinned);
  EXPECT_EQ(pool_.word(ref.page()), PageWord::ready(1, 0));
  EXPECT_EQ(pool_.region.lane(1).header->counter(format::kCounterRevives), 1u);
}

TEST_F(PinTest, AChildCountDoesNotMatter) {
  const PageRef ref = blocks_of_one_set(1)[0];
  pool_.set_word(ref.page(), PageWord::ready(1, 77, true));
  EXPECT_EQ(pins_.pin(ref).status, PinStatus::kPinned);
  EXPECT_EQ(pool_.word(ref.page()), PageWord::ready(1, 77, true));
}

TEST_F(PinTest, AFullSetSpillsIntoTheOverflowAreaAndThenIsFull) {
  const std::vector<PageRef> refs = blocks_of_one_set(17);
  std::vector<Pin> pins;
  for (size_t i = 0; i < 16; ++i) {
    pins.push_back(pins_.pin(refs[i]));
    ASSERT_EQ(pins[i].status, PinStatus::kPinned) << i;
    EXPECT_EQ(overflow_count(), i < 8 ? 0 : i - 7);
    EXPECT_TRUE(is_pinned(refs[i]));
  }
  EXPECT_EQ(pins_.pin(refs[16]).status, PinStatus::kFull);
  EXPECT_EQ(pins_.pin(refs[3]).status, PinStatus::kPinned) << "joining needs no slot";
  for (size_t i = 16; i-- > 0;) {
    EXPECT_TRUE(pins_.unpin(pins[i].slot, refs[i]));
    if (i == 3) {
      EXPECT_TRUE(pins_.unpin(pins[i].slot, refs[i]));
    }
    EXPECT_FALSE(is_pinned(refs[i]));
  }
  EXPECT_EQ(overflow_count(), 0u);
  EXPECT_EQ(pins_.slots_in_use(), 0u);
  EXPECT_EQ(pins_.pin(refs[16]).status, PinStatus::kPinned);
}

TEST_F(PinTest, PinsThatSomebodyElseHasEndedAreReleasedAllTheSame) {
  const std::vector<PageRef> refs = blocks_of_one_set(9);
  std::vector<Pin> pins;
  for (const PageRef ref : refs) pins.push_back(pins_.pin(ref));
  ASSERT_EQ(overflow_count(), 1u);
  clear_pins(pool_.region, 1);  // another host's marud does
  for (size_t i = 0; i < refs.size(); ++i) {
    EXPECT_TRUE(pins_.unpin(pins[i].slot, refs[i])) << i;
    EXPECT_FALSE(pins_.unpin(pins[i].slot, refs[i])) << i;
  }
  EXPECT_EQ(pins_.slots_in_use(), 0u) << "or its client could not leave";
  EXPECT_EQ(overflow_count(), 0u);
  EXPECT_EQ(pins_.pin(refs[0]).status, PinStatus::kPinned);
}

TEST_F(PinTest, PinsOfOneBlockShareASlotOfTheOverflowAreaToo) {
  const std::vector<PageRef> refs = blocks_of_one_set(10);
  for (size_t i = 0; i < limits::kPinSetSlots; ++i) ASSERT_EQ(pins_.pin(refs[i]).status, PinStatus::kPinned);
  const Pin first = pins_.pin(refs[8]);
  ASSERT_EQ(first.status, PinStatus::kPinned);
  for (int i = 0; i < 100; ++i) {
    const Pin again = pins_.pin(refs[8]);
    ASSERT_EQ(again.status, PinStatus::kPinned);
    ASSERT_EQ(again.slot, first.slot);
  }
  Pin batch[2];
  pins_.pin_batch(&refs[8], 2, batch);
  EXPECT_EQ(batch[0].slot, first.slot);
  EXPECT_EQ(batch[1].status, PinStatus::kPinned);
  EXPECT_EQ(overflow_count(), 2u);
  for (int i = 0; i < 101; ++i) EXPECT_TRUE(pins_.unpin(first.slot, refs[8]));
  EXPECT_TRUE(is_pinned(refs[8]));
  EXPECT_TRUE(pins_.unpin(first.slot, refs[8]));
  EXPECT_FALSE(is_pinned(refs[8]));
  EXPECT_EQ(overflow_count(), 1u);
}

TEST_F(PinTest, ABatchIsLikeOneByOne) {
  const std::vector<PageRef> refs = blocks_of_one_set(20);
  std::vector<PageRef> asked(refs.begin(), refs.begin() + 12);
  pool_.set_word(refs[2].page(), PageWord::retiring(1, 0, 1));
  pool_.set_word(refs[5].page(), PageWord::free(2));
  asked.push_back(refs[0]);  // twice in one batch
  std::vector<Pin> pins(asked.size());
  pins_.pin_batch(asked.data(), asked.size(), pins.data());
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(pins[i].status, i == 5 ? PinStatus::kGone : PinStatus::kPinned) << i;
    EXPECT_EQ(is_pinned(asked[i]), i != 5);
  }
  EXPECT_EQ(pool_.word(refs[2].page()), PageWord::ready(1, 0));
  for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(pins_.unpin(pins[i].slot, asked[i]), i != 5);
  EXPECT_EQ(pins_.slots_in_use(), 0u);
  EXPECT_EQ(overflow_count(), 0u);
}

TEST_F(PinTest, ABatchThatDoesNotFitSaysWhich) {
  const std::vector<PageRef> refs = blocks_of_one_set(20);
  std::vector<Pin> pins(refs.size());
  pins_.pin_batch(refs.data(), refs.size(), pins.data());
  size_t pinned = 0, full = 0;
  for (const Pin& pin : pins) pinned += pin.status == PinStatus::kPinned, full += pin.status == PinStatus::kFull;
  EXPECT_EQ(pinned, 16u);
  EXPECT_EQ(full, 4u);
}

TEST_F(PinTest, PinOwnDoesNotLookAtTheWord) {
  const PageRef own = pool_.take(1);
  const Pin pin = pins_.pin_own(own);
  EXPECT_EQ(pin.status, PinStatus::kPinned);
  EXPECT_TRUE(is_pinned(own));
  EXPECT_TRUE(pins_.unpin(pin.slot, own));
}

TEST_F(PinTest, EverySetIsReachedAndNoneLiesOutside) {
  std::set<uint32_t> sets;
  for (uint32_t page = 0; page < 4096; ++page) sets.insert(pin_set_start(pool_.region.layout(), page));
  EXPECT_EQ(sets, (std::set<uint32_t>{0, 8}));
}

TEST_F(PinTest, LanesInUseAreThoseOfTheBitmap) {
  pool_.stop_using_lane(5);
  const LaneSet lanes = LaneSet::in_use(pool_.region);
  for (uint32_t lane = 0; lane < 8; ++lane) EXPECT_EQ(lanes.has(lane), lane != 0 && lane != 5) << lane;
}

}  // namespace
}  // namespace maru::shm
