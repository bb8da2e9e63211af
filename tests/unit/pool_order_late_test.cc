// Touches that marud reads late: more than a turn reads, older than what was applied before, or of clients that have ended.
#include "tests/unit/filled_pool.h"

namespace maru::daemon {
namespace {

// Load that no turn can read to its end: each round takes several turns, and a round that began after the uses has to end.
TEST(PoolOrderLate, NothingGoesInTheBackgroundBeforeARoundHasEndedHoweverManyTurnsItTakes) {
  constexpr uint32_t kRing = 1u << 14;
  constexpr uint64_t kCold = 100;
  PoolUnderTest home(4u << 20, 64, 64, {}, 0, kRing, 16);
  std::vector<std::unique_ptr<InProcessClient>> clients;
  while (auto client = home.attach()) clients.push_back(std::move(client));
  const uint64_t most = home.region.pages() * 85 / 100, low = home.region.pages() * 88 / 100;
  std::vector<PageRef> blocks;
  const auto store = [&] {
    ++home.now_ms;
    blocks.push_back(clients[0]->store(name(blocks.size())));
    ASSERT_FALSE(blocks.back().is_none());
  };
  while (blocks.size() < most) store();
  home.config.high_watermark = 0.9;
  home.config.low_watermark = 0.87;
  ASSERT_TRUE(home.restart());
  home.settle();
  ASSERT_EQ(home.count(PageState::kReady), most);
  // As many touches come with each turn as a turn reads.
  const auto fill_rings = [&] {
    for (size_t i = 0; i + 1 < clients.size(); ++i)
      for (uint32_t k = 0; k < kRing; ++k) clients[i]->touch(blocks[kCold + k % (most - kCold)]);
  };
  for (int turn = 0; turn < 40; ++turn) {
    ++home.now_ms;
    fill_rings();
    home.pool->turn(home.now_ms);
  }
  ASSERT_EQ(home.count(PageState::kReady), most);
  // From now on the first ones are used all the time, too; and then it is high time. What is stored last is coldest, and
  // more than has to go.
  home.now_ms += 10;
  while (blocks.size() < home.region.pages() * 95 / 100) store();
  for (int turn = 0; turn < 5000 && home.count(PageState::kReady) > low; ++turn) {
    ++home.now_ms;
    fill_rings();
    for (uint64_t i = 0; i < kCold; ++i) clients.back()->touch(blocks[i]);
    home.pool->turn(home.now_ms);
    for (uint64_t i = 0; i < kCold; ++i) ASSERT_TRUE(home.exists(name(i))) << i << " in turn " << turn;
  }
  EXPECT_LE(home.count(PageState::kReady), low) << "and it goes on under that load";
}

// Uses that a later round reads and that are older than what an earlier one has applied find their places all the same, in
// however many regions.
TEST(PoolOrderLate, UsesThatAreReadLateAreInTheirPlacesBeforeARequestEvicts) {
  constexpr uint32_t kRing = 1u << 16;
  PoolUnderTest home(200u << 20, 64, 64, {}, 0, kRing, 4);
  const auto client = home.attach(), late = home.attach();
  while (client->regions.size() < home.region.regions())
    ASSERT_TRUE(client->rent((home.region.regions() - client->regions.size()) * home.region.region_pages()));
  std::vector<PageRef> blocks;
  for (uint32_t page = 0; page < home.region.pages(); ++page) {
    ASSERT_FALSE(shm::take_run(home.region, client->lane.id, page, 1, nullptr).is_none());
    client->runs.push_back({page, 1});  // a search for FREE pages for each of them would take long
    blocks.push_back(client->store(name(page)));
    if (blocks.back().is_none()) {  // its bucket is full
      ASSERT_FALSE(shm::take_run(home.region, client->lane.id, page, 1, nullptr).is_none());
    }
    if (page % 100 == 0) home.pool->turn(++home.now_ms);
  }
  home.pool->turn(++home.now_ms);
  // Three of four in each region are used first, and what a client says of that is read last.
  constexpr uint64_t kUsesEachMs = 64;
  const auto is_late = [](uint32_t page) { return page % 4 != 0; };
  const uint64_t start_ms = home.now_ms + 10, later_ms = start_ms + 10'000;
  for (uint32_t page = 0; page < blocks.size(); ++page) {
    home.now_ms = later_ms + page / kUsesEachMs;
    if (!is_late(page) && !blocks[page].is_none()) client->touch(blocks[page]);
  }
  home.pool->turn(home.now_ms += 10);
  std::vector<uint32_t> order;
  for (auto page = uint32_t(blocks.size()); page-- > 0;) {  // the last regions are the coldest
    if (!is_late(page) || blocks[page].is_none()) continue;
    home.now_ms = start_ms + order.size() / kUsesEachMs;
    late->touch(blocks[page]);
    order.push_back(page);
  }
  ASSERT_LT(order.size(), kRing);
  ASSERT_GT(home.region.pages(), 1u << 15) << "more than a turn puts in order";
  home.now_ms = later_ms + 10'000;
  const uint64_t wanted = order.size() / 2;
  uint64_t evicted = 0;
  for (int asked = 0; evicted < wanted && asked < 100; ++asked) {
    wire::RentRequest request = {};
    request.runs = wanted - evicted;
    request.run_pages = 1;
    uint64_t ticket = 0;
    RentResult result = home.pool->rent(client->grant.lane, request, home.now_ms, {}, 0, &ticket);
    for (int turns = 0; ticket != 0 && turns < 100'000; ++turns) {
      home.pool->turn(home.now_ms);
      if (home.pool->may_rent(ticket))
        result = home.pool->rent(client->grant.lane, request, home.now_ms, {}, 0, &ticket);
    }
    evicted += result.evicted_total;
  }
  ASSERT_EQ(evicted, wanted);
  EXPECT_EQ(home.pool->status_json(home.now_ms).at("lost_touches"), 0);
  uint64_t warmer = 0;
  for (uint32_t page = 0; page < blocks.size(); ++page)
    warmer += !is_late(page) && !blocks[page].is_none() && !home.exists(name(page));
  EXPECT_EQ(warmer, 0u) << "blocks that were used after all of those have gone";
  for (uint64_t i = 0; i + kUsesEachMs < evicted; ++i) ASSERT_FALSE(home.exists(name(order[i]))) << i;
}

// What clients leave behind that end before a turn comes is kept for it, up to a bound.
TEST(PoolOrderLate, WhatClientsThatEndLeaveBehindIsBounded) {
  constexpr uint32_t kRing = 1u << 18;
  constexpr uint64_t kKept = 1u << 22;
  PoolUnderTest home(16u << 20, 64, 64, {}, 0, kRing, 4);
  const auto client = home.attach();
  const PageRef block = client->store("block");
  home.pool->turn(home.now_ms);
  const auto last_use = [&] { return home.region.policy(block.page()).last_use_ms.load_relaxed(); };
  const uint64_t used = last_use();
  home.now_ms += 100;
  for (uint64_t left = 0; left <= kKept; left += kRing) {
    EXPECT_EQ(last_use(), used) << left << " are kept";
    const auto other = home.attach();
    ASSERT_TRUE(other);
    for (uint32_t k = 0; k < kRing; ++k) other->touch(block);
    home.pool->detach(other->grant.lane);
  }
  EXPECT_EQ(last_use(), home.now_ms - kStartMs) << "the rest was applied at once";
}

}  // namespace
}  // namespace maru::daemon
