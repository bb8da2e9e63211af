#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/evict.h"
#include "small_pool.h"

#include <algorithm>

namespace maru::shm {
namespace {

struct Seen final : ReclaimSink {
  std::vector<PageRef> suspects, retired, unregistered_blocks;
  uint32_t freed = 0;
  void parent_suspect(PageRef parent) override { suspects.push_back(parent); }
  void retired_taken(PageRef ref) override { retired.push_back(ref); }
  void unregistered(PageRef ref) override { unregistered_blocks.push_back(ref); }
  void pages_freed(uint32_t pages) override { freed += pages; }
};

struct Dead final : DeadLanes {
  explicit Dead(uint32_t lane) : dead(lane) {}
  bool is_dead(LaneId lane) const override { return lane.lane == dead; }
  uint32_t dead;
};

class ReclaimTest : public testing::Test {
 protected:
  void reclaim(uint32_t lane) {
    clear_pins(pool_.region, lane);
    reclaim_intents(pool_.region, lane, seen_);
    reclaim_pages(pool_.lane(0), pool_.lane(lane).id, 0, 64, seen_);
    release_overflow_of(pool_.region, pool_.lane(lane).id);
    clear_lane(pool_.region, lane);
    pool_.stop_using_lane(lane);
  }
  size_t recount(std::vector<PageRef> parents) {
    std::ranges::sort(parents, {}, &PageRef::bits);
    std::vector<Recount> recounts;
    for (const PageRef parent : parents) {
      Recount recount{};
      recount.parent = parent;
      recounts.push_back(recount);
    }
    recount_begin(pool_.region, recounts);
    recount_pages(pool_.region, recounts, Dead(5), 0, 64);
    return recount_commit(pool_.region, recounts, pool_.lanes);
  }
  void seal(uint32_t lane, PageRef own, PageRef parent) {
    pool_.region.block(own.page()).parent.store_relaxed(parent.bits);
    pool_.set_word(own.page(), PageWord::sealed(own.generation(), pool_.lane(lane).id));
  }

  SmallPool pool_;
  Seen seen_;
};

TEST(ReclaimTails, OfTheDeadAreFreedByTheirOwnWordsAndThoseOfOthersStay) {
  SmallPool pool({.hosts = 2});
  Seen seen;
  const PageRef run = pool.take(2, 5), other = pool.take(3, 4), retired = pool.take(2, 2);
  ASSERT_EQ(run.page(), 0u);
  pool.set_word(2, PageWord::free(9));  // its line was lost
  pool.set_word(retired.page(), PageWord::retired(retired.generation(), pool.lane(2).id));
  pool.set_word(15, PageWord::tail(3, 15));  // further away than the head says
  free_dead_tails(pool.region, Dead(2), 0, 16, seen);
  EXPECT_EQ(seen.freed, 3u);
  EXPECT_TRUE(pool.word(0).is(PageState::kReserved)) << "the head is the last";
  for (const uint32_t page : {1u, 3u, 4u}) EXPECT_TRUE(pool.word(page).is(PageState::kFree)) << page;
  EXPECT_EQ(pool.word(2).bits, PageWord::free(9).bits);
  EXPECT_TRUE(pool.word(other.page() + 1).is(PageState::kTail));
  EXPECT_TRUE(pool.word(retired.page() + 1).is(PageState::kTail));
  EXPECT_TRUE(pool.word(15).is(PageState::kTail));
  pool.set_word(1, PageWord::tail(9, 1));  // which the heads alone do not free any more
  reclaim_pages(pool.lane(0), Dead(2), 0, 16, seen, Tails::kAreFreed);
  EXPECT_EQ(seen.freed, 4u);
  EXPECT_TRUE(pool.word(0).is(PageState::kFree));
  EXPECT_TRUE(pool.word(1).is(PageState::kTail));
  ASSERT_EQ(seen.retired.size(), 1u);
}

TEST_F(ReclaimTest, WhatADeadLaneHeldIsFreeAndWhatItPublishedStays) {
  const PageRef block = pool_.store(5, "a");
  pool_.take(5);
  pool_.take(5, 4);
  const PageRef other = pool_.take(6);
  pool_.client(5).pins.pin(block);
  leave_touch(pool_.region.lane(5), 1, 1);
  reclaim(5);
  EXPECT_EQ(seen_.freed, 5u);
  EXPECT_EQ(pool_.count(PageState::kFree), 62u);
  EXPECT_TRUE(pool_.word(other.page()).is(PageState::kReserved));
  EXPECT_EQ(find_unpinned(pool_.region, pool_.digest("a")), block);
  EXPECT_TRUE(seen_.suspects.empty());
  EXPECT_TRUE(seen_.unregistered_blocks.empty());
  pool_.rent(3, 1);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, AnotherLifeOfTheLaneIsNotTouched) {
  const PageRef own = pool_.take(5);
  reclaim_pages(pool_.lane(0), LaneId{5, 6}, 0, 64, seen_);
  EXPECT_EQ(seen_.freed, 0u);
  EXPECT_TRUE(pool_.word(own.page()).is(PageState::kReserved));
}

TEST_F(ReclaimTest, OverflowPinsOfADeadLaneEnd) {
  for (uint32_t page = 0; page < 64; ++page) pool_.client(5).pins.pin_own(PageRef::of(page, 0));
  EXPECT_NE(pool_.lane(5).header().pin_overflow.load_relaxed(), 0u);
  reclaim(5);
  for (uint32_t page = 0; page < 64; ++page) EXPECT_FALSE(is_pinned(pool_.region, LaneSet::in_use(pool_.region), page));
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, ASealedChildMakesItsParentSuspect) {
  const PageRef parent = pool_.store(1, "p"), own = pool_.take(5);
  seal(5, own, parent);
  ASSERT_TRUE(add_child(pool_.region, parent));  // and then it died
  reclaim(5);
  EXPECT_EQ(seen_.suspects, std::vector<PageRef>{parent});
  EXPECT_EQ(pool_.audit(), Names{"children.exact"});
  EXPECT_EQ(recount(seen_.suspects), 0u);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 0));
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, ARetiredBlockIsTakenOverAndFinished) {
  const PageRef parent = pool_.store(1, "p"), child = pool_.store(1, "c", parent);
  ASSERT_EQ(retire_ref(pool_.lane(5), child), RetireStatus::kRetired);
  reclaim(5);
  ASSERT_EQ(seen_.retired, std::vector<PageRef>{child});
  EXPECT_EQ(finish_retired(pool_.lane(0), child, pool_.lanes, nullptr), FinishStatus::kFreed);
  EXPECT_EQ(pool_.word(parent.page()).children(), 0u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, AnIntentMakesTheParentSuspect) {
  const PageRef parent = pool_.store(1, "p");
  pool_.set_word(parent.page(),
                 PageWord::ready(parent.generation(), 1));  // the child is free, the count is not lowered
  pool_.lane(5).header().parent_intent[3].store_relaxed(parent.bits);
  pool_.lane(5).header().parent_intent[4].store_relaxed(PageRef::of(64, 0).bits);  // damaged
  reclaim(5);
  EXPECT_EQ(seen_.suspects, std::vector<PageRef>{parent});
  EXPECT_EQ(recount(seen_.suspects), 0u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, AReadyBlockThatWasNeverRegisteredIsFound) {
  const PageRef own = pool_.store(5, "a");
  ASSERT_TRUE(registry_remove(pool_.region, pool_.lane(5).id, pool_.digest("a"), own));
  reclaim(5);
  EXPECT_EQ(seen_.unregistered_blocks, std::vector<PageRef>{own});
  uint16_t attempt = 0;
  const uint32_t page = own.page();
  PageRef retired;
  ASSERT_EQ(retire_unpinned(pool_.lane(0), pool_.lanes, &page, 1, &attempt, &retired), 1u);
  EXPECT_EQ(free_retired(pool_.lane(0), own, nullptr), FinishStatus::kFreed);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, ClaimsOfADeadPublisherAreHarmless) {
  const PageRef own = pool_.take(5);
  seal(5, own, PageRef::none());
  pool_.region.bucket(2).locations.location[0].store_relaxed(own.bits);
  EXPECT_EQ(pool_.audit(), (Names{"page.sealed", "slot.claim"}));
  reclaim(5);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ReclaimTest, RecountSeesEveryKindOfChild) {
  const PageRef parent = pool_.store(1, "p");
  const PageRef ready = pool_.store(1, "a", parent), retiring = pool_.store(1, "b", parent);
  const PageRef retired = pool_.store(1, "c", parent), dead = pool_.take(5);
  pool_.set_word(retiring.page(), PageWord::retiring(retiring.generation(), 0, 1));
  retire_ref(pool_.lane(1), retired);
  seal(5, dead, parent);
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), 9));
  EXPECT_EQ(recount({parent, ready}), 0u);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 4));
  EXPECT_EQ(pool_.word(ready.page()), PageWord::ready(ready.generation(), 0));
}

TEST_F(ReclaimTest, ASealedChildOfALiveLanePostpones) {
  const PageRef parent = pool_.store(1, "p"), own = pool_.take(6);
  seal(6, own, parent);
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), 1));
  EXPECT_EQ(recount({parent}), 1u);
  EXPECT_EQ(pool_.word(parent.page()).children(), 1u);
  pool_.set_word(own.page(), PageWord::reserved(own.generation(), pool_.lane(6).id));
  EXPECT_EQ(recount({parent}), 0u);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 0));
}

TEST_F(ReclaimTest, AnIntentOfALiveLanePostpones) {
  const PageRef parent = pool_.store(1, "p");
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), 1));
  pool_.lane(6).header().parent_intent[0].store_relaxed(parent.bits);
  EXPECT_EQ(recount({parent}), 1u);
  pool_.lane(6).header().parent_intent[0].store_relaxed(0);
  EXPECT_EQ(recount({parent}), 0u);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 0));
}

TEST_F(ReclaimTest, AChangeInBetweenWins) {
  const PageRef parent = pool_.store(1, "p");
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), 3));
  Recount recount{};
  recount.parent = parent;
  const std::span<Recount> recounts(&recount, 1);
  recount_begin(pool_.region, recounts);
  EXPECT_TRUE(pool_.word(parent.page()).recount());
  recount_pages(pool_.region, recounts, Dead(5), 0, 64);
  pool_.store(1, "c", parent);
  EXPECT_EQ(recount_commit(pool_.region, recounts, pool_.lanes), 1u) << "again later";
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 4));
  recount_begin(pool_.region, recounts);
  recount_pages(pool_.region, recounts, Dead(5), 0, 64);
  EXPECT_EQ(recount_commit(pool_.region, recounts, pool_.lanes), 0u);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 1));
}

TEST_F(ReclaimTest, ScribbledRegionsDoNotHoldReclaimUp) {
  for (uint32_t page = 0; page < 64; ++page) {
    pool_.region.block(page).shape.store_relaxed(~uint64_t{0});
    pool_.region.block(page).parent.store_relaxed(~uint64_t{0});
    pool_.set_word(page, page % 3 ? PageWord::sealed(page, pool_.lane(5).id) : PageWord{~uint64_t{0} - page});
  }
  reclaim(5);
  EXPECT_EQ(seen_.freed, 42u);
  EXPECT_TRUE(seen_.suspects.empty());
}

}  // namespace
}  // namespace maru::shm
