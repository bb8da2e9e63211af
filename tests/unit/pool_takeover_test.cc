// Takeover: who is taken from, which region, what stays, what a marud that died half-way leaves.
#include "libmaru/shm/recovery/region_handover.h"
#include "tests/unit/pool_fixture.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

using format::RegionState;
using shm::RegionWord;

std::string name(uint64_t i) { return "key-" + std::to_string(i); }

class Takeover : public ::testing::Test {
 protected:
  Takeover() : rich_(home_.attach()), poor_(home_.attach()) {}

  // Every page of the pool is a root of the rich client, a millisecond apart.
  void fill() {
    for (uint64_t i = 0; i < home_.region.pages(); ++i) {
      ++home_.now_ms;
      blocks_.push_back(rich_->store(name(i)));
      ASSERT_FALSE(blocks_.back().is_none());
    }
    ASSERT_TRUE(rich_->evicted.empty());
    ASSERT_EQ(rich_->regions.size(), home_.region.regions());
  }
  uint32_t pages() const { return home_.region.region_pages(); }
  RegionWord region_word(uint32_t index) const { return {home_.region.region(index).word.load_acquire()}; }
  uint32_t rented_by(const InProcessClient& client) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < home_.region.regions(); ++i) count += shm::owns_region(home_.region, i, client.lane.id);
    return count;
  }
  void remove(uint64_t i) {
    const shm::Digest digest = home_.digest(name(i));
    EXPECT_EQ(home_.delete_tree(digest).deleted, 1u);
  }
  // For much more than there is, and uses none of it.
  void ask_often(InProcessClient& client, uint64_t runs) {
    for (int i = 0; i < 10; ++i) {
      (void)client.rent(runs);
      for (const wire::RunRecord& run : client.runs)
        shm::give_back_run(home_.region, client.lane.id, PageRef::of(run.page, home_.word(run.page).generation()));
      client.runs.clear();
    }
  }
  uint64_t status(const char* what) { return home_.pool->status_json(home_.now_ms).at(what).get<uint64_t>(); }
  RentResult rent(InProcessClient& client, uint64_t runs, uint64_t run_pages = 1) {
    wire::RentRequest request = {};
    request.runs = runs;
    request.run_pages = run_pages;
    return home_.pool->rent(client.grant.lane, request, home_.now_ms);
  }

  PoolUnderTest home_;
  std::unique_ptr<InProcessClient> rich_, poor_;
  std::vector<PageRef> blocks_;
};

TEST_F(Takeover, ClientWithoutARegionGetsOneOfTheRichClients) {
  fill();
  const RentResult result = rent(*poor_, 1);
  ASSERT_EQ(result.status, 0);
  ASSERT_EQ(result.regions.size(), 1u);
  EXPECT_TRUE(result.runs.empty());
  const uint32_t index = result.regions.front();
  EXPECT_EQ(result.evicted_total, pages());
  EXPECT_EQ(result.evicted, pages());
  ASSERT_EQ(result.taken.size(), 1u);
  EXPECT_EQ(result.taken.front().lane, rich_->grant.lane);
  EXPECT_EQ(result.taken.front().region, index);
  EXPECT_TRUE(shm::owns_region(home_.region, index, poor_->lane.id));
  EXPECT_EQ(region_word(index).generation(), result.taken.front().generation + 1);
  for (uint64_t i = 0; i < blocks_.size(); ++i)
    EXPECT_EQ(home_.exists(name(i)), home_.region.region_of(blocks_[i].page()) != index) << i;
  EXPECT_EQ(home_.count(PageState::kFree), pages());
  EXPECT_EQ(status("regions_taken"), 1u);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(Takeover, RegionWithFewestBlocksGoesFirst) {
  fill();
  for (uint64_t i = 0; i < blocks_.size(); ++i)
    if (home_.region.region_of(blocks_[i].page()) == 5 && i % 2 == 0) remove(i);
  EXPECT_EQ(rent(*poor_, 1).regions, std::vector<uint32_t>{5});
}

TEST_F(Takeover, RegionWithAPinnedBlockIsNeverTaken) {
  fill();
  std::vector<shm::Pin> pins;
  for (const PageRef block : blocks_)
    if (home_.region.region_of(block.page()) != 9 && block.page() % pages() == 3) pins.push_back(rich_->pin(block));
  EXPECT_EQ(rent(*poor_, 1).regions, std::vector<uint32_t>{9});
  // Now there is a pin in every region of a client above its share: another one gets pages, and no region.
  auto third = home_.attach();
  const RentResult result = rent(*third, 2 * pages());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(result.regions.empty());
  EXPECT_FALSE(result.runs.empty());
  EXPECT_EQ(status("regions_taken"), 1u);
}

TEST_F(Takeover, EndsAtTheShareAndIsNotAnswered) {
  fill();
  const uint32_t regions = home_.region.regions();
  ask_often(*poor_, regions * pages());
  EXPECT_EQ(rented_by(*poor_), regions / 2);
  EXPECT_EQ(rented_by(*rich_), regions - regions / 2);
  // The rich client, at its share now, takes from itself and not back.
  rich_->evicted.clear();
  ASSERT_TRUE(rich_->rent(1));
  EXPECT_EQ(rented_by(*poor_), regions / 2);
  // A third has the right to a third.
  auto third = home_.attach();
  ask_often(*third, regions * pages());
  EXPECT_EQ(rented_by(*third), regions / 3);
  EXPECT_GE(rented_by(*rich_), regions / 3);
  EXPECT_GE(rented_by(*poor_), regions / 3);
  home_.settle();
}

TEST_F(Takeover, TheRichTakeNothingFromThePoor) {
  fill();
  ASSERT_TRUE(poor_->rent(1));
  const uint64_t taken = status("regions_taken");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(rich_->rent(3));
  EXPECT_EQ(status("regions_taken"), taken);
  EXPECT_EQ(rented_by(*poor_), 1u);
}

TEST_F(Takeover, LimitOfRegionsForcesEvictionWhereThePoolIsEmpty) {
  home_.config.max_regions_per_instance = 1;
  ASSERT_TRUE(home_.restart());
  for (uint64_t i = 0; i < 5 * pages(); ++i) {
    ++home_.now_ms;
    ASSERT_FALSE(rich_->store(name(i)).is_none()) << i;
  }
  EXPECT_EQ(rented_by(*rich_), 1u);
  EXPECT_EQ(rich_->evicted.size(), 4 * pages());
  EXPECT_EQ(home_.count(PageState::kOut), home_.region.pages() - pages());
  EXPECT_EQ(status("regions_taken"), 0u);
}

TEST_F(Takeover, WhatTheOwnerIsFillingStaysTheOwners) {
  fill();
  // One page of each region is a buffer.
  std::vector<PageRef> buffers;
  for (uint32_t i = 0; i < home_.region.regions(); ++i) {
    remove(i * pages());
    const PageRef buffer = shm::take_page(home_.region, rich_->lane.id, blocks_[i * pages()].page());
    ASSERT_FALSE(buffer.is_none());
    buffers.push_back(buffer);
  }
  const RentResult result = rent(*poor_, 1);
  ASSERT_EQ(result.regions.size(), 1u);
  EXPECT_EQ(result.evicted_total, pages() - 1);
  const PageRef buffer = buffers[result.regions.front()];
  EXPECT_EQ(home_.word(buffer.page()), PageWord::reserved(buffer.generation(), rich_->lane.id));
  shm::NewBlock block{};
  block.digest = home_.digest("late");
  block.key = std::as_bytes(std::span("late", 4));
  block.length = 100;
  block.now_ms = home_.now_ms;
  EXPECT_EQ(shm::publish(rich_->lane, buffer, block).status, shm::PublishStatus::kStored);
  EXPECT_TRUE(home_.exists("late"));
  for (const PageRef other : buffers)
    if (other != buffer) shm::give_back_run(home_.region, rich_->lane.id, other);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(Takeover, RegionThatOnlyItsOwnerMayFinishIsNotTaken) {
  // Region 0 holds no block and only buffers; it has the fewest blocks, and nothing to give.
  for (uint32_t i = 0; i < pages(); ++i) ASSERT_FALSE(rich_->take().is_none());
  const uint32_t first = *rich_->regions.begin();
  for (uint64_t i = 0; i < home_.region.pages() - pages(); ++i) ASSERT_FALSE(rich_->store(name(i)).is_none());
  const RentResult result = rent(*poor_, 1);
  ASSERT_EQ(result.regions.size(), 1u);
  EXPECT_NE(result.regions.front(), first);
}

TEST_F(Takeover, RoomForARunDecides) {
  fill();
  // Region 3 has the fewest blocks; every second of them has a child elsewhere and stays.
  remove(7 * pages());
  remove(7 * pages() + 1);
  const uint32_t region_of_children = home_.region.region_of(blocks_[7 * pages()].page());
  for (uint32_t k = 0; k < 2; ++k) {
    rich_->regions = {region_of_children};
    ASSERT_FALSE(rich_->store("child-" + std::to_string(k), blocks_[3 * pages() + 7 + 4 * k]).is_none());
  }
  for (uint32_t k = 0; k < 4; ++k) remove(3 * pages() + k);
  const uint32_t fewest = home_.region.region_of(blocks_[3 * pages()].page());
  const RentResult result = rent(*poor_, 1, pages());
  ASSERT_EQ(result.regions.size(), 1u);
  EXPECT_NE(result.regions.front(), fewest);
  auto third = home_.attach();
  EXPECT_EQ(rent(*third, 1, 4).regions, std::vector<uint32_t>{fewest});
  EXPECT_TRUE(home_.exists(name(3 * pages() + 7))) << "a block with a child elsewhere was evicted";
  EXPECT_TRUE(home_.exists(name(3 * pages() + 11)));
  EXPECT_TRUE(home_.exists("child-0"));
}

TEST_F(Takeover, ChainsGoLeavesFirst) {
  PageRef parent = PageRef::none();
  for (uint64_t i = 0; i < home_.region.pages(); ++i) {
    parent = rich_->store(name(i), i % pages() == 0 ? PageRef::none() : parent);
    ASSERT_FALSE(parent.is_none());
  }
  const RentResult result = rent(*poor_, 1);
  ASSERT_EQ(result.regions.size(), 1u);
  EXPECT_EQ(result.evicted_total, pages());
  EXPECT_EQ(home_.count(PageState::kFree), pages());
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(Takeover, RefusalTellsWhatWasEvictedInVain) {
  fill();
  for (const PageRef block : blocks_)
    if (block.page() % 2 == 0) (void)rich_->pin(block);
  const RentResult result = rent(*poor_, 1, 2);
  EXPECT_EQ(result.status, -ENOSPC);
  EXPECT_GT(result.evicted_total, 0u);
  EXPECT_EQ(result.evicted, result.evicted_total);
  std::span<const std::byte> rest = result.evicted_keys;
  for (uint32_t i = 0; i < result.evicted; ++i) {
    const auto record = wire::next_evicted_key(rest);
    ASSERT_TRUE(record.has_value());
    EXPECT_FALSE(home_.exists({reinterpret_cast<const char*>(record->key.data()), record->key.size()}));
  }
}

// -- a marud that dies half-way: the words as each step leaves them -----------------------------------------------------

TEST_F(Takeover, DeathWhileItDrainsLeavesTheRegionToTheNext) {
  fill();
  const PageRef buffer = [&] {
    remove(2 * pages());
    return shm::take_page(home_.region, rich_->lane.id, blocks_[2 * pages()].page());
  }();
  remove(2 * pages() + 1);
  const uint32_t index = home_.region.region_of(buffer.page());
  home_.region.region(index).word.store_release(RegionWord::of(RegionState::kDraining, 7, {}).bits);
  EXPECT_EQ(shm::close_region_pages(home_.region, index), 1u);
  ASSERT_TRUE(home_.restart());
  EXPECT_EQ(region_word(index).state(), RegionState::kOrphaned);
  EXPECT_EQ(home_.word(buffer.page()), PageWord::reserved(buffer.generation(), rich_->lane.id));
  EXPECT_TRUE(home_.exists(name(2 * pages() + 2)));
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
  // Its OUT page is somebody's again.
  EXPECT_EQ(rent(*poor_, 1).regions, std::vector<uint32_t>{index});
  EXPECT_EQ(home_.count(PageState::kFree), 1u);
  EXPECT_EQ(home_.count(PageState::kOut), 0u);
}

TEST_F(Takeover, DeathAfterTheLastBlockWentLeavesNobodysRegion) {
  fill();
  for (uint32_t i = 0; i < pages(); ++i) remove(4 * pages() + i);
  const uint32_t index = home_.region.region_of(blocks_[4 * pages()].page());
  home_.region.region(index).word.store_release(RegionWord::of(RegionState::kDraining, 7, {}).bits);
  shm::close_region_pages(home_.region, index);
  ASSERT_TRUE(home_.restart());
  EXPECT_EQ(region_word(index).state(), RegionState::kUnused);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(Takeover, DeathBeforeTheAnswerLosesNoPage) {
  fill();
  for (uint32_t i = 0; i < pages(); ++i) remove(4 * pages() + i);
  const uint32_t index = home_.region.region_of(blocks_[4 * pages()].page());
  shm::close_region_pages(home_.region, index);
  home_.region.region(index).word.store_release(RegionWord::of(RegionState::kRented, 8, poor_->lane.id).bits);
  ASSERT_TRUE(home_.restart());
  EXPECT_EQ(home_.count(PageState::kOut), 0u);
  // The new owner was never told, and gets the pages when it asks.
  ASSERT_TRUE(poor_->rent(pages()));
  EXPECT_EQ(poor_->runs.size(), pages());
  EXPECT_TRUE(poor_->evicted.empty());
}

}  // namespace
}  // namespace maru::daemon
