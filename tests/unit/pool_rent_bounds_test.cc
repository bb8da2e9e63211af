// How much of marud's time, and of everybody's blocks, one request for memory may cost.
#include "tests/unit/pool_fixture.h"

#include <cerrno>

namespace maru::daemon {
namespace {

// One pin in each region is enough that no run of a whole region can ever be.
TEST(PoolRentBounds, WhatCannotBeIsNotWorthEverybodysBlocks) {
  PoolUnderTest home(4u << 20);
  const auto client = home.attach();
  std::vector<PageRef> blocks;
  for (uint64_t i = 0; i < home.region.pages(); ++i) {
    ++home.now_ms;
    blocks.push_back(client->store("k" + std::to_string(i)));
    ASSERT_FALSE(blocks.back().is_none());
  }
  std::set<uint32_t> pinned;
  for (const PageRef ref : blocks)
    if (pinned.insert(home.region.region_of(ref.page())).second) {
      ASSERT_EQ(client->pin(ref).status, shm::PinStatus::kPinned);
    }
  EXPECT_FALSE(client->rent(1, home.region.region_pages()));
  EXPECT_EQ(client->last_status, -ENOSPC);
  const uint32_t gone = uint32_t(home.region.pages()) - home.count(PageState::kReady);
  EXPECT_LE(gone, 4 * home.region.region_pages());
  EXPECT_TRUE(client->rent(1, home.region.region_pages() / 2)) << "and what can be is found";
}

// A request reads so many lines for what goes, a step more at most, and each lane in use is one of a look.
TEST(PoolRentBounds, LooksForPinsCountForTheLanesThatTheyRead) {
  constexpr uint64_t kLanes = 256, kLinesPerRequest = 1u << 18, kLinesPerStep = 1u << 13;
  PoolUnderTest home(20u << 20, 256, 64, {}, 0, 256, kLanes);
  std::vector<std::unique_ptr<InProcessClient>> clients;
  while (auto client = home.attach()) clients.push_back(std::move(client));
  ASSERT_EQ(clients.size(), kLanes - 1);
  for (uint64_t i = 0; i < home.region.pages(); ++i) ASSERT_FALSE(clients[0]->store("k" + std::to_string(i)).is_none());
  ASSERT_GT(home.region.pages(), 2000u);
  ASSERT_TRUE(clients[0]->rent(2000));
  EXPECT_GT(clients[0]->runs.size(), 500u);
  EXPECT_LE(clients[0]->runs.size() * clients.size(), kLinesPerRequest + kLinesPerStep);
}

// A client that says so makes every look for pins read the whole area of its lane.
TEST(PoolRentBounds, LooksAtLanesWhosePinsOverflowCountForWhatTheyCost) {
  PoolUnderTest home(20u << 20, 16, 1u << 16);
  const auto client = home.attach();
  std::vector<std::unique_ptr<InProcessClient>> others;
  while (auto other = home.attach()) others.push_back(std::move(other));
  for (uint64_t i = 0; i < home.region.pages(); ++i) ASSERT_FALSE(client->store("k" + std::to_string(i)).is_none());
  const auto evicted_by_one = [&] {
    const uint64_t before = client->evicted.size();
    client->runs.clear();
    EXPECT_TRUE(client->rent(1000));
    return client->evicted.size() - before;
  };
  ASSERT_GT(home.region.pages(), 1000u);
  EXPECT_EQ(evicted_by_one(), 1000u);
  for (const auto& other : others) home.region.lane_header(other->grant.lane).pin_overflow.store_relaxed(1);
  const uint64_t with_overflow = evicted_by_one();
  EXPECT_GT(with_overflow, 0u);
  EXPECT_LT(with_overflow, 1000u);
}

}  // namespace
}  // namespace maru::daemon
