// No turn of a pool is long, whatever clients have written: each walk ends when it has read so many lines, and goes on in the
// next turn. Bounds are counts of lines, as marud's meter has them, and not times.
#include "tests/unit/filled_pool.h"

#include <cerrno>
#include <optional>

namespace maru::daemon {
namespace {

using format::RegionState;
using shm::LaneId;
using shm::PageState;
using shm::PageWord;
using shm::RegionWord;

constexpr uint32_t kRegionPages = 1u << 14, kPins = 1u << 13;
// What a turn reads at most: its lines, one step more, and the upkeep of small tables; and a region some times, where one is
// given to a client or found empty. With a request, that request's lines, too.
constexpr uint64_t kMostLines = (1u << 14) + 4 * kRegionPages, kMostWithRequests = kMostLines + 2 * kRegionPages;
constexpr int kTurnsMax = 100'000;

class Turns : public ::testing::Test {
 protected:
  Turns() { home_.now_ms += 1'000'000; }  // there is a time in which blocks were used
  uint32_t pages() const { return uint32_t(home_.region.pages()); }
  void set_word(uint32_t page, PageWord word) { home_.region.block(page).word.store_release(word.bits); }
  // Turns until nothing is left to do.
  void turn_to_the_end() {
    int turns = 0;
    for (home_.now_ms += 50; home_.pool->turn(home_.now_ms) || turns < 8; home_.now_ms += 1)
      ASSERT_LT(++turns, kTurnsMax) << "marud's turns do not come to an end";
  }
  // The whole pool becomes this client's, a region a turn.
  void rent_all(InProcessClient& client) {
    while (client.regions.size() < home_.region.regions()) {
      ASSERT_TRUE(client.rent(kRegionPages));
      home_.pool->turn(home_.now_ms += 50);
    }
  }
  // A block that no store has made: of this lane, and in no bucket.
  void forge_block(uint32_t page, PageWord word, LaneId owner, PageRef parent = PageRef::none()) {
    format::BlockLine& line = home_.region.block(page);
    line.digest_lo.store_relaxed(page * 0x9e37'79b9'7f4a'7c15);
    line.digest_hi.store_relaxed(page * 0xbf58'476d'1ce4'e5b9);
    line.length.store_relaxed(100);
    line.shape.store_relaxed(1);
    line.parent.store_relaxed(parent.bits);
    home_.region.detail(page).owner.store_relaxed(owner.low());
    // Anywhere in the order.
    home_.region.detail(page).stored_ms.store_relaxed(home_.now_ms - page * 7919ull % 100'003);
    set_word(page, word);
  }
  void claim_overflow() {
    for (uint32_t lane = 1; lane < home_.region.lanes(); ++lane)
      home_.region.lane_header(lane).pin_overflow.store_relaxed(1);
  }
  uint64_t longest() const { return home_.pool->turn_lines_max(); }

  PoolUnderTest home_{1ull << 29, kRegionPages, kPins};
  std::unique_ptr<InProcessClient> client_ = home_.attach(), other_ = home_.attach();
};

TEST_F(Turns, SuspectParentsAreCountedInParts) {
  rent_all(*client_);
  // Half of the pages are parents with a child that is half stored: nobody knows whether it is counted.
  for (uint32_t page = 0; page < pages(); page += 2) {
    forge_block(page, PageWord::ready(0, 1, true), client_->lane.id);
    forge_block(page + 1, PageWord::sealed(0, client_->lane.id), client_->lane.id, PageRef::of(page, 0));
  }
  home_.pool->client_died(client_->grant.lane);
  turn_to_the_end();
  for (uint32_t page = 0; page < pages(); page += 2) ASSERT_EQ(home_.word(page), PageWord::ready(0, 0)) << page;
  EXPECT_LE(longest(), kMostLines);
}

TEST_F(Turns, BlocksThatNobodyFindsGoInParts) {
  rent_all(*client_);
  claim_overflow();
  const shm::LaneView lane = home_.region.lane(client_->grant.lane);
  uint32_t page = 0;
  for (AtomicU64& slot : lane.pins) {
    forge_block(page, PageWord::ready(0, 0), client_->lane.id);
    slot.store_relaxed(PageRef::of(page++, 0).bits);
  }
  home_.pool->client_died(client_->grant.lane);
  turn_to_the_end();
  EXPECT_EQ(home_.count(PageState::kReady), 0u);
  EXPECT_LE(longest(), kMostLines);
  EXPECT_TRUE(home_.attach()) << "the lane is free";
}

TEST_F(Turns, PinsOfManyDeadEndInParts) {
  std::vector<std::unique_ptr<InProcessClient>> dying;
  while (auto more = home_.attach()) dying.push_back(std::move(more));
  rent_all(*client_);
  for (uint32_t page = 0; page < pages(); ++page) forge_block(page, PageWord::ready(0, 0), dying[page % 4]->lane.id);
  for (const auto& each : dying) {
    const shm::LaneView lane = home_.region.lane(each->grant.lane);
    for (size_t i = 0; i < lane.pins.size(); ++i)
      lane.pins[i].store_relaxed(PageRef::of(uint32_t(i * 31 % pages()), 0).bits);
    home_.pool->client_died(each->grant.lane);
  }
  turn_to_the_end();
  for (const auto& each : dying) EXPECT_EQ(home_.region.lane(each->grant.lane).pins[0].load_relaxed(), 0u);
  EXPECT_LE(longest(), kMostLines);
}

// A client that damages the queues before each turn makes the works before the others as long as a turn may be.
TEST_F(Turns, EveryWorkHasItsStepBesideAClientThatMakesOthersLong) {
  rent_all(*client_);
  for (uint32_t page = 0; page < pages(); ++page) forge_block(page, PageWord::ready(0, 0), other_->lane.id);
  const auto damage = [&] {
    for (uint32_t page = 0; page < pages(); page += 4) home_.region.policy_table()[page].newer.store_relaxed(page + 40);
    for (uint32_t i = 0; i < 256; ++i) other_->touch(PageRef::of(i * 511 % pages(), 0));
  };
  turn_to_the_end();
  home_.pool->client_died(client_->grant.lane);
  int turns = 0;
  while (home_.pool->is_reclaiming()) {
    damage();
    home_.pool->turn(++home_.now_ms);
    ASSERT_LT(++turns, 4000) << "the lane of the client that ended is not taken back";
  }
}

TEST_F(Turns, RegionsOfAClientThatEndsAreSettledInParts) {
  rent_all(*client_);
  home_.pool->client_died(client_->grant.lane);
  turn_to_the_end();
  EXPECT_EQ(home_.count(PageState::kOut), pages());
  EXPECT_LE(longest(), kMostLines);
}

TEST_F(Turns, ARequestForEverythingGetsItInParts) {
  ASSERT_TRUE(client_->rent(pages()));
  EXPECT_LT(client_->regions.size(), home_.region.regions());
  EXPECT_TRUE(client_->runs.empty()) << "what it just got is not given once more";
  while (client_->regions.size() < home_.region.regions()) {
    ASSERT_TRUE(client_->rent(pages()));
    home_.pool->turn(home_.now_ms);
  }
  EXPECT_LE(longest(), kMostWithRequests);
}

TEST_F(Turns, ARefusalLooksEverywhereInParts) {
  rent_all(*client_);
  for (uint32_t page = 0; page < pages(); ++page) forge_block(page, PageWord::ready(0, 1), client_->lane.id);
  wire::RentRequest request = {};
  request.runs = request.run_pages = 1;
  uint64_t ticket = 0;
  RentResult result;
  int turns = 0;
  do {
    result = home_.pool->rent(other_->grant.lane, request, home_.now_ms, {}, 1, &ticket);
    home_.pool->turn(++home_.now_ms);
    ASSERT_LT(++turns, kTurnsMax);
  } while (ticket != 0);
  EXPECT_EQ(result.status, -ENOSPC);
  EXPECT_GT(turns, 3);
  EXPECT_LE(longest(), kMostWithRequests) << "a search reads a part of the pool a turn";
}

TEST_F(Turns, APoolIsDrainedInParts) {
  rent_all(*client_);
  claim_overflow();
  // The blocks of one region, and of each other one few, so that this does not last.
  for (uint32_t page = 0; page < pages(); page += page < 3000 ? 1 : 4000)
    forge_block(page, PageWord::ready(0, 0), client_->lane.id);
  home_.pool->set_draining(true, home_.now_ms);
  for (int turns = 0; !home_.pool->is_drained(); ++turns) {
    ASSERT_LT(turns, kTurnsMax);
    home_.pool->turn(home_.now_ms += 1);
  }
  EXPECT_EQ(home_.count(PageState::kOut), pages());
  EXPECT_LE(longest(), kMostLines);
}

// -- takeover ---------------------------------------------------------------------------------------------------------

class TakeoverTurns : public Turns {
 protected:
  TakeoverTurns() {
    rent_all(*client_);
    for (uint32_t page = 0; page < pages(); ++page) {
      forge_block(page, PageWord::ready(0, 0), client_->lane.id);
      home_.region.block(page).shape.store_relaxed(kRegionPages);  // as if its run were all of the region
    }
    claim_overflow();
  }
  // One turn of the request of the other client. Nothing while it goes on.
  std::optional<RentResult> ask() {
    wire::RentRequest request = {};
    request.runs = request.run_pages = 1;
    RentResult result = home_.pool->rent(other_->grant.lane, request, home_.now_ms, {}, 1, &ticket_);
    home_.pool->turn(++home_.now_ms);
    return ticket_ == 0 ? std::optional(std::move(result)) : std::nullopt;
  }
  uint32_t regions_that_are(RegionState state) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < home_.region.regions(); ++i)
      count += RegionWord{home_.region.region(i).word.load_acquire()}.state() == state;
    return count;
  }
  void ask_until_a_region_is_emptied() {
    for (int turns = 0; regions_that_are(RegionState::kDraining) == 0; ++turns) {
      ASSERT_FALSE(ask());
      ASSERT_LT(turns, kTurnsMax);
    }
    ASSERT_FALSE(ask());
    ASSERT_GT(home_.count(PageState::kReady), pages() - kRegionPages) << "the rest waits for later turns";
  }
  uint64_t ticket_ = 0;
};

TEST_F(TakeoverTurns, ARegionIsTakenInParts) {
  std::optional<RentResult> result;
  for (int turns = 0; !(result = ask()); ++turns) ASSERT_LT(turns, kTurnsMax);
  ASSERT_EQ(result->status, 0);
  ASSERT_EQ(result->regions.size(), 1u);
  ASSERT_EQ(result->taken.size(), 1u);
  EXPECT_EQ(result->taken.front().lane, client_->grant.lane);
  EXPECT_TRUE(shm::owns_region(home_.region, result->regions.front(), other_->lane.id));
  EXPECT_LE(longest(), kMostWithRequests);
}

TEST_F(TakeoverTurns, ARegionWhoseAskerDiesIsAnOrphan) {
  ask_until_a_region_is_emptied();
  home_.pool->client_died(other_->grant.lane);
  EXPECT_EQ(regions_that_are(RegionState::kDraining), 0u);
  EXPECT_EQ(regions_that_are(RegionState::kOrphaned), 1u);
  ASSERT_TRUE(client_->rent(1));
  EXPECT_EQ(regions_that_are(RegionState::kOrphaned), 0u) << "and goes to whoever asks next";
}

TEST_F(TakeoverTurns, ARegionWhoseAskerGivesUpIsAnOrphan) {
  ask_until_a_region_is_emptied();
  home_.pool->give_up_rent(other_->grant.lane);
  EXPECT_EQ(regions_that_are(RegionState::kDraining), 0u);
  EXPECT_EQ(regions_that_are(RegionState::kOrphaned), 1u);
}

TEST_F(TakeoverTurns, AMarudThatDiesInBetweenLeavesARegionForTheNextOne) {
  ask_until_a_region_is_emptied();
  ASSERT_TRUE(home_.restart());
  EXPECT_EQ(regions_that_are(RegionState::kDraining), 0u);
  EXPECT_EQ(regions_that_are(RegionState::kOrphaned), 1u);
}

}  // namespace
}  // namespace maru::daemon
