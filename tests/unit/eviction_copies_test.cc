// Among equally cold blocks those go first that have a copy elsewhere.
#include "tests/unit/eviction_fixture.h"

#include <gtest/gtest.h>

namespace maru::test {
namespace {

// Two regions of blocks with ticks of the test's choice.
class Copies : public testing::Test {
 protected:
  static constexpr uint32_t kRegionOf = 32;
  Copies() { order_.set_policy(policy_, false); }
  void add(uint32_t page, uint64_t tick, uint32_t generation = 1) {
    order_.learn(page, generation, tick);
    ASSERT_TRUE(order_.insert(page));
  }
  std::vector<uint32_t> evict(size_t n) {
    std::vector<uint32_t> gone;
    EvictionOrder::Coldest coldest(order_, std::vector<uint32_t>{0, 1});
    uint32_t page;
    EvictionOrder::Key key;
    while (gone.size() < n && coldest.peek(&page, &key) && order_.remove(page)) gone.push_back(page);
    return gone;
  }

  ByTick policy_;
  std::vector<format::PolicyEntry> entries_ = std::vector<format::PolicyEntry>(2 * kRegionOf);
  TestFacts facts_{2 * kRegionOf, 1};
  EvictionOrder order_{entries_, kRegionOf, facts_};
};

TEST_F(Copies, BlocksWithACopyGoFirstAmongEqualsAndNotBeforeColderOnes) {
  add(0, 5);
  for (uint32_t page = 1; page < 6; ++page) add(page, 7);
  for (uint32_t page = kRegionOf; page < kRegionOf + 4; ++page) add(page, 7);
  add(6, 8);
  for (const uint32_t page : {3u, 5u, kRegionOf + 2, 6u}) order_.note_copy(page);
  EXPECT_EQ(evict(20),
            (std::vector<uint32_t>{0, 3, 5, kRegionOf + 2, 1, 2, 4, kRegionOf, kRegionOf + 1, kRegionOf + 3, 6}));
}

TEST_F(Copies, EndWithTheLifeOfTheBlock) {
  for (uint32_t page = 0; page < 3; ++page) add(page, 7);
  order_.note_copy(2);
  EXPECT_TRUE(order_.has_copy(2));
  order_.learn(2, 1, 7);  // as a new policy does
  EXPECT_TRUE(order_.has_copy(2));
  ASSERT_TRUE(order_.remove(2));
  add(2, 7, 2);
  EXPECT_FALSE(order_.has_copy(2));
  EXPECT_EQ(evict(3), (std::vector<uint32_t>{0, 1, 2}));
}

TEST_F(Copies, OfAShelfThatWasAnotherHostsAreUnknown) {
  for (const uint32_t page : {0u, 1u, kRegionOf, kRegionOf + 1}) add(page, 7);
  order_.note_copy(1);
  order_.note_copy(kRegionOf + 1);
  order_.forget_copies(order_.shelf_of(1));
  EXPECT_EQ(evict(4), (std::vector<uint32_t>{kRegionOf + 1, 0, 1, kRegionOf}));
}

TEST_F(Copies, AreLookedForAmongFewBlocksAlone) {
  for (uint32_t page = 0; page < kRegionOf; ++page) add(page, 7);
  order_.note_copy(15);
  order_.note_copy(17);
  EXPECT_EQ(evict(2), (std::vector<uint32_t>{15, 0})) << "17 stands behind sixteen others";
  EXPECT_EQ(evict(1), (std::vector<uint32_t>{17}));
}

// A choice of many blocks among equals, with a bound on the lines that it reads.
TEST_F(Copies, LooksCountAgainstTheBoundOfAChoice) {
  daemon::LineMeter meter;
  order_.count_lines(&meter);
  for (uint32_t page = 0; page < 2 * kRegionOf; ++page) add(page, 7);
  const auto lines_of = [&](size_t n) {
    const uint64_t before = meter.read();
    uint64_t left = 1'000'000;
    EvictionOrder::Coldest coldest(order_, std::vector<uint32_t>{0, 1}, &left);
    uint32_t page;
    EvictionOrder::Key key;
    for (size_t i = 0; i < n; ++i) EXPECT_TRUE(coldest.peek(&page, &key) && order_.remove(page));
    EXPECT_EQ(meter.read() - before, 1'000'000 - left);
    return meter.read() - before;
  };
  EXPECT_EQ(lines_of(1), 0u) << "before the first copy is noted nothing is looked for";
  order_.note_copy(2 * kRegionOf - 1);
  EXPECT_EQ(lines_of(1), 2 * 15u) << "behind the cold end of each region";
  EXPECT_EQ(lines_of(10), 11 * 15u) << "and behind each block that comes to the end";
  uint64_t few = 80;
  EvictionOrder::Coldest coldest(order_, std::vector<uint32_t>{0}, &few);
  uint32_t page;
  EvictionOrder::Key key;
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(coldest.peek(&page, &key) && order_.remove(page));
  EXPECT_EQ(few, 60u) << "a quarter of them";
}

}  // namespace
}  // namespace maru::test
