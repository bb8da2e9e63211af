// The parts of maru-tierd that need no pool: keys and attributes, quotas, the budget of a day, the feed's queue, and a tier
// behind its deadlines and its breaker. Over real tiers.
#include "daemon/tierd/attributes.h"
#include "daemon/tierd/daily_budget.h"
#include "daemon/tierd/entry_key.h"
#include "daemon/tierd/feed_queue.h"
#include "daemon/tierd/temporary_blocks.h"
#include "daemon/tierd/tenant_quotas.h"
#include "daemon/tierd/tiers/catalogue.h"
#include "daemon/tierd/tiers/resp_census.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/tier_user.h"

#include <fstream>
#include <hiredis/hiredis.h>
#include <set>
#include <thread>

namespace maru::test {
namespace {

using namespace tierd;
using namespace std::chrono_literals;

maru_key bytes_key(const std::string& text, uint64_t tenant = 0) {
  return {text.data(), uint32_t(text.size()), MARU_KEY_BYTES, tenant};
}

TEST(TierdKeys, AreApartByTenantAndTellItsName) {
  TenantNames names;
  names.learn(7, "a tenant");
  const PoolId pool = {1, 2, 3};
  const std::string text = "key";
  const std::string plain = entry_key(bytes_key(text), pool, names), named = entry_key(bytes_key(text, 7), pool, names),
                    unnamed = entry_key(bytes_key(text, 8), pool, names);
  EXPECT_EQ((std::set<std::string>{plain, named, unnamed}.size()), 3u);
  EXPECT_EQ(split_entry_key(named)->data, "key");
  EXPECT_EQ(scope_text(split_entry_key(named)->scope), "a tenant");
  EXPECT_EQ(split_entry_key(unnamed)->scope.size(), 25u);
  EXPECT_FALSE(split_entry_key("\0\7abc"));
  EXPECT_FALSE(split_entry_key("x"));
}

TEST(TierdCatalogue, ARoundInWhichTooManyNamesChangeTakesNothingAway) {
  Catalogue catalogue([](const std::string& name) { return name; }, 1u << 20, 3);
  const Catalogue::About about = {"group", 100, 120};
  const auto entries = [&] {
    maru_tier_usage usage = {};
    catalogue.get_usage(usage);
    return usage.entries;
  };
  catalogue.put("kept", "kept", about);
  catalogue.begin_round();
  for (const char* const name : {"a", "b", "c", "d"}) catalogue.erase(name);
  EXPECT_TRUE(catalogue.listed("a", about)) << "it may have been deleted since";
  catalogue.end_round(true);
  EXPECT_EQ(entries(), 1u);
  catalogue.begin_round();
  EXPECT_TRUE(catalogue.listed("a", about));
  catalogue.end_round(true);
  EXPECT_EQ(entries(), 1u) << "the next round is whole: a, without the one that it did not meet";
}

TEST(TierdCatalogue, AKeyBesideItsNameNeedsRoom) {
  Catalogue catalogue([](const std::string&) { return std::string(); }, 1000);
  const std::string key(8000, 'k');
  catalogue.put("name", key, {"group", 100, 120});
  uint64_t cursor = 0;
  EXPECT_EQ(catalogue.next_nameless(&cursor), "name") << "it counts, and its key is not kept";
}

// -- the list of a Redis, by answers that a test writes -------------------------------------------------------------------

class Census : public testing::Test {
 protected:
  static constexpr uint64_t kNamesOfARound = 6000;

  // The server's answer, as it comes over the wire, to the questions of the step that is asked now.
  void answer(const std::string& bytes) {
    RespOutput output;
    const size_t questions = census_.ask(output);
    const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(), redisReaderFree);
    redisReaderFeed(reader.get(), bytes.data(), bytes.size());
    for (size_t i = 0; i < questions; ++i) {
      void* found = nullptr;
      ASSERT_EQ(redisReaderGetReply(reader.get(), &found), REDIS_OK);
      ASSERT_NE(found, nullptr) << "fewer answers than questions";
      census_.take(*static_cast<redisReply*>(found));
      freeReplyObject(found);
    }
  }
  static std::string bulk(const std::string& bytes) {
    return "$" + std::to_string(bytes.size()) + "\r\n" + bytes + "\r\n";
  }
  static std::string names(size_t n, const std::string& cursor, size_t name_bytes = 0) {
    std::string text = "*2\r\n" + bulk(cursor) + "*" + std::to_string(n) + "\r\n";
    for (size_t i = 0; i < n; ++i) {
      std::string name = resp_head_name("p:", std::to_string(i));
      if (name.size() < name_bytes) name.resize(name_bytes, 'x');
      text += bulk(name);
    }
    return text;
  }
  static std::string times(size_t n, const std::string& text) {
    std::string all;
    for (size_t i = 0; i < n; ++i) all += text;
    return all;
  }

  Catalogue catalogue_{[](const std::string& name) { return name; }, 1u << 20};
  RespCensus census_{"p:", kNamesOfARound, catalogue_, [](const std::string&) { return false; }};
};

TEST_F(Census, AnAnswerWithMoreNamesThanAServerGivesEndsTheRound) {
  census_.begin();
  answer(names(4096, "0"));
  ASSERT_TRUE(census_.is_under_way()) << census_.trouble();
  answer(times(4096, "$0\r\n\r\n"));  // none of them is a head
  EXPECT_FALSE(census_.is_under_way());
  EXPECT_EQ(census_.trouble(), "");
  census_.begin();
  answer(names(4097, "0"));
  EXPECT_FALSE(census_.is_under_way());
  EXPECT_NE(census_.trouble().find("no list of names"), std::string::npos) << census_.trouble();
}

TEST_F(Census, AnAnswerWithMoreBytesOfNamesThanItsBoundEndsTheRound) {
  census_.begin();
  answer(names(2000, "0", 4000));
  ASSERT_TRUE(census_.is_under_way()) << census_.trouble();
  answer(times(2000, "$0\r\n\r\n"));
  census_.begin();
  answer(names(2200, "0", 4000));
  EXPECT_FALSE(census_.is_under_way());
  EXPECT_NE(census_.trouble().find("bytes of names"), std::string::npos) << census_.trouble();
}

TEST_F(Census, ARoundLooksAtSoManyNamesAndNoMore) {
  census_.begin();
  answer(names(4000, "17"));
  answer(times(4000, "$0\r\n\r\n"));
  ASSERT_TRUE(census_.is_under_way()) << "the cursor says that there are more";
  answer(names(2500, "0"));
  EXPECT_FALSE(census_.is_under_way());
  EXPECT_NE(census_.trouble().find("raise list_memory"), std::string::npos) << census_.trouble();
}

TEST_F(Census, ACursorThatNeverEndsHasABound) {
  census_.begin();
  uint64_t answers = 0;
  for (; census_.is_under_way() && answers <= kNamesOfARound; ++answers) answer(names(0, "1"));
  EXPECT_EQ(answers, kNamesOfARound + 1);
  EXPECT_NE(census_.trouble(), "");
}

// -- blocks for temporary tickets alone -----------------------------------------------------------------------------------

TEST(TierdTemporaryBlocks, AreNotRememberedWithoutBound) {
  constexpr maru_block kParents = 4097;
  std::set<maru_block> parents;  // blocks that have children still
  std::vector<maru_block> freed;
  TemporaryBlocks blocks([&](maru_block block) {
    if (parents.contains(block)) return -ENOTEMPTY;
    freed.push_back(block);
    return 0;
  });
  for (maru_block block = 1; block < kParents; ++block) {
    parents.insert(block);
    blocks.add(block);
    blocks.let_go({block});
  }
  EXPECT_EQ(blocks.count(), kParents - 1) << "they go with their last child";
  parents.erase(7);
  blocks.add(10'000);
  blocks.let_go({10'000});
  EXPECT_EQ(freed, (std::vector<maru_block>{10'000, 7}));
  for (const maru_block block : {maru_block{7}, kParents}) {
    parents.insert(block);
    blocks.add(block);
    blocks.let_go({block});
  }
  EXPECT_EQ(blocks.count(), 0u) << "one too many: all of them are ordinary blocks now";
  parents.clear();
  freed.clear();
  blocks.add(10'001);
  blocks.let_go({10'001});
  EXPECT_EQ(freed, (std::vector<maru_block>{10'001}));
}

TEST(TierdAttributes, BelongToTheirKey) {
  Attributes attributes;
  attributes.payload_bytes = 5;
  attributes.parent = "parent";
  attributes.metadata = std::string(300, 'm');
  const std::string bytes = encode_attributes(attributes, "key");
  const auto read = decode_attributes(bytes, "key");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->parent, "parent");
  EXPECT_EQ(read->metadata, attributes.metadata);
  EXPECT_FALSE(decode_attributes(bytes, "other key"));
  for (size_t cut = 0; cut < bytes.size(); cut += 13) EXPECT_FALSE(decode_attributes(bytes.substr(0, cut), "key"));
  EXPECT_EQ(metadata_bytes_of(note_of(attributes)), 300u);
}

TEST(DailyBudget, IsSpreadOverTheDay) {
  const DailyBudget::Time begun = {};
  DailyBudget budget(24'000, begun);  // 1000 an hour
  EXPECT_TRUE(budget.take(600, begun));
  EXPECT_TRUE(budget.take(600, begun)) << "a write may take more than is left";
  EXPECT_FALSE(budget.take(1, begun));
  EXPECT_FALSE(budget.take(1, begun + 11min)) << "200 are owed";
  EXPECT_TRUE(budget.take(1, begun + 13min));
  EXPECT_TRUE(budget.take(1000, begun + 48h));
  EXPECT_FALSE(budget.take(1, begun + 48h)) << "an hour's share is all that is saved";
  DailyBudget none(0, begun);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(none.take(UINT64_MAX, begun));
}

TEST(FeedQueue, LeavesOutStoresAndNeverDeletions) {
  FeedQueue queue;
  const auto put = [&](FeedItem::Kind kind) {
    FeedItem item;
    item.kind = kind;
    return queue.put(std::move(item));
  };
  size_t taken = 0;
  std::atomic<bool> has_ended{false};
  std::thread taker([&] {
    while (!has_ended) taken += queue.take().size();
    taken += queue.take().size();
  });
  size_t stored = 0, deletions = 0;
  for (size_t i = 0; i < 3 * FeedQueue::kStoredMax; ++i) stored += put(FeedItem::Kind::kStored);
  for (size_t i = 0; i < FeedQueue::kStoredMax; ++i) deletions += put(FeedItem::Kind::kDeleted);
  has_ended = true;
  taker.join();
  EXPECT_EQ(deletions, FeedQueue::kStoredMax);
  EXPECT_EQ(taken, stored + deletions);
  for (size_t i = 0; i < FeedQueue::kStoredMax; ++i) ASSERT_TRUE(put(FeedItem::Kind::kStored));
  EXPECT_FALSE(put(FeedItem::Kind::kStored));
  EXPECT_TRUE(put(FeedItem::Kind::kDeleted));
}

// -- quotas --------------------------------------------------------------------------------------------------------------

std::string key_of_tenant(const std::string& name, int i) {
  TenantNames names;
  names.learn(1, name);
  return entry_key(bytes_key("key " + std::to_string(i), 1), {}, names);
}

class Quotas : public testing::Test {
 protected:
  std::unique_ptr<TierSlot> open_slot() {
    return std::make_unique<TierSlot>(
        TierSlotSettings{},
        open_or_throw("file", {{"path", directory_.path()}, {"capacity", "9MiB"}, {"region_bytes", "1MiB"}}),
        counters_);
  }
  std::unique_ptr<TenantQuotas> open_quotas(uint64_t default_bytes = 0) {
    auto quotas = TenantQuotas::open(directory_.file("quotas"), default_bytes);
    EXPECT_TRUE(quotas) << (quotas ? "" : quotas.error().text());
    return std::move(*quotas);
  }
  static bool nothing_is_busy(const std::string&) { return false; }

  TemporaryDirectory directory_;
  Counters counters_;
};

TEST_F(Quotas, OutliveTheProcess) {
  EXPECT_TRUE(open_quotas()->set("a", 100));
  auto quotas = open_quotas(7);
  EXPECT_EQ(quotas->limit_of("na"), 100u);
  EXPECT_EQ(quotas->limit_of("nb"), 7u);
  EXPECT_EQ(quotas->limit_of("p of nobody's name"), 7u);
  EXPECT_EQ(quotas->limit_of(""), 0u) << "blocks of no tenant have no limit";
  EXPECT_TRUE(quotas->set(std::string("0x\0\xff", 4), 9));
  EXPECT_TRUE(quotas->remove("a"));
  quotas = open_quotas(7);
  EXPECT_EQ(quotas->limit_of("na"), 7u);
  EXPECT_EQ(quotas->limit_of(std::string("n0x\0\xff", 5)), 9u);
  EXPECT_EQ(quotas->remove("a").error().code, ENOENT);
  EXPECT_EQ(TenantQuotas::open("", 0).value()->set("a", 1).error().code, EROFS);
}

TEST_F(Quotas, RefuseAFileOfSomethingElse) {
  std::ofstream(directory_.file("quotas")) << "{\"kind\": \"a recipe\", \"tenants\": {}}";
  EXPECT_EQ(TenantQuotas::open(directory_.file("quotas"), 0).error().code, EINVAL);
}

TEST_F(Quotas, UsageIsExactAfterARestartAndTheOldestGoFirst) {
  auto slot = open_slot();
  const auto used = [&](const char* scope) { return slot->tier().group(scope); };
  TierEntry entry;
  entry.payload.assign(10'000, 'p');
  entry.attributes.assign(100, 'a');
  {
    TierUser user(slot->tier());
    for (int i = 0; i < 20; ++i) ASSERT_EQ(user.store(key_of_tenant("a", i), entry), 0);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(user.store(key_of_tenant("b", i), entry), 0);
    ASSERT_EQ(user.store(key_of_tenant("a", 3), entry), 0) << "the same once more";
    entry.attributes.assign(200, 'a');
    ASSERT_EQ(user.store(key_of_tenant("a", 0), entry), 0) << "another one: now it is the newest";
    ASSERT_EQ(user.remove(key_of_tenant("b", 0)), 0);
  }
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(used("na").entries, 20u);
    EXPECT_EQ(used("na").entry_bytes, 20 * 10'100u + 100);
    EXPECT_EQ(used("nb").entries, 2u);
    EXPECT_EQ(slot->tier().groups().size(), 2u);
    EXPECT_EQ(used("nc").entries, 0u);
    slot.reset();
    slot = open_slot();
  }
  auto quotas = open_quotas();
  EXPECT_TRUE(quotas->set("a", 210'000));
  EXPECT_TRUE(quotas->room_for(*slot, "nb", 1 << 30, nothing_is_busy).is_there);
  EXPECT_FALSE(quotas->room_for(*slot, "na", 210'001, nothing_is_busy).is_there) << "larger than all that it may have";
  auto room = quotas->room_for(*slot, "na", 7'000, nothing_is_busy);
  EXPECT_TRUE(room.is_there);
  EXPECT_TRUE(room.too_old.empty());
  room = quotas->room_for(*slot, "na", 10'000, nothing_is_busy);
  EXPECT_TRUE(room.is_there);
  EXPECT_EQ(room.too_old, (std::vector{key_of_tenant("a", 1)})) << "down to 15 sixteenths";
  const auto first_is_busy = [](const std::string& key) { return key == key_of_tenant("a", 1); };
  EXPECT_TRUE(quotas->room_for(*slot, "na", 10'000, first_is_busy).too_old.empty()) << "the oldest goes already";
  EXPECT_EQ(quotas->room_for(*slot, "na", 25'000, first_is_busy).too_old, (std::vector{key_of_tenant("a", 2)}));
  EXPECT_TRUE(quotas->set("a", 150'000));
  EXPECT_EQ(quotas->room_for(*slot, "na", 0, nothing_is_busy).too_old.size(), 7u) << "after it was lowered";
}

// -- a tier behind its deadlines and its breaker --------------------------------------------------------------------------

struct Asked {
  int answers = 0, releases = 0, result = 0;
};

class Slot : public testing::Test {
 protected:
  void open(const TierOptions& faults, TierSlotSettings settings) {
    TierOptions options = {{"inner", "file"},
                           {"inner_path", directory_.path()},
                           {"inner_capacity", "9MiB"},
                           {"inner_region_bytes", "1MiB"}};
    options.insert(options.end(), faults.begin(), faults.end());
    slot_ = std::make_unique<TierSlot>(settings, open_or_throw("fault", options), counters_);
  }
  // `asked` must outlive the slot, or the operation.
  void look(Asked& asked) {
    TierOperation operation;
    operation.request.kind = MARU_TIER_LOOKUP;
    operation.request.key = "key";
    operation.request.key_bytes = 3;
    operation.answered = [&asked](const maru_tier_completion& done) {
      ++asked.answers;
      asked.result = done.result;
    };
    operation.released = [&asked] { ++asked.releases; };
    slot_->submit(std::move(operation));
  }
  bool comes_true(const std::function<bool()>& is_true) {
    return wait_until([&] {
      slot_->take_completions();
      slot_->expire(Clock::now());
      return is_true();
    });
  }

  TemporaryDirectory directory_;
  Counters counters_;
  std::vector<Asked> asked_ = std::vector<Asked>(64);  // outlives the slot
  std::unique_ptr<TierSlot> slot_;
};

TEST_F(Slot, AnswersAtTheDeadlineOnceAndReleasesWhenTheTierIsDone) {
  open({{"slow", "1"}, {"slow_ms", "300"}}, {.name = "t", .load_timeout_ms = 20});
  look(asked_[0]);
  EXPECT_EQ(slot_->unreleased(), 1u);
  slot_->expire(Clock::now() + std::chrono::minutes(1));  // before its answer, however busy the machine
  ASSERT_EQ(asked_[0].answers, 1);
  EXPECT_EQ(asked_[0].result, -ETIMEDOUT);
  ASSERT_TRUE(comes_true([&] { return asked_[0].releases == 1; }));
  EXPECT_EQ(asked_[0].answers, 1) << "a late answer changes nothing";
  EXPECT_FALSE(slot_->has_open());
  EXPECT_EQ(slot_->total(MARU_TIER_LOOKUP).failed, 1u);
}

TEST_F(Slot, AHangingRequestIsReleasedByTheEndAlone) {
  open({{"hang", "1"}}, {.name = "t", .load_timeout_ms = 10});
  look(asked_[0]);
  ASSERT_TRUE(comes_true([&] { return asked_[0].answers == 1; }));
  EXPECT_EQ(asked_[0].releases, 0);
  EXPECT_EQ(slot_->unreleased(), 1u);
  slot_.reset();
  EXPECT_EQ(asked_[0].releases, 0) << "callbacks are destroyed, not called";
}

TEST_F(Slot, TheBreakerOpensAndHealsByItself) {
  open({{"eio", "2"}, {"seed", "3"}}, {.name = "t"});
  int opened = 0, closed = 0;
  slot_->circuit_changed = [&](bool is_open) { ++(is_open ? opened : closed); };
  // One in two fails: five in a row come, and so does one that succeeds after the breaker has opened.
  ASSERT_TRUE(comes_true([&] {
    Asked& asked = asked_[0];
    const int before = asked.answers;
    look(asked);
    return comes_true([&] { return asked.answers > before; }) && opened > 0;
  }));
  EXPECT_TRUE(slot_->is_open_circuit());
  look(asked_[1]);
  EXPECT_EQ(asked_[1].result, -EHOSTDOWN) << "nothing reaches the tier";
  EXPECT_EQ(asked_[1].releases, 1);
  ASSERT_TRUE(comes_true([&] {
    Asked& asked = asked_[2];
    const int before = asked.answers;
    look(asked);
    return comes_true([&] { return asked.answers > before; }) && closed > 0;
  }));
  EXPECT_STREQ(slot_->circuit_text(), "closed");
}

}  // namespace
}  // namespace maru::test
