// The controllers of maru-tierd in this process, over a real pool and tiers whose answers the test orders (scripted_tier.h).
#include "daemon/tierd/prefetch_controller.h"
#include "daemon/tierd/store_controller.h"
#include "maru/prefetch.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/tiers/scripted_tier.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <thread>

namespace maru::tierd {
namespace {

using test::ScriptedTier;
using Texts = std::vector<std::string>;
using Reply = PrefetchController::Reply;

constexpr uint64_t kBlockBytes = 20'000, kPageBytes = 4096;
constexpr uint64_t kBlockPages = 5;

class TierControllers : public testing::Test {
 protected:
  // A pool and tiers "a", "b", ... Settings have to be changed before.
  void start(size_t tiers = 1) {
    maru_geometry geometry = {};
    geometry.size = sizeof(geometry);
    ASSERT_EQ(maru_get_geometry(client_, &geometry), 0);
    std::memcpy(pool_.data(), geometry.uuid, pool_.size());
    auto quotas = TenantQuotas::open("", 0);
    ASSERT_TRUE(quotas);
    quotas_ = std::move(*quotas);
    const char* const plugin = std::getenv("MARU_TEST_SCRIPTED_TIER");
    ASSERT_NE(plugin, nullptr);
    for (size_t i = 0; i < tiers; ++i) {
      slot_settings_.name = std::string(1, char('a' + i));
      if (i > 0) slot_settings_.load_timeout_ms = 60'000;  // a test may let the first one be late
      auto tier = Tier::open(plugin, {{"name", slot_settings_.name}});
      ASSERT_TRUE(tier) << tier.error().text();
      slots_.push_back(std::make_unique<TierSlot>(slot_settings_, std::move(*tier), counters_));
    }
    void* const library = ::dlopen(plugin, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library, nullptr);
    auto* const find = reinterpret_cast<test::FindScriptedTier*>(::dlsym(library, "scripted_tier"));
    for (const auto& slot : slots_) tiers_.push_back(find(slot->settings().name.c_str()));
    ::dlclose(library);
    stores_ = std::make_unique<StoreController>(store_settings_, client_, pool_, names_, *quotas_, slots_, counters_);
    loads_ = std::make_unique<PrefetchController>(load_settings_, client_, pool_, names_, slots_, *stores_, counters_);
    stores_->deleted = [this](const std::string& key) { loads_->void_load(key); };
  }
  void TearDown() override {
    tickets_.clear();
    slots_.clear();
    loads_.reset();
    stores_.reset();
  }

  // As a turn of maru-tierd's loop.
  void turn() {
    for (const auto& slot : slots_) slot->take_completions();
    for (const auto& slot : slots_) slot->expire(Clock::now());
    loads_->expire(Clock::now());
    loads_->pump();
    stores_->pump();
  }
  void answer(const std::string& request, int result = 0, size_t tier = 0) {
    ASSERT_TRUE(tiers_[tier]->answer(request, result)) << request;
    turn();
  }
  Texts waiting(size_t tier = 0) const { return tiers_[tier]->waiting(); }

  // Into the pool, and as the feed tells it.
  FeedItem stored(const std::string& key, const std::string& parent = {}) {
    FeedItem item;
    item.key = key;
    item.key_kind = MARU_KEY_BYTES;
    item.parent = parent;
    item.parent_kind = MARU_KEY_BYTES;
    item.length = kBlockBytes;
    EXPECT_EQ(user_.store(key, std::string(kBlockBytes, key[0]), parent, 0, &item.block), 0) << key;
    return item;
  }
  static FeedItem deleted(FeedItem item) {
    item.kind = FeedItem::Kind::kDeleted;
    return item;
  }
  void tell(FeedItem item) {
    std::deque<FeedItem> items;
    items.push_back(std::move(item));
    stores_->take(std::move(items));
  }
  // Into the tier, and out of the pool.
  void put_below(const std::string& key, const std::string& parent = {}, size_t tier = 0) {
    tell(stored(key, parent));
    for (size_t i = 0; i < tiers_.size(); ++i) answer("store " + key, i == tier ? 0 : -EFBIG, i);
    stores_->delete_stale();
    for (size_t i = 0; i < tiers_.size(); ++i)
      if (i != tier) answer("delete " + key, 0, i);
  }
  void remove(const Texts& keys) {
    for (const std::string& key : keys) ASSERT_EQ(user_.remove(key), 0) << key;
  }

  struct Asked {
    std::shared_ptr<PrefetchController::Ticket> ticket;
    std::optional<Reply> reply;
  };
  Asked& ask(const Texts& keys, uint32_t policy = MARU_PREFETCH_PREFIX, bool is_temporary = false) {
    PrefetchController::Wanted wanted;
    for (const std::string& key : keys) wanted.keys.push_back({key, MARU_KEY_BYTES, 0});
    wanted.policy = policy;
    wanted.deadline_ms = 60'000;
    wanted.is_temporary = is_temporary;
    Asked& asked = *tickets_.emplace_back(std::make_unique<Asked>());
    asked.ticket = loads_->begin(std::move(wanted), [&asked](const Reply& reply) { asked.reply = reply; });
    return asked;
  }

  Asked& ask_temporary(const Texts& keys) { return ask(keys, MARU_PREFETCH_PREFIX, true); }
  bool has_block(const std::string& key) { return user_.exists(key) == 1; }
  // As a client's read and its end.
  void load(const std::string& key) {
    answer("lookup " + key);
    answer("load " + key);
  }

  test::MarudProcess marud_;
  test::TestClient user_{marud_.socket_path()}, client_{marud_.socket_path()};
  PoolId pool_ = {};
  TenantNames names_;
  Counters counters_;
  TierSlotSettings slot_settings_ = {.name = {}, .load_timeout_ms = 60'000, .store_timeout_ms = 60'000};
  StoreSettings store_settings_ = {.pinned_bytes_max = 1 << 20};
  PrefetchSettings load_settings_ = {.held_bytes_max = 1 << 20};
  std::unique_ptr<TenantQuotas> quotas_;
  StoreController::Slots slots_;
  std::vector<ScriptedTier*> tiers_;
  std::unique_ptr<StoreController> stores_;
  std::unique_ptr<PrefetchController> loads_;
  std::vector<std::unique_ptr<Asked>> tickets_;
};

TEST_F(TierControllers, AnAnswerForALaterKeyPassesNoEarlierKey) {
  start();
  put_below("first");
  remove({"first"});
  Asked& asked = ask({"first", "nowhere"});
  answer("lookup nowhere");
  answer("lookup first");
  answer("load first");
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->usable, 1u);
}

// The second ticket ends behind a key that is nowhere, but waits for its first one: no ticket begins its third key, which is
// the parent of the other ticket's block.
TEST_F(TierControllers, ABlockWaitsForNoParentThatNoTicketBegins) {
  start();
  put_below("slow");
  put_below("parent");
  put_below("child", "parent");
  remove({"slow", "child", "parent"});
  Asked& second = ask({"slow", "nowhere", "parent"});
  answer("lookup parent");
  answer("lookup slow");
  answer("lookup nowhere");
  Asked& first = ask({"child"});
  answer("lookup child");
  answer("load child");
  ASSERT_TRUE(first.reply);
  EXPECT_EQ(first.reply->failed, 1u);
  EXPECT_FALSE(second.reply);
  answer("load slow");
  ASSERT_TRUE(second.reply);
  EXPECT_EQ(second.reply->usable, 1u);
}

TEST_F(TierControllers, LookupsThatSucceedDoNotHideLoadsThatFail) {
  start();
  for (uint32_t i = 0; i <= TierSlot::kBreakerFailures; ++i) put_below("key " + std::to_string(i));
  for (uint32_t i = 0; i < TierSlot::kBreakerFailures; ++i) {
    const std::string key = "key " + std::to_string(i);
    remove({key});
    EXPECT_FALSE(slots_[0]->is_open_circuit());
    ask({key});
    answer("lookup " + key);
    answer("load " + key, -EIO);
  }
  EXPECT_TRUE(slots_[0]->is_open_circuit());
}

TEST_F(TierControllers, ATierThatHangsWithAllRoomHoldsUpNoLaterTicket) {
  slot_settings_.load_timeout_ms = 10;
  load_settings_.in_flight_bytes_max = kBlockBytes;
  start(2);
  put_below("hanging", {}, 0);
  put_below("healthy", {}, 1);
  put_below("next", {}, 1);
  remove({"hanging", "healthy", "next"});
  Asked& first = ask({"hanging"});
  answer("lookup hanging");
  ASSERT_TRUE(test::wait_until([&] {
    turn();
    return first.reply.has_value();
  }));
  EXPECT_EQ(first.reply->failed, 1u);
  Asked& second = ask({"healthy"});
  answer("lookup healthy", -ENOENT);
  answer("lookup healthy", 0, 1);
  ASSERT_TRUE(second.reply) << "and not at its deadline";
  // The tier gives the memory back: one load has room, and the next one waits for it.
  answer("load hanging");
  Asked& third = ask({"healthy", "next"});
  for (const char* const key : {"healthy", "next"}) {
    answer(std::string("lookup ") + key, -ENOENT);
    answer(std::string("lookup ") + key, 0, 1);
  }
  answer("load healthy", 0, 1);
  answer("load next", 0, 1);
  ASSERT_TRUE(third.reply);
  EXPECT_EQ(third.reply->usable, 2u);
}

TEST_F(TierControllers, AnEntryWhoseDeletionFailedIsAbsentUntilItIsDeleted) {
  start();
  const FeedItem first = stored("key");
  tell(first);
  answer("store key");
  remove({"key"});
  tell(deleted(first));
  answer("delete key", -EIO);
  EXPECT_TRUE(tiers_[0]->has("key"));
  Asked& asked = ask({"key"});
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->absent, 1u);
  stores_->delete_stale();
  EXPECT_EQ(waiting(), (Texts{"delete key"}));
  answer("delete key", -EIO);
  stores_->delete_stale();
  answer("delete key");
  EXPECT_FALSE(tiers_[0]->has("key"));
  stores_->delete_stale();
  EXPECT_EQ(waiting(), Texts{});
  // A later store of the key counts.
  put_below("key");
  remove({"key"});
  Asked& later = ask({"key"});
  answer("lookup key");
  answer("load key");
  EXPECT_EQ(later.reply->usable, 1u);
}

TEST_F(TierControllers, AnOldEntryOutlivesNoFailedReplacement) {
  store_settings_.attempts_max = 1;
  start();
  put_below("key");
  remove({"key"});  // and no event, as of an eviction
  tell(stored("key"));
  answer("store key", -EIO);
  remove({"key"});
  Asked& asked = ask({"key"});
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->absent, 1u);
}

TEST_F(TierControllers, ATierThatRefusesDeletionsServesTheRest) {
  start();
  const FeedItem item = stored("key");
  tell(item);
  answer("store key");
  remove({"key"});
  tell(deleted(item));
  for (uint32_t i = 0; i < 2 * TierSlot::kBreakerFailures; ++i) {
    answer("delete key", -EACCES);
    stores_->delete_stale();
  }
  EXPECT_FALSE(slots_[0]->is_open_circuit());
  put_below("other");
  EXPECT_TRUE(tiers_[0]->has("other"));
}

TEST_F(TierControllers, StoresBehindAnOpenBreakerLeaveEntriesAsTheyAre) {
  start();
  put_below("key");
  remove({"key"});
  const FeedItem item = stored("key");
  for (uint32_t i = 0; i < TierSlot::kBreakerFailures; ++i) {
    ask({"nowhere"});
    answer("lookup nowhere", -EIO);
  }
  ASSERT_TRUE(slots_[0]->is_open_circuit());
  tell(item);
  stores_->delete_stale();
  EXPECT_EQ(waiting(), Texts{});
  EXPECT_FALSE(stores_->is_stale(*slots_[0], entry_key(test::key_of("key"), pool_, names_)));
}

TEST_F(TierControllers, NoLookupPassesADeletionUnderWay) {
  start();
  const FeedItem item = stored("key");
  tell(item);
  answer("store key");
  remove({"key"});
  tell(deleted(item));
  Asked& asked = ask({"key"});
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->absent, 1u);
  EXPECT_EQ(waiting(), (Texts{"delete key"}));
}

// As the feed tells it when a key is deleted and stored again at once.
TEST_F(TierControllers, TheEndOfAnOldLifeForgetsNoNewOne) {
  start();
  const FeedItem first = stored("key");
  tell(first);
  answer("store key");
  remove({"key"});
  tell(stored("key"));
  answer("store key");
  tell(deleted(first));
  EXPECT_EQ(waiting(), Texts{});
  EXPECT_TRUE(tiers_[0]->has("key"));
}

TEST_F(TierControllers, DeletionsPassStoresThatWaitForRoom) {
  store_settings_.pinned_bytes_max = kBlockPages * kPageBytes;
  start();
  const FeedItem gone = stored("gone");
  tell(gone);
  answer("store gone");
  remove({"gone"});
  tell(stored("first"));
  tell(stored("second"));
  EXPECT_EQ(waiting(), (Texts{"store first"})) << "no room for the second pin";
  tell(deleted(gone));
  EXPECT_EQ(waiting(), (Texts{"store first", "delete gone"}));
}

TEST_F(TierControllers, TheQueueOfStoresIsBounded) {
  store_settings_.pinned_bytes_max = kBlockPages * kPageBytes;
  start();
  tell(stored("first"));
  const FeedItem second = stored("second");
  for (size_t i = 0; i < FeedQueue::kStoredMax + 10; ++i) tell(second);
  EXPECT_EQ(stores_->queued(), FeedQueue::kStoredMax);
}

TEST_F(TierControllers, ARetryGoesToTheTiersThatLackTheBlock) {
  start(2);
  tell(stored("key"));
  answer("store key", 0, 1);
  answer("store key", -ENOSPC, 0);
  EXPECT_EQ(waiting(0), (Texts{"store key"}));
  EXPECT_EQ(waiting(1), Texts{});
  answer("store key", 0, 0);
  EXPECT_EQ(counters_.counter("maru_tier_stored_blocks_total", "").value(), 1u);
}

TEST_F(TierControllers, MarudHearsOfBlocksThatATierHas) {
  start(2);
  const Sample& reported = counters_.counter("maru_tier_reported_copies_total", "");
  Clock::time_point now = Clock::now();
  // Each waits for a pause, so that marud has met it.
  const auto report = [&] {
    for (int i = 0; i < 3; ++i) stores_->report_copies(now += std::chrono::seconds(1));
    return reported.value();
  };
  const auto has_met = [&](const FeedItem& item) {
    return test::wait_until([&] { return maru_report_copies(user_, &item.block, 1) == 1; });
  };
  const FeedItem both = stored("both"), one = stored("one"), none = stored("none");
  ASSERT_TRUE(has_met(both) && has_met(one) && has_met(none));
  tell(both);
  answer("store both", 0, 0);
  EXPECT_EQ(report(), 0u) << "its memory is still with a tier";
  answer("store both", 0, 1);
  stores_->report_copies(now += std::chrono::seconds(1));
  EXPECT_EQ(reported.value(), 0u) << "it waits for a pause";
  stores_->report_copies(now);
  EXPECT_EQ(reported.value(), 0u);
  stores_->report_copies(now += std::chrono::seconds(1));
  EXPECT_EQ(reported.value(), 1u);
  tell(one);
  answer("store one", -EFBIG, 0);
  answer("store one", 0, 1);
  tell(none);
  answer("store none", -EFBIG, 0);
  answer("store none", -EFBIG, 1);
  EXPECT_EQ(report(), 2u);
  const FeedItem gone = stored("gone");
  ASSERT_TRUE(has_met(gone));
  tell(gone);
  answer("store gone", 0, 0);
  answer("store gone", 0, 1);
  remove({"gone"});
  EXPECT_EQ(report(), 2u) << "marud notes blocks that are there";
  EXPECT_FALSE(stores_->has_copies());
}

TEST_F(TierControllers, ABlockThatASnapshotTellsAgainIsNoSecondUse) {
  store_settings_.policy = StorePolicy::kSecondUse;
  start();
  const FeedItem item = stored("key");
  tell(item);
  tell(item);
  EXPECT_EQ(waiting(), Texts{});
  remove({"key"});
  tell(stored("key"));
  EXPECT_EQ(waiting(), (Texts{"store key"}));
}

TEST_F(TierControllers, ATierThatDoesNotAnswerIsNotTakenForOneThatHasNothing) {
  start(2);
  Asked& asked = ask({"key"});
  answer("lookup key", -EIO, 0);
  answer("lookup key", -ENOENT, 1);
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->failed, 1u);
  EXPECT_EQ(asked.reply->absent, 0u);
  Asked& later = ask({"key"});
  answer("lookup key", -ENOENT, 0);
  answer("lookup key", -ENOENT, 1);
  ASSERT_TRUE(later.reply);
  EXPECT_EQ(later.reply->absent, 1u);
  EXPECT_EQ(later.reply->failed, 0u);
}

TEST_F(TierControllers, ABadCopyIsForgottenInItsOwnTierOnly) {
  start(2);
  tell(stored("key"));
  for (const size_t tier : {0, 1}) answer("store key", 0, tier);
  remove({"key"});
  tiers_[0]->spoil("key");
  Asked& asked = ask({"key"});
  answer("lookup key");
  answer("load key");
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->failed, 1u);
  EXPECT_EQ(waiting(0), (Texts{"delete key"}));
  EXPECT_EQ(waiting(1), Texts{});
  answer("delete key");
  // The next asker gets the good copy.
  Asked& later = ask({"key"});
  answer("lookup key");
  answer("lookup key", 0, 1);
  answer("load key", 0, 1);
  ASSERT_TRUE(later.reply);
  EXPECT_EQ(later.reply->usable, 1u);
}

// An operation that the tier has not accepted yet is under way like any other.
TEST_F(TierControllers, EachOperationTakesOnePlace) {
  slot_settings_.in_flight_max = 4;
  start();
  tiers_[0]->accept(false);
  ask({"1", "2", "3"});
  EXPECT_EQ(slots_[0]->queued(), 3u);
  EXPECT_TRUE(slots_[0]->has_room());
  ask({"4"});
  EXPECT_FALSE(slots_[0]->has_room());
  tiers_[0]->accept(true);
  turn();
  for (const char* const key : {"1", "2", "3", "4"}) answer(std::string("lookup ") + key);
  EXPECT_TRUE(slots_[0]->has_room());
}

// -- blocks for temporary tickets alone ----------------------------------------------------------------------------------

TEST_F(TierControllers, ALoadThatItsTicketNeedsNoMoreIsNotPublished) {
  start();
  for (const char* const key : {"slow", "bad", "behind"}) put_below(key);
  remove({"slow", "bad", "behind"});
  Asked& asked = ask_temporary({"slow", "bad", "behind"});
  for (const char* const key : {"slow", "bad", "behind"}) answer(std::string("lookup ") + key);
  answer("load bad", -EIO);
  answer("load behind");
  EXPECT_FALSE(asked.reply) << "it waits for its first key";
  EXPECT_FALSE(has_block("behind"));
  answer("load slow");
  ASSERT_TRUE(asked.reply);
  EXPECT_EQ(asked.reply->usable, 1u);
  EXPECT_TRUE(has_block("slow"));
  asked.ticket.reset();
  EXPECT_FALSE(has_block("slow"));
}

// The first ticket needs the parent no more, but the second one's block does. The parent leaves the pool with that block.
TEST_F(TierControllers, ALoadIsPublishedForItsChildrensTickets) {
  start();
  for (const char* const key : {"slow", "bad", "parent"}) put_below(key);
  put_below("child", "parent");
  remove({"slow", "bad", "child", "parent"});
  Asked& first = ask_temporary({"slow", "bad", "parent"});
  for (const char* const key : {"slow", "bad", "parent"}) answer(std::string("lookup ") + key);
  Asked& second = ask_temporary({"child"});
  load("child");
  answer("load bad", -EIO);
  answer("load parent");
  ASSERT_TRUE(second.reply);
  EXPECT_EQ(second.reply->usable, 1u);
  EXPECT_TRUE(has_block("parent") && has_block("child"));
  answer("load slow");
  first.ticket.reset();
  EXPECT_TRUE(has_block("parent") && has_block("child"));
  second.ticket.reset();
  EXPECT_FALSE(has_block("parent") || has_block("child"));
}

// The ticket that began the parent's load goes, while another ticket's block waits for that parent.
TEST_F(TierControllers, AParentUnderWayOutlivesItsTicketForItsChild) {
  start();
  put_below("parent");
  put_below("child", "parent");
  remove({"child", "parent"});
  Asked& both = ask({"parent", "child"});
  answer("lookup parent");
  answer("lookup child");
  Asked& other = ask({"child"}, MARU_PREFETCH_SPARSE);
  answer("load child");
  loads_->cancel(both.ticket);
  answer("load parent");
  ASSERT_TRUE(other.reply);
  EXPECT_EQ(other.reply->usable, 1u);
  EXPECT_TRUE(has_block("parent") && has_block("child"));
}

TEST_F(TierControllers, ATemporaryBlockGoesWithTheLastTicketThatHoldsIt) {
  start();
  put_below("key");
  remove({"key"});
  Asked& loader = ask_temporary({"key"});
  load("key");
  Asked& later = ask_temporary({"key"});
  ASSERT_TRUE(later.reply);
  EXPECT_EQ(later.reply->in_pool, 1u);
  loader.ticket.reset();
  EXPECT_TRUE(has_block("key"));
  later.ticket.reset();
  EXPECT_FALSE(has_block("key"));
  // A ticket without the flag makes it an ordinary block.
  Asked& again = ask_temporary({"key"});
  load("key");
  ask({"key"}).ticket.reset();
  again.ticket.reset();
  EXPECT_TRUE(has_block("key"));
}

TEST_F(TierControllers, ATemporaryParentGoesAfterItsLastChild) {
  start();
  put_below("root");
  put_below("middle", "root");
  put_below("end", "middle");
  remove({"end", "middle", "root"});
  Asked& chain = ask_temporary({"root", "middle", "end"});
  for (const char* const key : {"root", "middle", "end"}) load(key);
  Asked& last = ask_temporary({"end"});
  chain.ticket.reset();
  EXPECT_TRUE(has_block("root") && has_block("middle") && has_block("end"));
  last.ticket.reset();
  EXPECT_FALSE(has_block("root") || has_block("middle") || has_block("end"));
}

}  // namespace
}  // namespace maru::tierd
