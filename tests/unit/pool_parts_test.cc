// The parts of a pool, each with the parts below it and no pool around them: the core and what a test needs of the rest, over a
// control region in an array of bytes.
#include "daemon/pool/answers.h"
#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/reclaim/recounts.h"
#include "daemon/pool/removal/deletions.h"
#include "small_pool.h"

#include <array>
#include <string>
#include <vector>

namespace maru::daemon {
namespace {

// As far as the removal of trees.
struct Parts {
  shm::SmallPool pool;
  PoolCore core;
  RegionTable regions{core};
  LaneTable lanes{core};
  PoolTenants tenants;
  Findings findings;
  PoolFeed feed{core, lanes, regions};
  Queues queues{core, regions, tenants};
  RetiredBlocks retired{core, regions, lanes, queues};
  Rounds rounds;
  HeldBlocks held{core, regions, lanes, queues, rounds};
  Recency recency{{core, lanes, regions, feed, findings, queues, retired, rounds, held}};
  Evictor evictor{{core, lanes, regions, tenants, feed, queues, held}};
  Trees trees{{core, lanes, feed, queues, retired, evictor}};
  Deletions deletions{{core, lanes, evictor, trees}};
  Recounts recounts{{core, lanes, regions, findings, queues}};

  explicit Parts(const shm::PoolShape& shape = {}) : pool(shape) {
    core.region = pool.region;
    core.now_ms = 1'700'000'002'000;
    core.pin_counts.assign(shm::PinTable::counts_needed(core.region.layout()), AtomicU32{});
    core.pins = shm::PinTable(core.region, 0, core.pin_counts);
    core.self.region = &core.region;
    core.self.pins = &core.pins;
    core.self.returns = &tenants;
    core.self.id = lanes.daemon = shm::daemon_lane(core.region);
    lanes.end = core.region.lanes();
    lanes.records.assign(lanes.end, {});
    lanes.in_use = pool.lanes;
    regions.set_up();
    for (RegionEntry& entry : regions) {
      entry.state = RegionState::kRented;
      entry.owner = {1, 7};
    }
    tenants.begin("parts", core.region, lanes.in_use, {0, lanes.end}, {});
    findings.resize(core.pages());
    queues.set_up();
    retired.set_up();
    EXPECT_TRUE(queues.set_policy("lru", {}, false));
  }
  bool is_ready(PageRef ref) const { return core.word(ref.page()).is(PageState::kReady, ref.generation()); }
  Shortage shortage_of(uint64_t pages) const {
    Shortage shortage;
    shortage.reason = EvictReason::kBackground;
    shortage.runs = pages;
    return shortage;
  }
};

TEST(PoolParts, AnAnswerIsFetchedOnce) {
  Answers<std::string> answers;
  answers.expect(7);
  EXPECT_TRUE(answers.is_pending(7));
  EXPECT_EQ(answers.take(7), std::nullopt);
  answers.give(7, "done");
  EXPECT_FALSE(answers.is_pending(7));
  EXPECT_EQ(answers.take(7), "done");
  EXPECT_EQ(answers.take(7), std::nullopt);
}

TEST(PoolParts, ADroppedAnswerIsNeitherPendingNorThere) {
  Answers<int> answers;
  answers.expect(1);
  answers.drop(1);
  EXPECT_FALSE(answers.is_pending(1));
  EXPECT_EQ(answers.take(1), std::nullopt);
}

TEST(PoolParts, OnlyTheLastAnswersThatNoAskerFetchesAreKept) {
  Answers<int> answers;
  const uint64_t count = Answers<int>::kKeptMax + 1;
  for (uint64_t ticket = 1; ticket <= count; ++ticket) answers.give(ticket, int(ticket));
  EXPECT_EQ(answers.take(1), std::nullopt);
  EXPECT_EQ(answers.take(2), 2);
  EXPECT_EQ(answers.take(count), int(count));
}

TEST(PoolParts, TheTableOfRegionsKeepsTheSumOfCountedPages) {
  Parts parts;
  parts.regions.set_counted(0, 5);
  parts.regions.set_counted(1, 7);
  EXPECT_EQ(parts.regions.pages_in_use, 12u);
  parts.regions.set_counted(0, 2);
  EXPECT_EQ(parts.regions.pages_in_use, 9u);
  parts.regions[1].is_foreign = true;
  parts.regions.set_counted(1, 7);
  EXPECT_EQ(parts.regions.pages_in_use, 2u) << "pages of another host's region are not counted here";
}

TEST(PoolParts, AChangeOfARegionIsShown) {
  Parts parts;
  const uint32_t generation = parts.regions[2].generation;
  parts.regions.set_region(2, RegionState::kOrphaned, {});
  EXPECT_EQ(parts.regions[2].generation, generation + 1);
  EXPECT_EQ(parts.regions.regions_of({1, 7}), (std::vector<uint32_t>{0, 1, 3}));
  const uint64_t word = parts.core.region.region(2).word.load_acquire();
  EXPECT_EQ(word >> 60, uint64_t(RegionState::kOrphaned));
}

TEST(PoolParts, LanesAreGivenUntilNoneIsFree) {
  Parts parts;
  ClientIdentity who;
  who.pid = 42;
  for (uint32_t lane = 1; lane < parts.core.region.lanes(); ++lane) {
    const auto grant = parts.lanes.give(who, FileDescriptor());
    ASSERT_TRUE(grant);
    EXPECT_EQ(grant->lane, lane);
    EXPECT_TRUE(parts.lanes.keeps_lane(who, grant->lane, grant->generation));
  }
  EXPECT_FALSE(parts.lanes.give(who, FileDescriptor()));
  EXPECT_FALSE(parts.lanes.has_lane_in(LaneRecord::Phase::kFree));
}

TEST(PoolParts, TheColdestBlocksGoFirst) {
  Parts parts;
  std::vector<PageRef> blocks;
  for (uint64_t i = 0; i < 4; ++i) {
    blocks.push_back(parts.pool.store(1, "block " + std::to_string(i)));
    parts.queues.order.learn(blocks[i].page(), blocks[i].generation(), 100 - i);
    parts.queues.insert(blocks[i].page(), blocks[i].generation());
  }
  Shortage shortage = parts.shortage_of(2);
  parts.evictor.evict_coldest(std::array{0u, 1u, 2u, 3u}, shortage);
  EXPECT_EQ(shortage.blocks_evicted, 2u);
  EXPECT_TRUE(parts.is_ready(blocks[0]));
  EXPECT_TRUE(parts.is_ready(blocks[1]));
  EXPECT_FALSE(parts.is_ready(blocks[2]));
  EXPECT_FALSE(parts.is_ready(blocks[3]));
  EXPECT_EQ(parts.core.totals.evicted_blocks[size_t(EvictReason::kBackground)], 2u);
}

TEST(PoolParts, APinnedBlockIsHeldAndComesBackWhenItsPinEnds) {
  Parts parts;
  const PageRef ref = parts.pool.store(1, "a");
  parts.queues.insert(ref.page(), ref.generation());
  const shm::Pin pin = parts.pool.client(3).pins.pin(ref);
  Shortage shortage = parts.shortage_of(1);
  parts.evictor.evict_coldest(std::array{0u}, shortage);
  EXPECT_TRUE(parts.is_ready(ref));
  EXPECT_EQ(parts.held.size(), 1u);
  EXPECT_FALSE(parts.queues.order.contains(ref.page()));
  parts.held.look_at_all();
  EXPECT_EQ(parts.held.size(), 1u) << "its pin lasts";
  parts.pool.client(3).pins.unpin(pin.slot, ref);
  parts.held.look_at_all();
  EXPECT_EQ(parts.held.size(), 0u);
  EXPECT_TRUE(parts.queues.order.contains(ref.page()));
}

TEST(PoolParts, ATreeGoesLeavesFirst) {
  Parts parts;
  const PageRef root = parts.pool.store(1, "root"), child = parts.pool.store(1, "child", root);
  parts.pool.store(1, "grandchild", child);
  const PageRef other = parts.pool.store(1, "other");
  const auto removed = parts.deletions.remove(parts.pool.digest("root"), false, true);
  ASSERT_TRUE(removed);
  ASSERT_TRUE(removed->now);
  EXPECT_EQ(removed->now->deleted, 3u);
  EXPECT_EQ(removed->now->left, 0u);
  EXPECT_TRUE(parts.is_ready(other));
  const auto again = parts.deletions.remove(parts.pool.digest("root"), false, true);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ENOENT);
}

TEST(PoolParts, ATreeThatTakesLongerIsAnsweredUnderItsTicket) {
  Parts parts({.pages = 8192, .region_pages = 512});
  const PageRef root = parts.pool.store(1, "root");
  parts.pool.store(1, "child", root);
  const auto removed = parts.deletions.remove(parts.pool.digest("root"), false, false);
  ASSERT_TRUE(removed);
  ASSERT_FALSE(removed->now) << "more pages than a turn looks at";
  while (parts.deletions.step()) {
  }
  const std::vector<Answered<Removal>> done = parts.deletions.take_removals();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ticket, removed->ticket);
  EXPECT_EQ(done[0].answer.deleted, 2u);
  EXPECT_TRUE(parts.deletions.take_removals().empty());
}

TEST(PoolParts, ARecountBringsACountDownAndItsBlockBackIntoTheOrder) {
  Parts parts;
  const PageRef ref = parts.pool.store(1, "a");
  parts.pool.set_word(ref.page(), PageWord::ready(ref.generation(), 3));
  parts.findings.parent_suspect(ref);
  parts.recounts.step(false);
  EXPECT_EQ(parts.core.word(ref.page()), PageWord::ready(ref.generation(), 0));
  EXPECT_TRUE(parts.queues.order.contains(ref.page()));
  EXPECT_TRUE(parts.findings.parents.empty());
  EXPECT_FALSE(parts.recounts.is_under_way());
}

}  // namespace
}  // namespace maru::daemon
