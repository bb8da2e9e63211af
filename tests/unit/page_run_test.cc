#include "libmaru/shm/region/page_run.h"
#include "small_pool.h"

#include <random>

namespace maru::shm {
namespace {

class PageRunTest : public testing::Test {
 protected:
  SmallPool pool_;  // regions of 16 pages, all FREE of generation 0
  const LaneId lane_{1, 7};
};

TEST_F(PageRunTest, AFreePageIsTakenOnce) {
  EXPECT_EQ(take_page(pool_.region, lane_, 5), PageRef::of(5, 0));
  EXPECT_EQ(pool_.word(5), PageWord::reserved(0, lane_));
  EXPECT_TRUE(take_page(pool_.region, {2, 7}, 5).is_none());
  EXPECT_EQ(give_back_run(pool_.region, {2, 7}, PageRef::of(5, 0)), 0u) << "not that lane's";
  EXPECT_EQ(give_back_run(pool_.region, lane_, PageRef::of(5, 1)), 0u) << "not that life";
  EXPECT_EQ(give_back_run(pool_.region, lane_, PageRef::of(5, 0)), 1u);
  EXPECT_EQ(pool_.word(5), PageWord::free(1));
  EXPECT_EQ(take_page(pool_.region, lane_, 5), PageRef::of(5, 1));
}

TEST_F(PageRunTest, OnlyFreePagesAreTaken) {
  for (const PageWord word :
       {PageWord::out(3), PageWord::ready(3, 0), PageWord::tail(3, 1), PageWord::retired(3, lane_),
        PageWord::of(PageState::kPoisoned, 3, 0), PageWord::of(PageState(11), 3, 0)}) {
    pool_.set_word(5, word);
    EXPECT_TRUE(take_page(pool_.region, lane_, 5).is_none());
    EXPECT_EQ(pool_.word(5), word);
  }
}

TEST_F(PageRunTest, ARunIsAHeadAndTails) {
  EXPECT_EQ(take_run(pool_.region, lane_, 4, 5, nullptr), PageRef::of(4, 0));
  EXPECT_EQ(pool_.word(4), PageWord::reserved(0, lane_));
  EXPECT_EQ(pool_.region.run_pages(4), 5u);
  for (uint32_t i = 1; i < 5; ++i) EXPECT_EQ(pool_.word(4 + i), PageWord::tail(0, i));
  EXPECT_EQ(pool_.word(9), PageWord::free(0));
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_EQ(give_back_run(pool_.region, lane_, PageRef::of(4, 0)), 5u);
  EXPECT_EQ(pool_.word(4), PageWord::free(2));
  for (uint32_t i = 1; i < 5; ++i) EXPECT_EQ(pool_.word(4 + i), PageWord::free(1));
  EXPECT_EQ(give_back_run(pool_.region, lane_, PageRef::of(4, 0)), 0u) << "a second time";
}

TEST_F(PageRunTest, ARunThatDoesNotFitTakesNothing) {
  take_page(pool_.region, {2, 7}, 8);
  uint32_t blocker = 0;
  EXPECT_TRUE(take_run(pool_.region, lane_, 5, 6, &blocker).is_none());
  EXPECT_EQ(blocker, 8u);
  for (const uint32_t page : {5u, 6u, 7u}) EXPECT_TRUE(pool_.word(page).is(PageState::kFree));
  EXPECT_EQ(pool_.word(8), PageWord::reserved(0, {2, 7}));
  EXPECT_EQ(pool_.word(9), PageWord::free(0));
  EXPECT_TRUE(take_run(pool_.region, lane_, 8, 2, &blocker).is_none());
  EXPECT_EQ(blocker, 8u);
}

TEST_F(PageRunTest, PagesTakenOneByOneAreJoined) {
  for (const uint32_t page : {3u, 4u, 5u}) take_page(pool_.region, lane_, page);
  join_run(pool_.region, lane_, 3, 3);
  EXPECT_EQ(pool_.region.run_pages(3), 3u);
  EXPECT_EQ(pool_.word(5), PageWord::tail(0, 2));
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_EQ(give_back_run(pool_.region, lane_, PageRef::of(3, 0)), 3u);
}

TEST_F(PageRunTest, RenewingIsAnotherLifeOfASinglePage) {
  const PageRef page = take_page(pool_.region, lane_, 3);
  const PageRef next = renew_page(pool_.region, lane_, page);
  EXPECT_EQ(next, PageRef::of(3, 1));
  EXPECT_EQ(pool_.word(3), PageWord::reserved(1, lane_));
  EXPECT_TRUE(renew_page(pool_.region, lane_, page).is_none()) << "that life is over";
  const PageRef run = take_run(pool_.region, lane_, 8, 2, nullptr);
  EXPECT_TRUE(renew_page(pool_.region, lane_, run).is_none()) << "a run is not renewed";
}

TEST_F(PageRunTest, WhatWasTakenForAClientIsItsOwnAndFoundByItsMark) {
  const LaneId daemon{0, 1};
  const uint64_t mark = grant_mark(lane_, 5), other = grant_mark(lane_, 6);
  const PageRef run = grant_run(pool_.region, daemon, lane_, 4, 3, mark, nullptr);
  EXPECT_EQ(run, PageRef::of(4, 0));
  EXPECT_EQ(pool_.word(4), PageWord::reserved(0, lane_));
  EXPECT_EQ(pool_.word(6), PageWord::tail(0, 2));
  grant_run(pool_.region, daemon, lane_, 8, 1, other, nullptr);
  grant_run(pool_.region, daemon, {2, 7}, 9, 1, grant_mark({2, 7}, 5), nullptr);
  take_page(pool_.region, lane_, 10);
  uint32_t blocker = 0;
  EXPECT_TRUE(grant_run(pool_.region, daemon, lane_, 3, 2, mark, &blocker).is_none());
  EXPECT_EQ(blocker, 4u);
  EXPECT_EQ(pool_.word(3), PageWord::free(1));
  EXPECT_EQ(pool_.audit(), Names{});

  const uint64_t lost[] = {mark, grant_mark(lane_, 7)};
  EXPECT_EQ(give_back_granted(pool_.region, lane_, lost), 3u);
  EXPECT_EQ(pool_.word(4), PageWord::free(2));
  for (const uint32_t page : {5u, 6u}) EXPECT_EQ(pool_.word(page), PageWord::free(1));
  for (const uint32_t page : {8u, 10u}) EXPECT_TRUE(pool_.word(page).is(PageState::kReserved)) << page;
  EXPECT_EQ(pool_.word(9), PageWord::reserved(0, {2, 7}));
  EXPECT_EQ(give_back_granted(pool_.region, lane_, lost), 0u);
}

TEST_F(PageRunTest, AMarkSpeaksOfOneLifeOfItsPage) {
  const uint64_t lost[] = {grant_mark(lane_, 5)};
  const PageRef granted = grant_run(pool_.region, {0, 1}, lane_, 4, 1, lost[0], nullptr);
  give_back_run(pool_.region, lane_, granted);
  const PageRef own = take_page(pool_.region, lane_, 4);
  EXPECT_EQ(give_back_granted(pool_.region, lane_, lost), 0u);
  EXPECT_EQ(pool_.word(4), PageWord::reserved(own.generation(), lane_));
}

TEST_F(PageRunTest, ForgedRunLengthsFreeNothingOfOthers) {
  const PageRef mine = take_page(pool_.region, lane_, 3);
  take_run(pool_.region, {2, 7}, 4, 3, nullptr);
  pool_.region.block(3).shape.store_relaxed(0xFFFF'FFFF);
  EXPECT_EQ(give_back_run(pool_.region, lane_, mine), 1u);
  EXPECT_EQ(pool_.word(4), PageWord::reserved(0, {2, 7}));
  EXPECT_EQ(pool_.word(5), PageWord::tail(0, 1));
}

TEST_F(PageRunTest, ChurnLeavesEveryPageFree) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::pair<LaneId, PageRef>> runs;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2 && !runs.empty()) {
      std::swap(runs[random() % runs.size()], runs.back());
      EXPECT_GT(give_back_run(pool_.region, runs.back().first, runs.back().second), 0u);
      runs.pop_back();
      continue;
    }
    const uint32_t page = uint32_t(random() % 64), count = 1 + uint32_t(random() % (16 - page % 16));
    const LaneId lane{1 + uint32_t(random() % 7), 7};
    if (const PageRef run = take_run(pool_.region, lane, page, count, nullptr); !run.is_none())
      runs.push_back({lane, run});
    if (step % 100 == 0) {
      EXPECT_EQ(pool_.audit(), Names{});
    }
  }
  for (const auto& [lane, run] : runs) give_back_run(pool_.region, lane, run);
  EXPECT_EQ(pool_.count(PageState::kFree), 64u);
}

TEST_F(PageRunTest, AScribbledLengthReachesNoFurtherThanTheTails) {
  const PageRef head = take_run(pool_.region, lane_, 4, 5, nullptr);
  pool_.region.block(4).shape.store_relaxed(12);
  pool_.set_word(6, PageWord::poisoned(0));
  pool_.set_word(10, PageWord::tail(0, 6));  // behind a FREE page
  EXPECT_EQ(tails_end(pool_.region, 4), 5u);
  EXPECT_EQ(give_back_run(pool_.region, lane_, head), 4u);
  EXPECT_EQ(pool_.word(6), PageWord::poisoned(0));
  EXPECT_EQ(pool_.word(10), PageWord::tail(0, 6));
}

// Page 5 was lost with a host's caches, page 6 was not.
TEST(PageRunOfADurablePool, TailsBehindALostOneGoToo) {
  SmallPool pool{{.lanes = 8, .hosts = 3}};
  const LaneId lane{1, 7};
  const PageRef head = take_run(pool.region, lane, 4, 3, nullptr);
  pool.set_word(5, PageWord::free(0));
  EXPECT_EQ(give_back_run(pool.region, lane, head), 2u);
  EXPECT_EQ(pool.word(6), PageWord::free(1));
}

}  // namespace
}  // namespace maru::shm
