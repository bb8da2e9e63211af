// Blocks that were out of the order because somebody pinned them: however many there are and however long looking for their
// pins takes, those whose pins had ended when a request came are back before it evicts.
#include "tests/unit/filled_pool.h"

#include <cerrno>

namespace maru::daemon {
namespace {

// As marud's loop does, until there is an answer. ret_asked: how often that took.
RentResult rent_in_turns(PoolUnderTest& home, const InProcessClient& asker, uint64_t runs, int* ret_asked) {
  constexpr int kAskedMax = 100'000;
  wire::RentRequest request = {};
  request.runs = runs;
  request.run_pages = 1;
  uint64_t ticket = 0;
  for (*ret_asked = 0; *ret_asked < kAskedMax; ++*ret_asked) {
    RentResult result = home.pool->rent(asker.grant.lane, request, home.now_ms, {}, 0, &ticket);
    if (ticket == 0) return result;
    while (home.pool->turn(home.now_ms) && !home.pool->may_rent(ticket)) {
    }
  }
  ADD_FAILURE() << "a request waits for ever";
  return {};
}

// A full pool whose coldest blocks are all held, so that marud has left them out of its queues. With costly looks: other lanes
// say that their pins overflow, and a look for one block reads thousands of slots.
class HeldBlocks : public ::testing::Test {
 protected:
  static constexpr uint64_t kHeld = 2600;

  HeldBlocks() {
    while (auto other = home_.attach()) others_.push_back(std::move(other));
    blocks_ = fill(home_, *client_);
    home_.pool->turn(home_.now_ms);
    EXPECT_GT(blocks_.size(), kHeld + 300);
    for (uint64_t i = 0; i < kHeld; ++i) pins_.push_back(reader_->pin(blocks_[i]));
    EXPECT_TRUE(client_->rent(10));
    EXPECT_EQ(held(), kHeld);
    EXPECT_EQ(gone(kHeld, 10), 10u);
    for (const auto& other : others_) home_.region.lane_header(other->grant.lane).pin_overflow.store_relaxed(1);
  }
  void cheapen_looks() {
    for (const auto& other : others_) home_.region.lane_header(other->grant.lane).pin_overflow.store_relaxed(0);
  }
  uint64_t held() const { return home_.pool->status_json(home_.now_ms)["held_blocks"].get<uint64_t>(); }
  uint64_t gone(uint64_t first, uint64_t count) const {
    uint64_t gone = 0;
    for (uint64_t i = first; i < first + count; ++i) gone += !home_.exists(name(i));
    return gone;
  }
  void unpin(uint64_t i) { ASSERT_TRUE(reader_->pins.unpin(pins_[i].slot, blocks_[i])) << i; }
  void unpin(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) unpin(i);
  }
  RentResult rent(InProcessClient& asker, uint64_t runs, uint64_t* ticket) {
    wire::RentRequest request = {};
    request.runs = runs;
    request.run_pages = 1;
    return home_.pool->rent(asker.grant.lane, request, home_.now_ms, {}, 0, ticket);
  }
  // One that may go on, with all its turns.
  RentResult rent_to_the_end(InProcessClient& asker, uint64_t runs, uint64_t* ticket) {
    RentResult result = rent(asker, runs, ticket);
    for (int turns = 0; *ticket != 0 && turns < kTurnsMax; ++turns) result = rent(asker, runs, ticket);
    return result;
  }
  // As marud's loop does: no further than turns say that there is more to do. Returns how many it took.
  int turn_until_may_rent(uint64_t ticket) {
    int turns = 0;
    while (!home_.pool->may_rent(ticket) && turns < kTurnsMax) {
      ++turns;
      if (!home_.pool->turn(home_.now_ms)) break;
    }
    EXPECT_TRUE(home_.pool->may_rent(ticket)) << "after " << turns << " turns";
    return turns;
  }
  static constexpr int kTurnsMax = 100'000;

  PoolUnderTest home_{16u << 20, 256, 1u << 14};
  std::unique_ptr<InProcessClient> client_ = home_.attach(), reader_ = home_.attach();
  std::vector<std::unique_ptr<InProcessClient>> others_;
  std::vector<PageRef> blocks_;
  std::vector<shm::Pin> pins_;
};

TEST_F(HeldBlocks, AllWhosePinsHadEndedAreBackBeforeTheRequestEvicts) {
  for (uint64_t i = 0; i < kHeld; ++i)
    if (i % 3 != 0) unpin(i);
  uint64_t ticket = 0;
  EXPECT_TRUE(rent(*client_, 600, &ticket).runs.empty());
  ASSERT_NE(ticket, 0u) << "more than one request looks at";
  EXPECT_EQ(gone(0, kHeld), 0u);
  EXPECT_GT(turn_until_may_rent(ticket), 1);
  EXPECT_EQ(held(), (kHeld + 2) / 3) << "each was looked at";
  cheapen_looks();  // how many blocks a request looks at while it evicts is not asked here
  EXPECT_EQ(rent_to_the_end(*client_, 600, &ticket).runs.size(), 600u);
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(gone(0, 900), 600u) << "the coldest 600 of those that nobody pins";
  for (uint64_t i = 0; i < kHeld; i += 3) ASSERT_TRUE(home_.exists(name(i))) << i;
}

TEST_F(HeldBlocks, SoTheyAreBeforeAnAdministratorsEviction) {
  unpin(0, kHeld);
  uint64_t ticket = 0;
  nlohmann::json reply;
  for (int turns = 0; reply.is_null() && turns < kTurnsMax; ++turns) {
    reply = home_.pool->admin("evict", {{"pages", 700}}, home_.now_ms, &ticket);
    if (reply.is_null()) home_.pool->turn(++home_.now_ms);
  }
  EXPECT_EQ(reply.value("evicted_blocks", 0), 700) << reply.dump();
  EXPECT_EQ(gone(0, 700), 700u);
}

// A pass that began before the request may have looked at the block already.
TEST_F(HeldBlocks, APinThatEndedWhileAnotherRequestWaitedCountsForTheNextOne) {
  constexpr uint64_t kLate = 100;
  unpin(0, kHeld - kLate);
  uint64_t first = 0, second = 0;
  rent(*client_, 10, &first);
  ASSERT_NE(first, 0u);
  home_.pool->turn(home_.now_ms);
  ASSERT_FALSE(home_.pool->may_rent(first));
  unpin(kHeld - kLate, kLate);  // the last ones were looked at first
  rent(*others_[0], 10, &second);
  ASSERT_NE(second, 0u);
  turn_until_may_rent(second);
  EXPECT_TRUE(home_.pool->may_rent(first));
  EXPECT_EQ(held(), 0u);
  cheapen_looks();  // how many blocks a request looks at while it evicts is not asked here
  EXPECT_EQ(rent_to_the_end(*client_, 1000, &first).runs.size(), 1000u);
  EXPECT_EQ(gone(0, 1000), 1000u);
}

TEST_F(HeldBlocks, RequestsThatWaitShareAPass) {
  unpin(0, kHeld);
  uint64_t alone = 0;
  rent(*client_, 1, &alone);
  const int for_one = turn_until_may_rent(alone);
  // The same again, for many.
  for (uint64_t i = 0; i < kHeld; ++i) pins_[i] = reader_->pin(blocks_[i]);
  int asked = 0;
  ASSERT_EQ(rent_in_turns(home_, *client_, 20, &asked).runs.size(), 20u);
  ASSERT_EQ(held(), kHeld);
  unpin(0, kHeld);
  std::vector<uint64_t> tickets(others_.size(), 0);
  for (size_t i = 0; i < others_.size(); ++i) rent(*others_[i], 1, &tickets[i]);
  int turns = 0;
  for (const uint64_t ticket : tickets) turns += turn_until_may_rent(ticket);
  EXPECT_LE(turns, 3 * for_one + 5);
}

// Clients that take pins and let go for ever, and requests that come while others wait: nobody waits for ever.
TEST_F(HeldBlocks, NobodyIsHeldUpForEver) {
  unpin(0, kHeld / 2);
  uint64_t ticket = 0;
  rent(*client_, 10, &ticket);
  ASSERT_NE(ticket, 0u);
  std::vector<uint64_t> waiting;
  int turns = 0;
  for (; !home_.pool->may_rent(ticket) && turns < kTurnsMax; ++turns) {
    for (uint64_t k = 0; k < 20; ++k) {
      const uint64_t i = kHeld / 2 + (uint64_t(turns) * 20 + k) % (kHeld / 2);
      const shm::Pin pin = others_[1]->pin(blocks_[i]);  // elsewhere than where it was seen
      unpin(i);
      pins_[i] = reader_->pin(blocks_[i]);
      ASSERT_TRUE(others_[1]->pins.unpin(pin.slot, blocks_[i]));
    }
    waiting.push_back(0);
    rent(*others_[0], 1, &waiting.back());
    home_.pool->turn(++home_.now_ms);
  }
  EXPECT_LT(turns, kTurnsMax / 2);
  EXPECT_EQ(rent_to_the_end(*client_, 10, &ticket).runs.size(), 10u);
  EXPECT_EQ(gone(0, 10), 10u);
  for (const uint64_t other : waiting) turn_until_may_rent(other);
}

TEST_F(HeldBlocks, WhoWaitsWhenThePoolIsDrainedIsTold) {
  uint64_t ticket = 0;
  unpin(0, kHeld / 2);
  rent(*client_, 10, &ticket);
  ASSERT_NE(ticket, 0u);
  home_.pool->set_draining(true, home_.now_ms);
  turn_until_may_rent(ticket);
  EXPECT_EQ(rent(*client_, 10, &ticket).status, -ESHUTDOWN);
  EXPECT_EQ(ticket, 0u);
}

TEST_F(HeldBlocks, WithoutAPlaceForATicketAllAreLookedAtAtOnce) {
  unpin(0, kHeld);
  client_->evicted.clear();
  ASSERT_TRUE(client_->rent(50));  // fewer than a turn looks at while it evicts
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(gone(0, 50), 50u);
  cheapen_looks();
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

// Each lane is a line that a look reads.
TEST(PoolOrderHeld, ManyLanesAreLookedAtInTurns) {
  constexpr uint32_t kLanes = 256;
  constexpr uint64_t kBlocks = 2000;
  PoolUnderTest home(20u << 20, 256, 1024, {}, 0, 256, kLanes);
  std::vector<std::unique_ptr<InProcessClient>> clients;
  while (auto client = home.attach()) clients.push_back(std::move(client));
  ASSERT_EQ(clients.size(), kLanes - 1);
  const std::vector<PageRef> blocks = fill(home, *clients[0]);
  home.pool->turn(home.now_ms);
  ASSERT_GT(blocks.size(), kBlocks + 100);
  std::vector<shm::Pin> pins;
  for (uint64_t i = 0; i < kBlocks; ++i) pins.push_back(clients[1 + i % 4]->pin(blocks[i]));
  ASSERT_TRUE(clients[0]->rent(1));
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_TRUE(clients[1 + i % 4]->pins.unpin(pins[i].slot, blocks[i])) << i;
  wire::RentRequest request = {};
  request.runs = 500;
  request.run_pages = 1;
  uint64_t ticket = 0;
  home.pool->rent(clients[0]->grant.lane, request, home.now_ms, {}, 0, &ticket);
  ASSERT_NE(ticket, 0u) << "half a million lines are more than one request reads";
  int turns = 0;
  RentResult result;
  for (; ticket != 0 && turns < 10'000; ++turns) {
    home.pool->turn(home.now_ms);
    if (home.pool->may_rent(ticket))
      result = home.pool->rent(clients[0]->grant.lane, request, home.now_ms, {}, 0, &ticket);
  }
  EXPECT_EQ(result.runs.size(), 500u);
  for (uint64_t i = 0; i < 500; ++i) EXPECT_FALSE(home.exists(name(i))) << i;
}

// More than a turn looks at, and as many as a request once gave up after.
class PinnedBlocks : public ::testing::Test {
 protected:
  static constexpr uint64_t kPinned = 3600;

  PinnedBlocks() {
    while (auto other = home_.attach()) others_.push_back(std::move(other));
    blocks_ = fill(home_, *client_);
    home_.pool->turn(home_.now_ms);
    EXPECT_GT(blocks_.size(), kPinned + 300);
    for (uint64_t i = 0; i < kPinned; ++i) pins_.push_back(reader_->pin(blocks_[i]));
    for (const auto& other : others_) home_.region.lane_header(other->grant.lane).pin_overflow.store_relaxed(1);
  }

  PoolUnderTest home_{20u << 20, 256, 1u << 14};
  std::unique_ptr<InProcessClient> client_ = home_.attach(), reader_ = home_.attach();
  std::vector<std::unique_ptr<InProcessClient>> others_;
  std::vector<PageRef> blocks_;
  std::vector<shm::Pin> pins_;
};

TEST_F(PinnedBlocks, ColdestOnesAreLookedAtInTurnsUntilOneMayGo) {
  int asked = 0;
  const RentResult result = rent_in_turns(home_, *client_, 1, &asked);
  EXPECT_EQ(result.status, 0) << result.explanation;
  EXPECT_EQ(result.runs.size(), 1u);
  EXPECT_EQ(result.evicted_total, 1u);
  EXPECT_FALSE(home_.exists(name(kPinned)));
  EXPECT_GT(asked, 10) << "2,500 lines for each of them";
}

TEST_F(PinnedBlocks, WhenAllAreThatIsSaidInTheEnd) {
  for (uint64_t i = kPinned; i < blocks_.size(); ++i) reader_->pin(blocks_[i]);
  int asked = 0;
  EXPECT_EQ(rent_in_turns(home_, *client_, 1, &asked).status, -ENOSPC);
  EXPECT_EQ(home_.pool->status_json(home_.now_ms)["held_blocks"], blocks_.size()) << "each was looked at";
  EXPECT_EQ(home_.count(PageState::kReady), blocks_.size());
}

TEST_F(PinnedBlocks, KeysThatWentForARequestThatIsGivenUpAreTold) {
  for (uint64_t i = kPinned; i < blocks_.size(); ++i) {
    reader_->pin(blocks_[i]);
    EXPECT_FALSE(client_->remove(blocks_[i])) << "which the request looks at in the end, in turns";
  }
  for (uint64_t i = 0; i < 8; i += 2) ASSERT_TRUE(reader_->pins.unpin(pins_[i].slot, blocks_[i]));
  wire::RentRequest request = {};
  request.runs = 1;
  request.run_pages = 2;  // and beside each page that may go is one that may not
  const uint32_t lane = client_->grant.lane;
  uint64_t ticket = 0;
  const auto evicted = [&] { return kPinned - home_.count(PageState::kReady); };
  while (evicted() == 0) {
    ASSERT_TRUE(home_.pool->rent(lane, request, home_.now_ms, {}, 0, &ticket).runs.empty());
    ASSERT_NE(ticket, 0u);
    home_.pool->turn(home_.now_ms);
  }
  const RentResult given_up = home_.pool->give_up_rent(lane);
  EXPECT_EQ(given_up.evicted_total, evicted());
  EXPECT_EQ(given_up.evicted, evicted());
  EXPECT_EQ(home_.pool->give_up_rent(lane).evicted_total, 0u) << "once";
}

TEST_F(PinnedBlocks, WithoutAPlaceForATicketAllAreLookedAtAtOnce) {
  ASSERT_TRUE(client_->rent(1));
  EXPECT_EQ(client_->evicted, Keys{name(kPinned)});
}

// The held block went, and its page has another one, which was never pinned.
TEST(PoolOrderHeld, ANewBlockOnAPageThatWasHeldHasItsPlace) {
  PoolUnderTest home(1u << 20, 16, 64);
  const auto client = home.attach(), reader = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  home.pool->turn(home.now_ms);
  const shm::Pin pin = reader->pin(blocks[0]);
  ++home.now_ms;
  ASSERT_TRUE(client->rent(1));
  ASSERT_EQ(home.pool->status_json(home.now_ms)["held_blocks"], 1);
  ASSERT_TRUE(reader->pins.unpin(pin.slot, blocks[0]));
  ASSERT_TRUE(client->remove(blocks[0]));
  bool is_on_that_page = false;
  for (const char* key : {"new-0", "new-1"}) {
    ++home.now_ms;
    const PageRef stored = client->store(key);
    ASSERT_FALSE(stored.is_none());
    is_on_that_page |= stored.page() == blocks[0].page();
  }
  ASSERT_TRUE(is_on_that_page);
  home.now_ms += 100;
  for (size_t i = 2; i < blocks.size(); ++i) {
    if (!home.exists(name(i))) continue;
    ++home.now_ms;
    client->touch(blocks[i]);
  }
  ++home.now_ms;
  ASSERT_TRUE(client->rent(2));
  EXPECT_FALSE(home.exists("new-0"));
  EXPECT_FALSE(home.exists("new-1"));
}

}  // namespace
}  // namespace maru::daemon
