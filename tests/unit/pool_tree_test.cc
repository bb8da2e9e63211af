// What takes a look at every page of a pool is done in slices when the pool is large, and others go on in between.
#include "pool_fixture.h"

#include <cerrno>

namespace maru::daemon {
namespace {

using nlohmann::json;

class LargePool : public ::testing::Test {
 protected:
  // Twice as many pages as a slice looks at.
  static constexpr uint64_t kPages = 1u << 17;

  uint64_t begin(const InProcessClient& client, std::string_view key, int32_t expected_status = 0) {
    const shm::Digest digest = pool_.digest(key);
    uint64_t ticket = 0;
    EXPECT_EQ(pool_.pool->delete_tree(client.grant.lane, {digest.lo, digest.hi}, pool_.now_ms, &ticket).status,
              expected_status);
    return ticket;
  }
  std::vector<DeletedTree> turn_until_deleted(size_t trees) {
    std::vector<DeletedTree> all;
    for (int turns = 0; all.size() < trees && turns < 10'000; ++turns) {
      pool_.pool->turn(++pool_.now_ms);
      for (const DeletedTree& tree : pool_.pool->take_deleted_trees()) all.push_back(tree);
    }
    return all;
  }
  json clear(uint64_t* ret_ticket) { return pool_.pool->admin("clear", json::object(), pool_.now_ms, ret_ticket); }
  json turn_until_cleared(uint64_t* ret_ticket) {
    json reply;
    for (int turns = 0; reply.is_null() && turns < 10'000; ++turns) {
      pool_.pool->turn(++pool_.now_ms);
      reply = clear(ret_ticket);
    }
    return reply;
  }
  // The ticket of a check at rest from whose preparation the pool has come.
  uint64_t begin_check_at_rest() {
    uint64_t ticket = 0;
    EXPECT_TRUE(pool_.pool->admin("check", {{"quiesce", true}}, pool_.now_ms, &ticket).is_null());
    for (int turns = 0; !pool_.pool->is_quiesced() && turns < 100'000; ++turns) pool_.pool->turn(++pool_.now_ms);
    EXPECT_TRUE(pool_.pool->is_quiesced());
    return ticket;
  }
  void expect_clean() { EXPECT_EQ(pool_.audit(), std::set<std::string>()); }

  PoolUnderTest pool_{kPages * 4096, 1024};
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
};

TEST_F(LargePool, TreeIsDeletedInTurns) {
  const PageRef root = client_->store("root"), a = client_->store("a", root);
  client_->store("b", a);
  client_->store("other");
  const uint64_t ticket = begin(*client_, "root");
  ASSERT_NE(ticket, 0u);
  EXPECT_TRUE(pool_.exists("root")) << "not yet";
  EXPECT_TRUE(pool_.pool->take_deleted_trees().empty());
  const auto done = turn_until_deleted(1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ticket, ticket);
  EXPECT_EQ(done[0].result.deleted, 3u);
  EXPECT_EQ(done[0].result.left, 0u);
  for (const char* gone : {"root", "a", "b"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
  EXPECT_TRUE(pool_.exists("other"));
  pool_.settle();
  expect_clean();
}

TEST_F(LargePool, BlockWithoutChildrenGoesAtOnce) {
  client_->store("root");
  EXPECT_EQ(begin(*client_, "root"), 0u);
  EXPECT_FALSE(pool_.exists("root"));
  EXPECT_EQ(begin(*client_, "root", -ENOENT), 0u);
}

TEST_F(LargePool, WhatExpiredGoesWhenALookupMeetsIt) {
  const PageRef root = client_->store("root"), a = client_->store("a", root), b = client_->store("b", a);
  const PageRef leaf = client_->store("leaf"), other = client_->store("other");
  const auto turn = [&](int turns) {
    for (int i = 0; i < turns; ++i) pool_.pool->turn(++pool_.now_ms);
  };
  turn(1);  // the sweep has been here, and comes again after eight times as many turns as follow
  for (const PageRef ref : {root, a, b, leaf}) pool_.region.block(ref.page()).expires_ms.store_relaxed(pool_.now_ms);
  turn(40);
  for (const char* key : {"root", "a", "b", "leaf"}) EXPECT_TRUE(pool_.exists(key)) << key << ": nobody has asked";
  const shm::Pin pin = client_->pin(b);
  client_->touch(root);
  client_->touch(leaf);
  client_->touch(other);
  turn(1);
  EXPECT_FALSE(pool_.exists("leaf"));
  turn(20);
  for (const char* key : {"root", "a", "b"}) EXPECT_TRUE(pool_.exists(key)) << key << ": held by a pin";
  client_->pins.unpin(pin.slot, b);
  client_->touch(root);
  pool_.now_ms += 1000;  // the next look at all pages is not before
  turn(100);
  for (const char* key : {"root", "a", "b"}) EXPECT_FALSE(pool_.exists(key)) << key;
  EXPECT_TRUE(pool_.exists("other"));
  expect_clean();
}

TEST_F(LargePool, EverythingIsClearedInTurns) {
  const PageRef root = client_->store("root"), a = client_->store("a", root), held = client_->store("held", a);
  client_->store("b", a);
  client_->store("other");
  const shm::Pin pin = client_->pin(held);
  uint64_t ticket = 0;
  EXPECT_TRUE(clear(&ticket).is_null());
  ASSERT_NE(ticket, 0u);
  EXPECT_TRUE(pool_.exists("root")) << "not yet";
  const json reply = turn_until_cleared(&ticket);
  EXPECT_EQ(reply, json({{"deleted_blocks", 2}, {"deleted_when_unpinned", 1}, {"left_blocks", 2}}))
      << "what is above a block that is held stays with it";
  for (const char* gone : {"held", "b", "other"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
  const PageRef later = client_->store("later");
  pool_.settle();
  EXPECT_TRUE(pool_.exists("root"));
  client_->pins.unpin(pin.slot, held);
  pool_.settle();
  for (const char* gone : {"root", "a"}) EXPECT_FALSE(pool_.exists(gone)) << gone << ": nothing holds it any more";
  EXPECT_TRUE(pool_.exists("later")) << "it came after";
  ASSERT_TRUE(client_->remove(later));
  EXPECT_EQ(pool_.count(PageState::kReady) + pool_.count(PageState::kRetired), 0u);
  expect_clean();
}

// Whoever clears again and again while something is held leaves marud no more to do than who clears once.
TEST_F(LargePool, WhatIsLeftIsRememberedOnceHoweverOftenItIsCleared) {
  PageRef deepest = PageRef::none();
  for (int i = 0; i < 700; ++i) deepest = client_->store("chain " + std::to_string(i), deepest);
  const shm::Pin pin = client_->pin(deepest);
  for (int i = 0; i < 110; ++i) {
    uint64_t ticket = 0;
    EXPECT_TRUE(clear(&ticket).is_null());
    EXPECT_EQ(turn_until_cleared(&ticket)["left_blocks"], 699);
  }
  pool_.settle();  // 64 turns are enough, and a turn looks at a thousand blocks
  client_->pins.unpin(pin.slot, deepest);
  pool_.settle();
  EXPECT_EQ(pool_.count(PageState::kReady) + pool_.count(PageState::kRetired), 0u);
  expect_clean();
}

TEST_F(LargePool, WhoClearsAfterAnotherHasAnAnswerOfItsOwn) {
  client_->store("first");
  uint64_t one = 0, two = 0, unknown = 4711;
  EXPECT_TRUE(clear(&one).is_null());
  EXPECT_TRUE(clear(&two).is_null());
  ASSERT_NE(one, two);
  client_->store("second");
  EXPECT_EQ(turn_until_cleared(&two)["deleted_blocks"].get<int>() + clear(&one)["deleted_blocks"].get<int>(), 2);
  EXPECT_EQ(one, 0u);
  EXPECT_EQ(clear(&unknown)["errno"], ECANCELED);
}

// Each names the other as its parent.
TEST_F(LargePool, AScribbledCircleIsCleared) {
  const PageRef a = client_->store("a"), b = client_->store("b", a), c = client_->store("c");
  pool_.region.block(a.page()).parent.store_release(b.bits);
  pool_.region.block(c.page()).parent.store_release(c.bits);
  uint64_t ticket = 0;
  EXPECT_TRUE(clear(&ticket).is_null());
  EXPECT_EQ(turn_until_cleared(&ticket)["deleted_blocks"], 3);
  for (const char* gone : {"a", "b", "c"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
}

// Links that were written down are of pages that have been given to others since.
TEST_F(LargePool, WhatIsStoredMeanwhileInAPageOfTheTreeStays) {
  const PageRef root = client_->store("root"), leaf = client_->store("leaf", root);
  client_->store("stays to be deleted", root);
  const uint64_t ticket = begin(*client_, "root");
  ASSERT_NE(ticket, 0u);
  ASSERT_EQ(shm::retire_ref(client_->lane, leaf), shm::RetireStatus::kRetired);
  ASSERT_EQ(shm::finish_retired(client_->lane, leaf, shm::LaneSet::in_use(pool_.region), nullptr),
            shm::FinishStatus::kFreed);
  ASSERT_EQ(client_->store("new").page(), leaf.page());
  const auto done = turn_until_deleted(1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].result.deleted, 2u);
  EXPECT_TRUE(pool_.exists("new"));
  EXPECT_FALSE(pool_.exists("root"));
  pool_.settle();
  expect_clean();
}

TEST_F(LargePool, ChildThatComesMeanwhileKeepsItsParent) {
  const PageRef root = client_->store("root"), a = client_->store("a", root);
  const uint64_t ticket = begin(*client_, "root");
  ASSERT_NE(ticket, 0u);
  for (int turns = 0; turns < 20; ++turns) pool_.pool->turn(++pool_.now_ms);  // has passed the next pages
  client_->store("late", a);
  const auto done = turn_until_deleted(1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].result.deleted + done[0].result.left, 2u);
  EXPECT_EQ(done[0].result.left, 2u);
  for (const char* there : {"root", "a", "late"}) EXPECT_TRUE(pool_.exists(there)) << there;
  pool_.settle();
  expect_clean();
}

TEST_F(LargePool, EachClientMayWaitForOneTreeAndEachIsDone) {
  const auto other = pool_.attach();
  for (const char* root : {"one", "two"}) client_->store(std::string(root) + " below", client_->store(root));
  const uint64_t one = begin(*client_, "one"), two = begin(*other, "two");
  ASSERT_TRUE(one != 0 && two != 0 && one != two);
  EXPECT_EQ(begin(*client_, "two", -EAGAIN), 0u);
  pool_.pool->client_died(other->grant.lane);
  const auto done = turn_until_deleted(2);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].ticket, one);
  EXPECT_EQ(done[1].ticket, two) << "whoever asked has gone, and others may have asked for the same";
  for (const DeletedTree& tree : done) EXPECT_EQ(tree.result.deleted, 2u);
  EXPECT_EQ(begin(*client_, "one", -ENOENT), 0u) << "it may ask again";
}

// A line of every page is read, and others wait no longer for that than for a turn.
TEST_F(LargePool, LiveAuditGoesOnOverTurns) {
  const PageRef root = client_->store("root");
  client_->store("a", root);
  const auto check = [&](uint64_t* ticket) { return pool_.pool->admin("check", json::object(), pool_.now_ms, ticket); };
  const auto turn_until_checked = [&](uint64_t* ticket, int* ret_turns) {
    json reply;
    for (*ret_turns = 0; reply.is_null() && *ret_turns < 100'000; ++*ret_turns) {
      pool_.pool->turn(++pool_.now_ms);
      reply = check(ticket);
    }
    return reply;
  };
  uint64_t first = 0, second = 0;
  EXPECT_TRUE(check(&first).is_null());
  ASSERT_NE(first, 0u);
  pool_.pool->turn(++pool_.now_ms);
  EXPECT_TRUE(check(&first).is_null());
  // What was there when the second one asked is what that one sees.
  const uint64_t word = pool_.word(root.page()).bits;
  pool_.region.block(root.page()).word.store_release(PageWord::ready(root.generation(), 0).bits);
  EXPECT_TRUE(check(&second).is_null());
  ASSERT_NE(second, first);
  int turns = 0;
  EXPECT_FALSE(turn_until_checked(&first, &turns).is_null());
  EXPECT_EQ(first, 0u);
  EXPECT_GT(turns, int(kPages / 1024)) << "a slice is as long as a turn may be";
  const json reply = turn_until_checked(&second, &turns);
  ASSERT_TRUE(reply.contains("violations")) << reply.dump();
  std::set<std::string> violated;
  for (const json& violation : reply["violations"]) violated.insert(violation["invariant"]);
  EXPECT_EQ(violated, (std::set<std::string>{"block.parent", "children.at-least"})) << reply.dump();
  EXPECT_EQ(reply["mode"], "live");
  pool_.region.block(root.page()).word.store_release(word);
  EXPECT_EQ(pool_.pool->admin("check", json::object(), pool_.now_ms)["found"], 0) << "without a ticket at once";
  uint64_t unknown = 12'345;
  EXPECT_TRUE(check(&unknown).contains("error"));
}

// A block that counts a child too many, or is being counted again, stays as long as it does, and is not forgotten.
TEST_F(LargePool, ABlockThatIsBeingCountedGoesAfterTheClear) {
  const PageRef one = client_->store("one"), other = client_->store("other");
  pool_.pool->turn(++pool_.now_ms);
  const auto count = [&](PageRef block, uint32_t children, bool is_counted) {
    const PageWord word = PageWord::ready(block.generation(), children, is_counted);
    pool_.region.block(block.page()).word.store_release(word.bits);
  };
  count(one, 1, true);
  count(other, 0, true);
  const json reply = pool_.pool->admin("clear", json::object(), pool_.now_ms);
  EXPECT_EQ(reply.at("left_blocks"), 1) << reply.dump();
  EXPECT_TRUE(pool_.exists("one"));
  EXPECT_FALSE(pool_.exists("other")) << "nobody is below it: its key goes at once";
  pool_.settle();
  EXPECT_TRUE(pool_.exists("one"));
  count(one, 0, false);
  pool_.settle();
  EXPECT_FALSE(pool_.exists("one"));
  expect_clean();
}

// Every page is looked at before the coldest block of all is known.
TEST_F(LargePool, AnAdministratorEvictsInTurns) {
  for (int i = 0; i < 10; ++i, ++pool_.now_ms) client_->store("block " + std::to_string(i));
  uint64_t ticket = 0;
  json reply;
  int turns = 0;
  for (; reply.is_null() && turns < 10'000; ++turns) {
    reply = pool_.pool->admin("evict", {{"pages", 3}}, pool_.now_ms, &ticket);
    if (reply.is_null()) pool_.pool->turn(++pool_.now_ms);
  }
  EXPECT_EQ(reply.value("evicted_pages", 0), 3) << reply.dump();
  EXPECT_GE(turns, int(kPages / 4096));
  EXPECT_EQ(ticket, 0u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pool_.exists("block " + std::to_string(i)), i >= 3) << i;
  uint64_t unknown = 12'345;
  EXPECT_TRUE(pool_.pool->admin("evict", {{"pages", 3}}, pool_.now_ms, &unknown).contains("error"));
}

// Queues that are built anew, region by region: who would have to choose by them waits.
class ReorderedPool : public LargePool {
 protected:
  // Memory of regions that it has already.
  RentResult rent(uint64_t* ticket) {
    wire::RentRequest request = {};
    request.runs = request.run_pages = 1;
    return pool_.pool->rent(client_->grant.lane, request, pool_.now_ms, {0, true}, 0, ticket);
  }
  void expect_turns_until_ordered() {
    uint64_t ticket = 0;
    EXPECT_TRUE(rent(&ticket).runs.empty());
    ASSERT_NE(ticket, 0u);
    int turns = 0;
    for (; !pool_.pool->may_rent(ticket) && turns < 10'000; ++turns) pool_.pool->turn(++pool_.now_ms);
    EXPECT_GE(turns, int(kPages >> 12)) << "a turn looks at so many pages";
    EXPECT_LT(turns, 1000);
    EXPECT_EQ(rent(&ticket).runs.size(), 1u);
    EXPECT_EQ(ticket, 0u);
  }
};

TEST_F(ReorderedPool, APolicyIsToldOfTheBlocksInTurns) {
  std::vector<PageRef> blocks;
  for (int i = 0; i < 10; ++i, ++pool_.now_ms) blocks.push_back(client_->store("block " + std::to_string(i)));
  for (int i = 0; i < 5; ++i, ++pool_.now_ms) client_->touch(blocks[size_t(i)]);
  pool_.pool->turn(++pool_.now_ms);
  ASSERT_TRUE(pool_.pool->set_policy("lfu", {}, pool_.now_ms, true));
  uint64_t ticket = 0;
  EXPECT_TRUE(pool_.pool->when_ordered({{"is", "lfu"}}, &ticket).is_null());
  ASSERT_NE(ticket, 0u);
  EXPECT_TRUE(pool_.pool->late_policy(&ticket).is_null());
  client_->touch(blocks[7]);  // read while only ticks go on, and in place then
  expect_turns_until_ordered();
  EXPECT_EQ(pool_.pool->late_policy(&ticket).value("is", ""), "lfu");
  EXPECT_EQ(ticket, 0u);
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 10; ++i, ++pool_.now_ms)
      if (i != 6) client_->touch(blocks[size_t(i)]);
  EXPECT_EQ(pool_.pool->admin("evict", {{"pages", 1}}, pool_.now_ms).at("evicted_blocks"), 1);
  EXPECT_FALSE(pool_.exists("block 6"));
  ASSERT_TRUE(pool_.pool->set_policy("lru", {}, pool_.now_ms, true));
  expect_turns_until_ordered();
  EXPECT_EQ(pool_.pool->admin("evict", {{"pages", 1}}, pool_.now_ms).at("evicted_blocks"), 1);
  EXPECT_FALSE(pool_.exists("block 0")) << "used longest ago";
  expect_clean();
}

// Nor does it stay half done, with links of lists that are no more, when marud ends; nor are words believed to be one policy's
// while some are the other one's.
TEST_F(ReorderedPool, AnEndInTheMiddleOfItLeavesAnOrder) {
  constexpr int kLarge = 80;
  std::vector<PageRef> blocks;
  for (int i = 0; i < kLarge + 20; ++i, ++pool_.now_ms)
    blocks.push_back(client_->store("block " + std::to_string(i), PageRef::none(), i < kLarge ? 1024 : 1));
  pool_.settle();
  const auto whose = [&] { return pool_.region.host(0).policy.load_relaxed(); };
  const uint64_t lru = whose();
  EXPECT_NE(lru, 0u);
  ASSERT_TRUE(pool_.pool->set_policy("lfu", {}, pool_.now_ms, true));
  pool_.pool->turn(++pool_.now_ms);
  EXPECT_EQ(whose(), 0u);
  // Of a region whose turn has not come.
  ASSERT_TRUE(client_->remove(blocks[kLarge + 10]));
  ASSERT_FALSE(client_->store("again").is_none());
  pool_.pool->turn(++pool_.now_ms);
  uint64_t ticket = 0;
  EXPECT_TRUE(rent(&ticket).runs.empty());
  EXPECT_NE(ticket, 0u) << "the test would prove nothing";
  EXPECT_TRUE(pool_.pool->close());
  expect_clean();
  EXPECT_NE(whose(), 0u);
  EXPECT_NE(whose(), lru);
}

// The order is none meanwhile, which is no damage.
TEST_F(ReorderedPool, ACheckWaitsForThat) {
  for (int i = 0; i < 10; ++i) client_->store("block " + std::to_string(i));
  pool_.pool->turn(++pool_.now_ms);
  for (const bool is_quiesced : {false, true}) {
    uint64_t ticket = 0;
    const auto check = [&] { return pool_.pool->admin("check", {{"quiesce", is_quiesced}}, pool_.now_ms, &ticket); };
    EXPECT_TRUE(check().is_null());
    pool_.pool->turn(++pool_.now_ms);
    ASSERT_TRUE(pool_.pool->set_policy(is_quiesced ? "lru" : "fifo", {}, pool_.now_ms, true));
    json reply;
    for (int turns = 0; reply.is_null() && turns < 100'000; ++turns) {
      client_->touch(PageRef::of(uint32_t(turns % 10), 0));
      pool_.pool->turn(++pool_.now_ms);
      reply = check();
    }
    EXPECT_EQ(reply.value("found", -1), 0) << reply.dump();
  }
}

TEST_F(ReorderedPool, TheFirstLimitOfATenantSeparatesTheQueuesInTurns) {
  pool_.pool->set_tenant_limits({}, [](const TenantSettings&) { return Result<void>(); });
  client_->store("block");
  pool_.pool->turn(++pool_.now_ms);
  EXPECT_FALSE(pool_.pool->admin("quota.set", {{"tenant", "one"}, {"soft", 4096}}, pool_.now_ms).contains("error"));
  expect_turns_until_ordered();
  expect_clean();
}

// marud leaves the pool alone while it looks for what holds only at rest, and takes turns with others all the same.
TEST_F(LargePool, AuditAtRestGoesOnOverTurns) {
  const PageRef root = client_->store("root");
  client_->store("a", root);
  const uint32_t leaving = pool_.pool->attach({4711, 0, 0, 1}, 0, 0, pool_.now_ms).value().lane;
  const auto ask = [&](const char* command, uint64_t* ticket) {
    return pool_.pool->admin(command, {{"quiesce", true}}, pool_.now_ms, ticket);
  };
  const auto turn_until = [&](auto&& is_true) {
    int turns = 0;
    for (; !is_true() && turns < 100'000; ++turns) pool_.pool->turn(++pool_.now_ms);
    return turns;
  };
  uint64_t check = 0, clear = 0;
  EXPECT_TRUE(ask("check", &check).is_null());
  ASSERT_NE(check, 0u);
  turn_until([&] { return pool_.pool->is_quiesced(); });
  pool_.pool->client_died(leaving);
  EXPECT_TRUE(ask("clear", &clear).is_null());
  ASSERT_NE(clear, 0u);
  json reply;
  EXPECT_GT(turn_until([&] { return !(reply = ask("check", &check)).is_null(); }), int(kPages / 1024));
  EXPECT_EQ(reply["found"], 0) << reply.dump();
  EXPECT_EQ(reply["mode"], "quiesced");
  EXPECT_EQ(check, 0u);
  EXPECT_FALSE(pool_.pool->is_quiesced());
  EXPECT_TRUE(pool_.exists("root")) << "not cleared meanwhile";
  EXPECT_TRUE(pool_.pool->is_reclaiming()) << "the lane of the dead is taken back now";
  turn_until([&] { return !ask("clear", &clear).is_null(); });
  EXPECT_FALSE(pool_.exists("root"));
  turn_until([&] { return !pool_.pool->is_reclaiming(); });
  EXPECT_FALSE(pool_.pool->is_reclaiming());
  pool_.settle();
  expect_clean();
}

// What a client that is gone held is not left to the next marud because of a check.
TEST_F(LargePool, PoolThatIsClosedDuringAnAuditAtRestHasTakenBackWhoEnded) {
  client_->store("root");
  ASSERT_NE(begin_check_at_rest(), 0u);
  pool_.pool->client_died(client_->grant.lane);
  EXPECT_TRUE(pool_.pool->live_lanes().empty()) << "nobody holds the memory any more";
  EXPECT_TRUE(pool_.pool->is_reclaiming());
  ASSERT_TRUE(pool_.pool->close());
  EXPECT_EQ(format::LaneState(pool_.region.identity(client_->grant.lane).state.load_acquire() & 0xFFFF),
            format::LaneState::kFree);
  EXPECT_EQ(pool_.region.host(0).clean.load_relaxed(), 1u);
  ASSERT_TRUE(pool_.restart());
  EXPECT_TRUE(pool_.pool->live_lanes().empty());
  EXPECT_TRUE(pool_.exists("root"));
  expect_clean();
}

// A lane that is half taken back, and a parent that counts a child too many, would look like damage.
TEST_F(LargePool, AuditAtRestWaitsForWhatIsBeingTakenBack) {
  const PageRef root = client_->store("root");
  const auto dying = pool_.attach();
  const auto check = [&](int dies_after_turns, int* ret_turns) {
    uint64_t ticket = 0;
    EXPECT_TRUE(pool_.pool->admin("check", {{"quiesce", true}}, pool_.now_ms, &ticket).is_null());
    for (*ret_turns = 0; !pool_.pool->is_quiesced() && *ret_turns < 100'000; ++*ret_turns) {
      if (*ret_turns == dies_after_turns) {
        // In the middle of a store below the root.
        pool_.region.block(root.page()).word.store_release(PageWord::ready(root.generation(), 1).bits);
        dying->lane.header().parent_intent[0].store_release(root.bits);
        pool_.pool->client_died(dying->grant.lane);
      }
      pool_.pool->turn(++pool_.now_ms);
    }
    json reply;
    for (int turns = 0; reply.is_null() && turns < 100'000; ++turns) {
      pool_.pool->turn(++pool_.now_ms);
      reply = pool_.pool->admin("check", {{"quiesce", true}}, pool_.now_ms, &ticket);
    }
    return reply;
  };
  int prepared = 0, again = 0;
  EXPECT_EQ(check(-1, &prepared)["found"], 0);
  const json reply = check(prepared - 1, &again);
  EXPECT_EQ(reply["found"], 0) << reply.dump();
  EXPECT_FALSE(pool_.pool->is_reclaiming());
}

// The same for a client that stands still there: the check does not wait for ever.
TEST_F(LargePool, AuditAtRestDoesNotWaitForAClientThatStandsStill) {
  const PageRef root = client_->store("root");
  const auto dying = pool_.attach();
  pool_.region.block(root.page()).word.store_release(PageWord::ready(root.generation(), 1).bits);
  client_->lane.header().parent_intent[0].store_release(root.bits);
  dying->lane.header().parent_intent[0].store_release(root.bits);
  pool_.pool->client_died(dying->grant.lane);
  EXPECT_NE(begin_check_at_rest(), 0u);
}

TEST_F(LargePool, LimitsAreShownDuringAnAuditAtRest) {
  ASSERT_NE(begin_check_at_rest(), 0u);
  for (const char* asks : {"quota.default", "quota.mode", "quota.list"}) {
    uint64_t ticket = 0;
    EXPECT_FALSE(pool_.pool->admin(asks, json::object(), pool_.now_ms, &ticket).is_null()) << asks;
    EXPECT_EQ(ticket, 0u) << asks;
  }
  uint64_t ticket = 0;
  EXPECT_TRUE(pool_.pool->admin("quota.default", {{"soft", 4096}}, pool_.now_ms, &ticket).is_null());
  EXPECT_NE(ticket, 0u);
}

TEST_F(LargePool, WhoSaysGoodbyeDuringAnAuditAtRestDoesNotKeepItsLane) {
  const ClientIdentity who = {4711, 0, 0, 1};
  const LaneGrant grant = pool_.pool->attach(who, 0, 0, pool_.now_ms).value();
  ASSERT_NE(begin_check_at_rest(), 0u);
  EXPECT_TRUE(pool_.pool->keeps_lane(who, grant.lane, grant.generation));
  pool_.pool->detach(grant.lane);
  EXPECT_FALSE(pool_.pool->keeps_lane(who, grant.lane, grant.generation));
}

// A fenced pool has no turns.
TEST_F(LargePool, PoolThatIsFencedDuringAnAuditAtRestIsLeftByWhoEnded) {
  const auto other = pool_.attach();
  uint64_t check = begin_check_at_rest();
  ASSERT_NE(check, 0u);
  pool_.pool->client_died(other->grant.lane);
  pool_.pool->give_up_turns();
  EXPECT_FALSE(pool_.pool->is_quiesced());
  EXPECT_FALSE(pool_.pool->is_reclaiming());
  ASSERT_EQ(pool_.pool->live_lanes().size(), 1u);
  EXPECT_EQ(pool_.pool->live_lanes()[0].lane, client_->grant.lane);
  EXPECT_EQ(pool_.pool->admin("check", {{"quiesce", true}}, pool_.now_ms, &check)["errno"], ECANCELED);
  pool_.pool->give_up_lane(client_->grant.lane);
  EXPECT_TRUE(pool_.pool->live_lanes().empty());
}

TEST_F(LargePool, AuditAtRestFindsWhatHoldsOnlyThen) {
  const PageRef root = client_->store("root");
  client_->store("a", root);
  const uint64_t word = pool_.word(root.page()).bits;
  pool_.region.block(root.page()).word.store_release(PageWord::ready(root.generation(), 2).bits);
  uint64_t check = 0;
  json reply;
  for (int turns = 0; reply.is_null() && turns < 100'000; ++turns) {
    reply = pool_.pool->admin("check", {{"quiesce", true}}, pool_.now_ms, &check);
    pool_.pool->turn(++pool_.now_ms);
  }
  EXPECT_EQ(reply["found"], 1) << reply.dump();
  EXPECT_EQ(reply["violations"][0]["invariant"], "children.exact");
  pool_.region.block(root.page()).word.store_release(word);
}

TEST_F(LargePool, WhatIsBelowABadPageGoesInTurns) {
  const PageRef a = client_->store("a"), b = client_->store("b", a), c = client_->store("c", b);
  client_->store("d", c);
  (void)pool_.pool->admin("memory.poison", {{"page", b.page()}}, pool_.now_ms);
  EXPECT_FALSE(pool_.exists("b"));
  EXPECT_TRUE(pool_.exists("d")) << "not yet";
  // Bad while the others are looked for.
  const PageRef e = client_->store("e");
  client_->store("f", e);
  (void)pool_.pool->admin("memory.poison", {{"page", e.page()}}, pool_.now_ms);
  for (int i = 0; i < 4; ++i) pool_.settle();
  for (const char* gone : {"b", "c", "d", "e", "f"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
  EXPECT_EQ(pool_.word(a.page()).children(), 0u);
  expect_clean();
}

// A client that comes when every lane is in use, and one of them is being taken back.
TEST_F(LargePool, LaneThatIsTakenBackIsWaitedFor) {
  std::vector<std::unique_ptr<InProcessClient>> all;
  while (auto one = pool_.attach()) all.push_back(std::move(one));
  EXPECT_FALSE(pool_.pool->is_lane_coming());
  pool_.pool->client_died(all.front()->grant.lane);
  EXPECT_TRUE(pool_.pool->is_lane_coming());
  const ClientIdentity who = {1000, 0, 0, 7};
  const auto refused = pool_.pool->attach(who, 0, 0, pool_.now_ms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EAGAIN) << "more pages than one request looks at";
  for (int turns = 0; pool_.pool->is_lane_coming() && turns < 10'000; ++turns) pool_.pool->turn(++pool_.now_ms);
  EXPECT_TRUE(pool_.pool->attach(who, 0, 0, pool_.now_ms));
  const auto full = pool_.pool->attach(who, 0, 0, pool_.now_ms);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, EUSERS);
}

}  // namespace
}  // namespace maru::daemon
