// The order of eviction is exact as long as no touch was lost: whatever ends, waits, or changes hands before the request that
// evicts.
#include "tests/unit/filled_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace maru::daemon {
namespace {

// With every touch read.
std::vector<PageRef> fill_and_turn(PoolUnderTest& home, InProcessClient& client) {
  std::vector<PageRef> blocks = fill(home, client);
  home.pool->turn(home.now_ms);
  return blocks;
}

Keys names(uint64_t first, uint64_t count) {
  Keys all;
  for (uint64_t i = first; i < first + count; ++i) all.push_back(name(i));
  return all;
}

uint64_t lost(const PoolUnderTest& home) { return home.pool->status_json(home.now_ms)["lost_touches"].get<uint64_t>(); }

TEST(PoolOrder, BlocksWhosePinsHaveEndedGoBeforeWarmerOnesHoweverMany) {
  PoolUnderTest home(8u << 20, 256, 2048);
  const auto client = home.attach(), reader = home.attach();
  const std::vector<PageRef> blocks = fill_and_turn(home, *client);
  std::vector<shm::Pin> pins;
  for (uint64_t i = 0; i < 1000; ++i) pins.push_back(reader->pin(blocks[i]));
  ASSERT_TRUE(client->rent(100));
  EXPECT_EQ(client->evicted, names(1000, 100));
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(reader->pins.unpin(pins[i].slot, blocks[i]));
  client->evicted.clear();
  ASSERT_TRUE(client->rent(600));
  EXPECT_EQ(client->evicted, names(0, 600));
  client->evicted.clear();
  ASSERT_TRUE(client->rent(600));
  Keys next = names(600, 400);
  const Keys after = names(1100, 200);
  next.insert(next.end(), after.begin(), after.end());
  EXPECT_EQ(client->evicted, next);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolOrder, WhatIsHeldAgainAndAgainIsLeftAlone) {
  PoolUnderTest home(8u << 20, 256, 2048);
  const auto client = home.attach(), reader = home.attach(), other = home.attach();
  const std::vector<PageRef> blocks = fill_and_turn(home, *client);
  const shm::Pin first = reader->pin(blocks[0]), second = other->pin(blocks[0]);
  ASSERT_TRUE(client->rent(1));
  ASSERT_TRUE(reader->pins.unpin(first.slot, blocks[0]));  // where it was seen; the other one holds it still
  ASSERT_TRUE(client->rent(1));
  ASSERT_TRUE(other->pins.unpin(second.slot, blocks[0]));
  ASSERT_TRUE(client->rent(1));
  EXPECT_EQ(client->evicted, (Keys{name(1), name(2), name(0)}));
}

TEST(PoolOrder, EveryRingIsReadBeforeAnythingGoes) {
  constexpr uint32_t kRing = 1u << 14;
  PoolUnderTest home(4u << 20, 64, 64, {}, 0, kRing);
  std::vector<std::unique_ptr<InProcessClient>> clients;
  while (auto client = home.attach()) clients.push_back(std::move(client));
  ASSERT_GT((clients.size() - 1) * kRing, 1u << 16) << "more than a turn reads";
  const std::vector<PageRef> blocks = fill_and_turn(home, *clients[0]);
  constexpr uint64_t kCold = 100;
  ++home.now_ms;
  for (size_t i = 0; i + 1 < clients.size(); ++i)
    for (uint32_t k = 0; k < kRing; ++k) clients[i]->touch(blocks[kCold + k % (blocks.size() - kCold)]);
  ++home.now_ms;
  for (uint64_t i = 0; i < kCold; ++i) clients.back()->touch(blocks[i]);
  ASSERT_TRUE(clients[0]->rent(50));
  ASSERT_EQ(clients[0]->evicted.size(), 50u);
  EXPECT_EQ(lost(home), 0u);
  const Keys cold = names(0, kCold);
  for (const std::string& key : clients[0]->evicted)
    EXPECT_EQ(std::count(cold.begin(), cold.end(), key), 0) << key << " was used last of all";
}

// A full pool, and rings that hold more than a turn reads. What was stored first was used last of all, in the last ring.
class FullRings : public ::testing::Test {
 protected:
  static constexpr uint32_t kRing = 1u << 14;
  static constexpr uint64_t kCold = 100;

  FullRings() {
    while (auto client = home_.attach()) clients_.push_back(std::move(client));
    EXPECT_GT((clients_.size() - 1) * kRing, 1u << 16) << "more than a turn reads";
    blocks_ = fill_and_turn(home_, *clients_[0]);
  }
  void touch_all() {
    ++home_.now_ms;
    for (size_t i = 0; i + 1 < clients_.size(); ++i)
      for (uint32_t k = 0; k < kRing; ++k) clients_[i]->touch(blocks_[kCold + k % (blocks_.size() - kCold)]);
    ++home_.now_ms;
    for (uint64_t i = 0; i < kCold; ++i) clients_.back()->touch(blocks_[i]);
  }
  void expect_used_last_are_there() {
    EXPECT_EQ(lost(home_), 0u);
    for (uint64_t i = 0; i < kCold; ++i) EXPECT_TRUE(home_.exists(name(i))) << i;
  }
  RentResult rent(uint64_t runs, uint64_t* ticket) {
    wire::RentRequest request = {};
    request.runs = runs;
    request.run_pages = 1;
    return home_.pool->rent(clients_[0]->grant.lane, request, home_.now_ms, {}, 0, ticket);
  }
  // Until that request may go on, as many as it takes.
  int turn_until_may_rent(uint64_t ticket) {
    int turns = 0;
    for (; !home_.pool->may_rent(ticket) && turns < 100'000; ++turns) home_.pool->turn(home_.now_ms);
    return turns;
  }

  PoolUnderTest home_{4u << 20, 64, 64, {}, 0, kRing};
  std::vector<std::unique_ptr<InProcessClient>> clients_;
  std::vector<PageRef> blocks_;
};

TEST_F(FullRings, ARequestThatEvictsWaitsForTurnsThatReadThem) {
  touch_all();
  uint64_t ticket = 0;
  RentResult result = rent(50, &ticket);
  ASSERT_NE(ticket, 0u);
  EXPECT_TRUE(result.runs.empty());
  EXPECT_EQ(home_.count(PageState::kReady), blocks_.size()) << "nothing has gone yet";
  EXPECT_GT(turn_until_may_rent(ticket), 1);
  EXPECT_EQ(home_.count(PageState::kReady), blocks_.size());
  result = rent(50, &ticket);
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(result.runs.size(), 50u);
  EXPECT_EQ(result.evicted_total, 50u);
  expect_used_last_are_there();
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

// What is left while a round is under way is in a ring that this one has read: the request needs the next one.
TEST_F(FullRings, UsesUntilTheRequestCameCountAlsoIfTurnsWereReadingAlready) {
  clients_.back()->touch(blocks_[kCold]);
  touch_all();
  home_.pool->turn(home_.now_ms);  // has begun, and has not come to the last ring
  ++home_.now_ms;
  for (uint64_t i = 0; i < kCold; ++i) clients_[0]->touch(blocks_[i]);
  uint64_t ticket = 0;
  rent(50, &ticket);
  ASSERT_NE(ticket, 0u);
  turn_until_may_rent(ticket);
  for (int turns = 0; ticket != 0 && turns < 1000; ++turns) rent(uint64_t(blocks_.size()) - kCold, &ticket);
  EXPECT_EQ(ticket, 0u);
  expect_used_last_are_there();
}

// marud's loop sleeps when no turn says that there is more to do.
TEST_F(FullRings, TurnsGoOnAsLongAsARequestWaits) {
  touch_all();
  home_.pool->turn(home_.now_ms);  // has begun: the request waits for the next round, which has nothing to read
  uint64_t ticket = 0;
  rent(50, &ticket);
  ASSERT_NE(ticket, 0u);
  int turns = 1;
  while (home_.pool->turn(home_.now_ms) && turns < 100'000) ++turns;
  EXPECT_TRUE(home_.pool->may_rent(ticket)) << "after " << turns << " turns";
  EXPECT_LT(turns, 100'000);
}

// However long it waited. (An hour is more than this test takes.)
TEST_F(FullRings, TheTimeThatARequestTakesCountsFromWhenItCame) {
  constexpr uint64_t kHourUs = 3'600'000'000;
  touch_all();
  const auto rents = [&](const char* what) { return home_.pool->status_json(home_.now_ms)[what].get<uint64_t>(); };
  const uint64_t answered = rents("rents"), before_us = rents("rents_us");
  wire::RentRequest request = {};
  request.runs = request.run_pages = 1;
  const auto came = std::chrono::steady_clock::now() - std::chrono::hours(1);
  uint64_t ticket = 0;
  home_.pool->rent(clients_[0]->grant.lane, request, home_.now_ms, {}, 0, &ticket, came);
  ASSERT_NE(ticket, 0u);
  EXPECT_EQ(rents("rents"), answered) << "it waits";
  turn_until_may_rent(ticket);
  home_.pool->rent(clients_[0]->grant.lane, request, home_.now_ms, {}, 0, &ticket, came);
  ASSERT_EQ(ticket, 0u);
  EXPECT_EQ(rents("rents"), answered + 1);
  EXPECT_GE(rents("rents_us") - before_us, kHourUs);
}

TEST_F(FullRings, AClientThatTouchesAllTheTimeHoldsUpNobody) {
  touch_all();
  uint64_t ticket = 0;
  rent(1, &ticket);
  int turns = 0;
  for (; !home_.pool->may_rent(ticket) && turns < 100'000; ++turns) {
    for (uint32_t k = 0; k < kRing; ++k) clients_[1]->touch(blocks_[k % blocks_.size()]);
    home_.pool->turn(home_.now_ms);
  }
  EXPECT_LT(turns, 1000);
}

TEST_F(FullRings, AnAdministratorsEvictionReadsThemAll) {
  touch_all();
  EXPECT_EQ(home_.pool->admin("evict", {{"pages", 50}}, home_.now_ms).at("evicted_blocks"), 50);
  expect_used_last_are_there();
}

TEST_F(FullRings, AlsoInTurns) {
  touch_all();
  uint64_t ticket = 0;
  nlohmann::json reply;
  int turns = 0;
  for (; reply.is_null() && turns < 100'000; ++turns) {
    reply = home_.pool->admin("evict", {{"pages", 300}}, home_.now_ms, &ticket);
    if (reply.is_null()) home_.pool->turn(home_.now_ms);
  }
  EXPECT_EQ(reply.value("evicted_blocks", 0), 300) << reply.dump();
  EXPECT_EQ(ticket, 0u);
  EXPECT_GT(turns, 4);
  expect_used_last_are_there();
}

// Their touches come twice as fast as turns apply them.
TEST_F(FullRings, ClientsThatEndAllTheTimeHoldUpNobody) {
  touch_all();
  uint64_t ticket = 0;
  rent(50, &ticket);
  ASSERT_NE(ticket, 0u);
  int turns = 0;
  for (; !home_.pool->may_rent(ticket) && turns < 5000; ++turns) {
    home_.pool->detach(clients_.back()->grant.lane);
    clients_.pop_back();
    std::unique_ptr<InProcessClient> fresh;
    for (int tries = 0; !fresh && tries < 1000; ++tries) fresh = home_.attach();
    ASSERT_TRUE(fresh);
    clients_.push_back(std::move(fresh));
    for (uint32_t k = 0; k < 2048; ++k) clients_.back()->touch(blocks_[k % blocks_.size()]);
    home_.pool->turn(home_.now_ms);
  }
  EXPECT_LT(turns, 2000);
  EXPECT_EQ(rent(50, &ticket).runs.size(), 50u);
}

// The others' are for turns.
TEST_F(FullRings, WhoEndsHasItsOwnRingRead) {
  touch_all();
  clients_.back()->home.pool->client_died(clients_.back()->grant.lane);
  for (size_t i = 0; i + 1 < clients_.size(); ++i)
    EXPECT_LT(home_.region.lane_header(clients_[i]->grant.lane).touches_read.load_relaxed(), uint64_t{kRing}) << i;
  home_.settle();
  ASSERT_TRUE(clients_[0]->rent(blocks_.size() - kCold));
  expect_used_last_are_there();
}

TEST_F(FullRings, WhatTheDeadUsedLastIsKnownToTheNextMarudIfThisOneEndsInOrder) {
  touch_all();
  home_.pool->client_died(clients_.back()->grant.lane);
  ASSERT_TRUE(home_.pool->close());
  ASSERT_TRUE(home_.restart());
  ASSERT_TRUE(clients_[0]->rent(blocks_.size() - kCold));
  expect_used_last_are_there();
}

TEST(PoolOrder, NothingIsEvictedInTheBackgroundBeforeTheRingsAreRead) {
  constexpr uint32_t kRing = 1u << 14;
  PoolUnderTest home(4u << 20, 64, 64, {}, 0, kRing);
  home.config.high_watermark = 0.9;
  home.config.low_watermark = 0.8;
  std::vector<std::unique_ptr<InProcessClient>> clients;
  ASSERT_TRUE(home.restart());
  while (auto client = home.attach()) clients.push_back(std::move(client));
  std::vector<PageRef> blocks;
  for (uint64_t i = 0; i < home.region.pages(); ++i) {
    ++home.now_ms;
    blocks.push_back(clients[0]->store(name(i)));
  }
  constexpr uint64_t kCold = 100;
  ++home.now_ms;
  for (size_t i = 0; i + 1 < clients.size(); ++i)
    for (uint32_t k = uint32_t(i == 0 ? blocks.size() : 0); k < kRing; ++k)
      clients[i]->touch(blocks[kCold + k % (blocks.size() - kCold)]);
  ++home.now_ms;
  for (uint64_t i = 0; i < kCold; ++i) clients.back()->touch(blocks[i]);
  home.settle();
  EXPECT_EQ(lost(home), 0u);
  EXPECT_LE(home.count(PageState::kReady), home.region.pages() * 82 / 100);
  for (uint64_t i = 0; i < kCold; ++i) EXPECT_TRUE(home.exists(name(i))) << i;
}

TEST(PoolOrder, MemoryIsFoundWhenAPinEndsRightAfterARefusal) {
  PoolUnderTest home(320u << 20, 1024, 1u << 17);
  const auto client = home.attach();
  while (client->regions.size() < home.region.regions()) ASSERT_TRUE(client->rent(home.region.region_pages()));
  std::vector<PageRef> blocks;
  std::vector<shm::Pin> pins;
  for (uint32_t i = 0; i < home.region.pages(); ++i) {
    ASSERT_FALSE(shm::take_run(home.region, client->lane.id, i, 1, nullptr).is_none());
    client->runs.push_back({i, 1});  // a search for FREE pages for each of them would take long
    blocks.push_back(client->store(name(i)));
    pins.emplace_back();
    if (blocks.back().is_none()) {  // of so many keys one may find its buckets full; then the page stays RESERVED
      ASSERT_FALSE(shm::take_run(home.region, client->lane.id, i, 1, nullptr).is_none());
      continue;
    }
    pins.back() = client->pin(blocks.back());
    ASSERT_EQ(pins.back().status, shm::PinStatus::kPinned);
    if (i % 100 == 0) home.pool->turn(++home.now_ms);
  }
  ASSERT_GT(home.region.pages(), 1u << 16) << "a pool that is not searched before every refusal";
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(client->rent(1));
    EXPECT_EQ(client->last_status, -ENOSPC);
  }
  client->evicted.clear();
  ASSERT_TRUE(client->pins.unpin(pins[30'000].slot, blocks[30'000]));
  EXPECT_TRUE(client->rent(1));
  EXPECT_EQ(client->evicted, (Keys{name(30'000)}));
  // Deleted while it is held: its memory comes when the pin goes.
  ASSERT_EQ(shm::retire_ref(client->lane, blocks[40'000]), shm::RetireStatus::kRetired);
  ASSERT_TRUE(shm::hand_over_retired(home.region, blocks[40'000], client->lane.id, shm::daemon_lane(home.region)));
  client->touch(blocks[40'000]);
  EXPECT_FALSE(client->rent(1));
  ASSERT_TRUE(client->pins.unpin(pins[40'000].slot, blocks[40'000]));
  EXPECT_TRUE(client->rent(1));
}

// -- parents ----------------------------------------------------------------------------------------------------------

class PoolOrderOfParents : public ::testing::Test {
 protected:
  // A root and its child, both older than all others; then the child is used once more.
  void begin() {
    root_ = client_->store("root");
    child_ = client_->store("child", root_);
    for (uint64_t i = 2; i < home_.region.pages(); ++i) {
      ++home_.now_ms;
      client_->store(name(i));
      if (i % 100 == 0) home_.pool->turn(home_.now_ms);
    }
    home_.now_ms += 10;
    client_->touch(child_);
  }
  // Nothing that was used before the child goes after the root.
  void expect_root_goes_last() {
    client_->evicted.clear();
    ASSERT_TRUE(client_->rent(home_.region.pages() - 3));
    EXPECT_TRUE(home_.exists("root"));
    EXPECT_EQ(std::count(client_->evicted.begin(), client_->evicted.end(), "root"), 0);
  }
  PoolUnderTest home_;
  std::unique_ptr<InProcessClient> client_ = home_.attach();
  PageRef root_, child_;
};

TEST_F(PoolOrderOfParents, ARootIsAsWarmAsTheChildThatItsClientDeleted) {
  begin();
  home_.pool->turn(home_.now_ms);
  home_.now_ms += 10;
  ASSERT_TRUE(client_->remove(child_));
  expect_root_goes_last();
}

TEST_F(PoolOrderOfParents, AlsoWhenMarudHadNotReadTheUseByThen) {
  begin();
  ASSERT_TRUE(client_->remove(child_));
  expect_root_goes_last();
}

TEST_F(PoolOrderOfParents, AndNotWarmer) {
  begin();
  home_.pool->turn(home_.now_ms);
  home_.now_ms += 10;
  client_->touch(PageRef::of(5, 0));
  home_.now_ms += 10;
  ASSERT_TRUE(client_->remove(child_));
  home_.pool->turn(home_.now_ms);
  const uint64_t root_use = home_.region.policy(root_.page()).last_use_ms.load_relaxed();
  EXPECT_LT(root_use, home_.region.policy(5).last_use_ms.load_relaxed()) << "used after the child, and before its end";
  EXPECT_EQ(root_use, home_.region.policy(child_.page()).last_use_ms.load_relaxed());
}

TEST_F(PoolOrderOfParents, AChildThatIsNotTheLastOneCountsAsWell) {
  const PageRef root = client_->store("root");
  client_->store("cold", root);
  const PageRef hot = client_->store("hot", root);
  for (uint64_t i = 3; i < home_.region.pages(); ++i) {
    ++home_.now_ms;
    client_->store(name(i));
    if (i % 100 == 0) home_.pool->turn(home_.now_ms);
  }
  home_.now_ms += 10;
  client_->touch(hot);
  home_.pool->turn(home_.now_ms);
  ASSERT_EQ(home_.delete_tree(home_.digest("hot")).deleted, 1u);
  expect_root_goes_last();
}

TEST_F(PoolOrderOfParents, ADeathInTheMiddleOfADeletionLosesNoUse) {
  begin();
  home_.pool->turn(home_.now_ms);
  home_.now_ms += 10;
  // All of finish_deleted, except that the parent's count was not lowered.
  ASSERT_TRUE(client_->remove(child_));
  uint64_t word = PageWord::ready(root_.generation(), 0).bits;
  ASSERT_TRUE(home_.region.block(root_.page()).word.cas_seq_cst(word, PageWord::ready(root_.generation(), 1).bits));
  home_.region.lane_header(client_->grant.lane).parent_intent[0].store_release(root_.bits);
  home_.pool->client_died(client_->grant.lane);
  home_.settle();
  EXPECT_EQ(home_.word(root_.page()), PageWord::ready(root_.generation(), 0));
  EXPECT_EQ(home_.region.policy(root_.page()).last_use_ms.load_relaxed(),
            home_.region.policy(child_.page()).last_use_ms.load_relaxed());
}

// A lookup that misses an expired block leaves a touch, so that marud takes it away. It may come when that has happened.
TEST_F(PoolOrderOfParents, ATouchOfWhatHasExpiredIsNoUseOfTheParent) {
  root_ = client_->store("root");
  const PageRef own = client_->take();
  shm::NewBlock block{};
  const std::string_view key = "over";
  block.digest = home_.digest(key);
  block.key = std::as_bytes(std::span(key.data(), key.size()));
  block.length = 100;
  block.parent = root_;
  block.now_ms = home_.now_ms;
  block.expires_ms = home_.now_ms + 5;
  ASSERT_EQ(shm::publish(client_->lane, own, block).status, shm::PublishStatus::kStored);
  client_->touch(own);
  home_.pool->turn(++home_.now_ms);
  const auto last_use = [&] { return home_.region.policy(root_.page()).last_use_ms.load_relaxed(); };
  const uint64_t used = last_use();
  home_.settle();
  ASSERT_TRUE(home_.word(own.page()).is(PageState::kFree)) << "it has gone";
  ASSERT_EQ(last_use(), used);
  client_->touch(own);
  home_.pool->turn(++home_.now_ms);
  EXPECT_EQ(last_use(), used);
}

// -- held blocks ------------------------------------------------------------------------------------------------------

// The ticks by which blocks that come back are sorted lie where a client can write, also while that is done.
TEST(PoolOrder, TicksThatChangeWhileBlocksComeBackHarmNobody) {
  PoolUnderTest home(16u << 20, 256, 4096);
  const auto client = home.attach(), reader = home.attach();
  const std::vector<PageRef> blocks = fill_and_turn(home, *client);
  std::atomic<bool> is_over{false};
  std::thread scribbler([&] {
    for (uint64_t random = 1; !is_over.load(std::memory_order_relaxed); random = random * 6364136223846793005u + 1)
      home.region.policy(blocks[(random >> 33) % blocks.size()].page()).last_use_ms.store_relaxed(random >> 40);
  });
  const auto held = [&] { return home.pool->status_json(home.now_ms).at("held_blocks").get<uint64_t>(); };
  for (int round = 0; round < 10; ++round) {
    std::vector<shm::Pin> pins;
    std::vector<PageRef> pinned;
    for (const PageRef ref : blocks) {
      if (!home.word(ref.page()).is(PageState::kReady, ref.generation())) continue;
      pins.push_back(reader->pin(ref));
      pinned.push_back(ref);
    }
    home.pool->admin("evict", {{"pages", 1}}, home.now_ms);
    EXPECT_GT(held(), 0u);
    for (size_t i = 0; i < pins.size(); ++i) reader->pins.unpin(pins[i].slot, pinned[i]);
    home.pool->admin("evict", {{"pages", 1}}, ++home.now_ms);
  }
  is_over = true;
  scribbler.join();
  home.settle();
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(home.pool->admin("check", nlohmann::json::object(), home.now_ms).at("found"), 0);
}

// -- copies -----------------------------------------------------------------------------------------------------------

// All blocks of this full pool were used in the same millisecond, and every third block has a copy elsewhere.
struct FullOfEquals {
  FullOfEquals() {
    for (uint64_t i = 0; i < home_.region.pages(); ++i) {
      const PageRef ref = client_->store(name(i));
      if (ref.is_none()) throw std::runtime_error("the pool does not take " + name(i));
      if (i % 3 != 1) continue;
      copies_.push_back(ref.bits);
      names_.push_back(name(i));
    }
    std::sort(names_.begin(), names_.end());
  }
  Keys evict() {
    EXPECT_TRUE(client_->rent(names_.size()));
    Keys gone = client_->evicted;
    std::sort(gone.begin(), gone.end());
    return gone;
  }

  PoolUnderTest home_;
  std::unique_ptr<InProcessClient> client_ = home_.attach();
  std::vector<uint64_t> copies_;
  Keys names_;  // of blocks with a copy, sorted
};
class PoolOrderOfCopies : public ::testing::Test, protected FullOfEquals {};

TEST_F(PoolOrderOfCopies, GoFirstAmongEquals) {
  home_.settle();
  EXPECT_EQ(home_.pool->note_copies(copies_, home_.now_ms), copies_.size());
  EXPECT_EQ(evict(), names_);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(PoolOrderOfCopies, OutliveAChangeOfPolicy) {
  home_.settle();
  home_.pool->note_copies(copies_, home_.now_ms);
  ASSERT_TRUE(home_.pool->set_policy("fifo", {}, home_.now_ms, false));
  EXPECT_EQ(evict(), names_);
}

TEST_F(PoolOrderOfCopies, ThatMarudHasNotMetOrThatAreNoneChangeNothing) {
  EXPECT_EQ(home_.pool->note_copies(copies_, home_.now_ms), 0u) << "no touch was read so far";
  home_.settle();
  std::vector<uint64_t> none = {0, ~uint64_t{0}, PageRef::of(uint32_t(home_.region.pages()), 1).bits};
  for (const uint64_t bits : copies_) {
    const PageRef ref = PageRef::from_bits(bits);
    none.push_back(PageRef::of(ref.page(), ref.generation() + 1).bits);
  }
  EXPECT_EQ(home_.pool->note_copies(none, home_.now_ms), 0u);
  FullOfEquals plain;
  plain.home_.settle();
  EXPECT_EQ(evict(), plain.evict());
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

// -- another marud ----------------------------------------------------------------------------------------------------

TEST(PoolOrder, TouchesThatWereLostWhileNoMarudRanAreCounted) {
  PoolUnderTest home;
  const auto client = home.attach();
  const std::vector<PageRef> blocks = fill_and_turn(home, *client);
  for (int i = 0; i < 40; ++i) {  // laps around the ring, all of them read
    for (int k = 0; k < 100; ++k) client->touch(blocks[size_t(k)]);
    home.pool->turn(++home.now_ms);
  }
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(lost(home), 0u) << "the marud before has read them";
  for (int k = 0; k < 1000; ++k) client->touch(blocks[size_t(k) % blocks.size()]);
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(lost(home), 1000u - 256u);
  for (int k = 0; k < 200; ++k) client->touch(blocks[size_t(k)]);
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(lost(home), 0u) << "those that the ring still has are read";
}

}  // namespace
}  // namespace maru::daemon
