#include "libmaru/shm/blocks/touch.h"
#include "small_pool.h"

namespace maru::shm {
namespace {

class TouchTest : public testing::Test {
 protected:
  std::vector<uint32_t> read(size_t limit = 100, uint64_t now = 1000) {
    Touch touches[100];
    const size_t n = reader_.read(lane_, now, pool_.region.pages(), touches, limit);
    std::vector<uint32_t> pages;
    for (size_t i = 0; i < n; ++i) pages.push_back(touches[i].page);
    return pages;
  }
  // The tick that comes out for one that went in.
  uint64_t through(uint64_t tick, uint64_t now) {
    leave_touch(lane_, 1, tick);
    Touch touch;
    EXPECT_EQ(reader_.read(lane_, now, 64, &touch, 1), 1u);
    return touch.tick;
  }

  SmallPool pool_;  // rings of 16 entries
  LaneView lane_ = pool_.region.lane(1);
  TouchReader reader_;
};

TEST_F(TouchTest, ComeOutOnceAndInOrder) {
  for (const uint32_t page : {5u, 6u, 5u}) leave_touch(lane_, page, 10);
  EXPECT_EQ(read(), (std::vector<uint32_t>{5, 6, 5}));
  EXPECT_EQ(read(), std::vector<uint32_t>{});
  leave_touch(lane_, 7, 10);
  EXPECT_EQ(read(), std::vector<uint32_t>{7});
}

TEST_F(TouchTest, ManyLapsOfTheRing) {
  for (uint32_t i = 0; i < 1000; ++i) {
    leave_touch(lane_, i % 64, 10);
    if (i % 3 == 0) {
      const std::vector<uint32_t> pages = read();
      ASSERT_EQ(pages.size(), i == 0 ? 1u : 3u);
      EXPECT_EQ(pages.back(), i % 64);
    }
  }
  EXPECT_EQ(reader_.lost(), 0u);
}

TEST_F(TouchTest, TheLimitLeavesTheRest) {
  for (uint32_t i = 0; i < 10; ++i) leave_touch(lane_, i, 10);
  EXPECT_EQ(read(4), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(read(4), (std::vector<uint32_t>{4, 5, 6, 7}));
  EXPECT_EQ(read(4), (std::vector<uint32_t>{8, 9}));
}

TEST_F(TouchTest, WhatWasOverwrittenIsCounted) {
  for (uint32_t i = 0; i < 20; ++i) leave_touch(lane_, i, 10);
  const std::vector<uint32_t> pages = read();
  ASSERT_EQ(pages.size(), 16u);
  EXPECT_EQ(pages.front(), 4u);
  EXPECT_EQ(pages.back(), 19u);
  EXPECT_EQ(reader_.lost(), 4u);
}

TEST_F(TouchTest, AnEntryThatIsCountedAndNotWrittenIsWaitedForAndThenSkipped) {
  leave_touch(lane_, 1, 10);
  lane_.header->touch_count.fetch_add_relaxed(1);
  leave_touch(lane_, 3, 10);
  EXPECT_EQ(read(), std::vector<uint32_t>{1});
  std::vector<uint32_t> pages;
  for (int i = 0; i < 200 && pages.empty(); ++i) pages = read();
  EXPECT_EQ(pages, std::vector<uint32_t>{3});
  EXPECT_EQ(reader_.lost(), 1u);
}

TEST_F(TouchTest, TheSameAfterALap) {
  for (uint32_t i = 0; i < 16; ++i) leave_touch(lane_, i, 10);
  EXPECT_EQ(read().size(), 16u);
  lane_.header->touch_count.fetch_add_relaxed(1);  // its place still holds entry 0
  EXPECT_EQ(read(), std::vector<uint32_t>{});
  lane_.touches[0].store_relaxed(uint64_t{9} << 32 | 0 << 31 | 10);  // written at last, with the second lap's bit
  EXPECT_EQ(read(), std::vector<uint32_t>{8});
}

TEST_F(TouchTest, TicksOf31BitsAreCompleted) {
  const uint64_t span = uint64_t{1} << 31;
  EXPECT_EQ(through(5, 10), 5u);
  EXPECT_EQ(through(span - 1, span + 3), span - 1) << "just before the wrap, read just after";
  EXPECT_EQ(through(span + 2, span + 3), span + 2);
  EXPECT_EQ(through(5 * span + 100, 5 * span + 200), 5 * span + 100);
  EXPECT_LE(through(300, 200), 200u) << "never in the future";
}

TEST_F(TouchTest, PagesThatDoNotExistAreDropped) {
  leave_touch(lane_, 64, 10);
  leave_touch(lane_, 0xFFFF'FFF0, 10);
  leave_touch(lane_, 63, 10);
  EXPECT_EQ(read(), std::vector<uint32_t>{63});
}

TEST_F(TouchTest, AScribbledCountDoesNotHoldTheReaderUp) {
  leave_touch(lane_, 1, 10);
  EXPECT_EQ(read().size(), 1u);
  lane_.header->touch_count.store_relaxed(~uint64_t{0});
  for (int i = 0; i < 200; ++i) EXPECT_LE(read().size(), 16u);
  lane_.header->touch_count.store_relaxed(0);
  EXPECT_EQ(read(), std::vector<uint32_t>{});
  leave_touch(lane_, 2, 10);
  EXPECT_EQ(read(), std::vector<uint32_t>{2});
}

}  // namespace
}  // namespace maru::shm
