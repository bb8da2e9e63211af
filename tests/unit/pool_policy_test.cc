// The pool under other policies than its default, changed while it is in use, and between its watermarks.
#include "pool_fixture.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

using Keys = std::vector<std::string>;
std::string name(uint64_t i) { return "block-" + std::to_string(i); }

// The pool full of blocks, each stored a millisecond after the one before.
std::vector<PageRef> fill(PoolUnderTest& home, InProcessClient& client, uint64_t blocks) {
  std::vector<PageRef> refs;
  for (uint64_t i = 0; i < blocks; ++i) {
    ++home.now_ms;
    PageRef ref = client.store(name(i));
    if (ref.is_none()) ref = client.store(name(i) + " elsewhere");  // one name in a million meets a full bucket
    refs.push_back(ref);
    EXPECT_FALSE(refs.back().is_none());
  }
  home.pool->turn(home.now_ms);
  return refs;
}

void use(PoolUnderTest& home, InProcessClient& client, PageRef ref) {
  ++home.now_ms;
  client.touch(ref);
}

uint64_t stored_now(const PoolUnderTest& home) { return home.count(PageState::kReady); }

// -- policies ---------------------------------------------------------------------------------------------------------

TEST(PoolPolicy, FifoForgetsUses) {
  PoolUnderTest home;
  auto client = home.attach();
  ASSERT_TRUE(home.pool->set_policy("fifo", {}, home.now_ms));
  const auto blocks = fill(home, *client, home.region.pages());
  for (size_t i = 0; i < 5; ++i) use(home, *client, blocks[i]);
  ASSERT_TRUE(client->rent(3));
  EXPECT_EQ(client->evicted, (Keys{name(0), name(1), name(2)}));
}

TEST(PoolPolicy, LfuTakesWhatWasUsedLeast) {
  PoolUnderTest home;
  auto client = home.attach();
  ASSERT_TRUE(home.pool->set_policy("lfu", {}, home.now_ms));
  const auto blocks = fill(home, *client, home.region.pages());
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i != 7 && i != 9) use(home, *client, blocks[i]);
  ASSERT_TRUE(client->rent(2));
  EXPECT_EQ(client->evicted, (Keys{name(7), name(9)}));
}

TEST(PoolPolicy, NoneEvictsNothingAndSaysSo) {
  PoolUnderTest home;
  auto client = home.attach();
  const auto blocks = fill(home, *client, home.region.pages());
  ASSERT_TRUE(home.pool->set_policy("none", {}, home.now_ms));
  EXPECT_FALSE(client->rent(1));
  EXPECT_EQ(client->last_status, -ENOSPC);
  EXPECT_FALSE(client->rent(1, 2));
  EXPECT_EQ(stored_now(home), blocks.size());
  ASSERT_TRUE(home.pool->set_policy("lru", {}, home.now_ms));
  EXPECT_TRUE(client->rent(1));
}

TEST(PoolPolicy, AnUnknownNameChangesNothing) {
  PoolUnderTest home;
  auto client = home.attach();
  const auto wrong = home.pool->set_policy("lruu", {}, home.now_ms);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().text().find("lruu"), std::string::npos) << wrong.error().text();
  EXPECT_EQ(home.pool->status_json(home.now_ms)["policy"], "lru");
  fill(home, *client, home.region.pages());
  ASSERT_TRUE(client->rent(1));
  EXPECT_EQ(client->evicted, (Keys{name(0)}));
}

TEST(PoolPolicy, ChangingItLosesNoBlockAndKeepsLastUses) {
  PoolUnderTest home;
  auto client = home.attach();
  const auto blocks = fill(home, *client, home.region.pages());
  for (size_t i = 0; i < 20; ++i) use(home, *client, blocks[i]);
  home.pool->turn(home.now_ms);
  for (const char* policy : {"lfu", "s3fifo", "priority", "clock", "size_aware", "ttl", "isolated_lru", "lru"}) {
    ASSERT_TRUE(home.pool->set_policy(policy, {}, home.now_ms)) << policy;
    EXPECT_EQ(stored_now(home), blocks.size());
    EXPECT_EQ(home.pool->status_json(home.now_ms)["policy"], policy);
    EXPECT_EQ(home.audit(), std::set<std::string>{});
  }
  ASSERT_TRUE(client->rent(2));
  EXPECT_EQ(client->evicted, (Keys{name(20), name(21)}));
}

TEST(PoolPolicy, WordsSurviveARestartOfMarud) {
  PoolUnderTest home;
  home.config.policy = "lfu";
  auto client = home.attach();
  ASSERT_TRUE(home.pool->set_policy("lfu", {}, home.now_ms));
  const auto blocks = fill(home, *client, home.region.pages());
  for (int round = 0; round < 3; ++round)
    for (size_t i = 0; i < 10; ++i) use(home, *client, blocks[i]);  // used often, and before all others
  for (size_t i = 10; i < blocks.size(); ++i) use(home, *client, blocks[i]);
  home.pool->turn(home.now_ms);
  ASSERT_TRUE(home.restart());
  ASSERT_TRUE(client->rent(blocks.size() - 10));
  for (const std::string& key : client->evicted)
    EXPECT_EQ(std::count(client->evicted.begin(), client->evicted.end(), key), 1);
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(home.exists(name(i))) << i;
}

TEST(PoolPolicy, OnlyChildlessBlocksGoUnderEveryPolicy) {
  for (const char* policy :
       {"lru", "clock", "fifo", "lfu", "ttl", "s3fifo", "size_aware", "priority", "isolated_lru"}) {
    PoolUnderTest home;
    auto client = home.attach();
    ASSERT_TRUE(home.pool->set_policy(policy, {}, home.now_ms)) << policy;
    uint64_t random = 7;
    std::vector<std::vector<std::string>> chains;
    for (int round = 0; round < 400; ++round) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      ++home.now_ms;
      std::vector<std::string> chain;
      PageRef parent = PageRef::none();
      for (uint64_t i = 0; i < 1 + (random >> 33) % 6; ++i) {
        chain.push_back(std::to_string(round) + "/" + std::to_string(i));
        const PageRef ref = client->store(chain.back(), parent);
        if (ref.is_none()) break;
        parent = ref;
      }
      chains.push_back(chain);
      if (round % 40 == 0) home.settle();
    }
    home.settle();
    size_t whole = 0;
    for (const auto& chain : chains) {
      bool before = true;
      for (const std::string& key : chain) {
        const bool is_there = home.exists(key);
        EXPECT_TRUE(before || !is_there) << policy << ": " << key << " is there without its parent";
        before = is_there;
      }
      whole += before;
    }
    EXPECT_GT(whole, 0u) << policy;
    EXPECT_FALSE(client->evicted.empty()) << policy;
    EXPECT_EQ(home.audit(), std::set<std::string>{}) << policy;
  }
}

// -- watermarks -------------------------------------------------------------------------------------------------------

struct Watermarks : testing::Test {
  PoolUnderTest home;
  std::unique_ptr<InProcessClient> client;

  Watermarks() {
    home.config.high_watermark = 0.90;
    home.config.low_watermark = 0.80;
    if (!home.restart()) throw std::runtime_error("the pool cannot be adopted");
    client = home.attach();
  }
  uint64_t share(double of) const { return uint64_t(double(home.region.pages()) * of); }
  uint64_t wakes() { return home.pool->status_json(home.now_ms)["background_wakes"]; }
};

TEST_F(Watermarks, NothingGoesBelowTheHighOne) {
  fill(home, *client, share(0.90) - 1);
  home.settle();
  EXPECT_EQ(wakes(), 0u);
  EXPECT_EQ(stored_now(home), share(0.90) - 1);
}

TEST_F(Watermarks, EvictsTheColdestDownToTheLowOne) {
  fill(home, *client, share(0.90));
  home.settle();
  EXPECT_EQ(wakes(), 1u);
  EXPECT_EQ(stored_now(home), share(0.80));
  for (uint64_t i = 0; i < share(0.90); ++i) EXPECT_EQ(home.exists(name(i)), i >= share(0.90) - share(0.80)) << i;
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST_F(Watermarks, WakesOnceForEveryCrossing) {
  uint64_t stored = 0;
  const auto store_up_to = [&](uint64_t used) {
    while (stored_now(home) < used) {
      ++home.now_ms;
      client->store(name(stored++));
    }
  };
  for (uint64_t crossing = 1; crossing <= 5; ++crossing) {
    store_up_to(share(0.90) - 1);
    for (int burst = 0; burst < 10; ++burst) home.settle();  // just below: never
    EXPECT_EQ(wakes(), crossing - 1);
    store_up_to(share(0.90));
    for (int burst = 0; burst < 10; ++burst) home.settle();
    EXPECT_EQ(wakes(), crossing);
    EXPECT_EQ(stored_now(home), share(0.80));
  }
}

TEST_F(Watermarks, ATurnDoesBoundedWork) {
  PoolUnderTest large(16u << 20, 256);
  large.config.high_watermark = 0.5;
  large.config.low_watermark = 0.1;
  ASSERT_TRUE(large.restart());
  auto writer = large.attach();
  const uint64_t blocks = large.region.pages() / 2 + 1;
  for (uint64_t i = 0; i < blocks; ++i) {
    if (i % 256 == 0) large.pool->turn(large.now_ms);  // touches are read
    ++large.now_ms;
    ASSERT_FALSE(writer->store(name(i)).is_none());
  }
  uint64_t before = stored_now(large), turns = 0;
  for (; turns < 1000 && stored_now(large) > large.region.pages() / 10; ++turns) {
    large.now_ms += 50;
    large.pool->turn(large.now_ms);
    ASSERT_LE(before - stored_now(large), 256u);
    before = stored_now(large);
  }
  EXPECT_GT(turns, 3u);
  EXPECT_EQ(stored_now(large), large.region.pages() / 10);
}

TEST_F(Watermarks, ATurnLooksAtFewBlocksAlsoIfTheyAreAllPinned) {
  PoolUnderTest large(16u << 20, 256, 4096);
  large.config.low_watermark = 0.1;
  large.config.high_watermark = 1;  // for now
  ASSERT_TRUE(large.restart());
  auto reader = large.attach();
  const auto blocks = fill(large, *reader, large.region.pages());
  for (const PageRef block : blocks) ASSERT_EQ(reader->pin(block).status, shm::PinStatus::kPinned);
  large.settle();
  large.config.high_watermark = 0.5;
  ASSERT_TRUE(large.restart());
  const auto held = [&] { return large.pool->status_json(large.now_ms)["held_blocks"].get<uint64_t>(); };
  uint64_t before = held(), turns = 0;
  for (; turns < 200 && before < blocks.size(); ++turns) {
    large.now_ms += 50;
    large.pool->turn(large.now_ms);
    ASSERT_LE(held(), before + 1024);
    before = held();
  }
  EXPECT_EQ(before, blocks.size());
  EXPECT_GT(turns, 2u);
  EXPECT_EQ(stored_now(large), blocks.size());
}

TEST_F(Watermarks, InASmallPoolTheyMayBeTheSamePage) {
  home.config.high_watermark = 0.9;
  home.config.low_watermark = 0.8999;
  ASSERT_TRUE(home.restart());
  auto writer = home.attach();
  ASSERT_EQ(share(0.9), share(0.8999));
  fill(home, *writer, share(0.9));
  for (int burst = 0; burst < 5; ++burst) home.settle();
  EXPECT_EQ(wakes(), 0u) << "for nothing";
  writer->store("one more");
  for (int burst = 0; burst < 5; ++burst) home.settle();
  EXPECT_EQ(wakes(), 1u);
  EXPECT_EQ(stored_now(home), share(0.9));
}

TEST_F(Watermarks, WhatIsPinnedStaysAndMarudDoesNotSpin) {
  PoolUnderTest home_of_pins(1u << 20, 16, 256);
  home_of_pins.config.high_watermark = 0.90;
  home_of_pins.config.low_watermark = 0.80;
  ASSERT_TRUE(home_of_pins.restart());
  auto reader = home_of_pins.attach();
  const auto blocks = fill(home_of_pins, *reader, home_of_pins.region.pages());
  std::vector<shm::Pin> pins;
  for (const PageRef ref : blocks)
    if (home_of_pins.word(ref.page()).is(PageState::kReady, ref.generation())) pins.push_back(reader->pin(ref));
  home_of_pins.settle();  // ends
  const uint64_t held = stored_now(home_of_pins);
  EXPECT_EQ(held, pins.size());
}

TEST_F(Watermarks, ATurnSparesFewBlocksAlsoIfAllWereUsed) {
  PoolUnderTest large(16u << 20, 256);
  large.config.high_watermark = 0.9;
  large.config.low_watermark = 0.8;
  large.config.policy = "clock";
  ASSERT_TRUE(large.restart());
  auto writer = large.attach();
  const uint64_t blocks = uint64_t(double(large.region.pages()) * 0.9) - 1;
  std::vector<PageRef> refs;
  for (uint64_t i = 0; i < blocks; ++i) {
    if (i % 128 == 0) large.pool->turn(large.now_ms);  // touches are read
    ++large.now_ms;
    refs.push_back(writer->store(name(i)));
    ++large.now_ms;
    writer->touch(refs.back());
  }
  large.pool->turn(large.now_ms);
  ASSERT_EQ(stored_now(large), blocks);
  writer->store(name(blocks));
  uint64_t turns = 0;
  for (; stored_now(large) > blocks; ++turns) {
    ASSERT_LT(turns, 64u);
    large.now_ms += 50;
    large.pool->turn(large.now_ms);
  }
  EXPECT_GE(turns, blocks / 1024);
  large.settle();
  EXPECT_EQ(stored_now(large), uint64_t(double(large.region.pages()) * 0.8));
}

TEST_F(Watermarks, OffMeansOff) {
  home.config.high_watermark = 1;
  ASSERT_TRUE(home.restart());
  auto writer = home.attach();
  fill(home, *writer, home.region.pages());
  home.settle();
  EXPECT_EQ(stored_now(home), home.region.pages());
}

// -- scribbles --------------------------------------------------------------------------------------------------------

// A client may write anything into the links of the queues, in all regions at once, and touch a block in each.
TEST(PoolPolicy, ATurnMendsSoManyScribbledQueuesAndTheNextOnesTheOthers) {
  constexpr uint32_t kRegionPages = 512, kRegions = 90, kMendedAtOnce = (1u << 11) / kRegionPages;
  PoolUnderTest home(uint64_t{kRegions + 18} * kRegionPages * 4096, kRegionPages);
  auto client = home.attach();
  while (client->regions.size() < kRegions)
    ASSERT_TRUE(client->rent((kRegions - client->regions.size()) * uint64_t{kRegionPages}));
  ASSERT_EQ(client->regions.size(), kRegions);
  std::vector<uint32_t> colder;  // a page in each region
  for (const uint32_t index : std::set(client->regions)) {
    client->regions = {index};
    for (uint32_t i = 0; i < 2; ++i) {
      ++home.now_ms;
      const PageRef ref = client->store(name(2 * index + i));
      ASSERT_FALSE(ref.is_none());
      if (i == 0) colder.push_back(ref.page());
    }
  }
  home.settle();
  for (format::PolicyEntry& entry : home.region.policy_table()) {
    entry.newer.store_relaxed(0x7fff'ffff);
    entry.older.store_relaxed(0x7fff'ffff);
  }
  const auto rebuilt = [&] { return home.pool->status_json(home.now_ms).at("queues_rebuilt").get<uint64_t>(); };
  const uint64_t before = rebuilt();
  ++home.now_ms;
  for (const uint32_t page : colder) client->touch(PageRef::of(page, 0));
  home.pool->turn(home.now_ms);
  EXPECT_EQ(rebuilt() - before, kMendedAtOnce);
  home.settle();
  EXPECT_EQ(rebuilt() - before, colder.size());
  EXPECT_EQ(home.pool->admin("evict", {{"pages", 2 * colder.size()}}, home.now_ms).at("evicted_blocks"),
            2 * colder.size());
}

}  // namespace
}  // namespace maru::daemon
