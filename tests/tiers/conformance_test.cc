// What maru/tier.h promises, of every tier that is built in and of the example: one suite over all of them.
//
// MARU_TEST_S3 names a bucket of another server, as the options of a tier: "endpoint=http://... bucket=..." with blanks between.
#include "tests/support/temporary_directory.h"
#include "tests/tiers/redis_process.h"
#include "tests/tiers/s3_process.h"
#include "tests/tiers/tier_user.h"

#include <fcntl.h>
#include <sstream>

namespace maru::test {
namespace {

struct Subject {
  const char* name;
  std::string kind;
  tierd::TierOptions options;  // "DIR" in a value is a directory of the test's own
  bool has_redis = false;      // REDIS in a value is the socket of a server of the test's own
  bool has_s3 = false;         // the options of a bucket of the test's own are added
  friend void PrintTo(const Subject& subject, std::ostream* to) { *to << subject.name; }
};

const Subject kSubjects[] = {
    {"null", "null", {}},
    {"file", "file", {{"path", "DIR"}, {"capacity", "9MiB"}, {"region_bytes", "1MiB"}}},
    {"file_buffered", "file", {{"path", "DIR"}, {"capacity", "9MiB"}, {"region_bytes", "1MiB"}, {"direct", "no"}}},
    {"file_without_ring",
     "file",
     {{"path", "DIR"}, {"capacity", "9MiB"}, {"region_bytes", "1MiB"}, {"io_uring", "false"}}},
    {"fault",
     "fault",
     {{"inner", "file"}, {"inner_path", "DIR"}, {"inner_capacity", "9MiB"}, {"inner_region_bytes", "1MiB"}}},
    {"slow",
     "fault",
     {{"inner", "file"},
      {"inner_path", "DIR"},
      {"inner_capacity", "9MiB"},
      {"inner_region_bytes", "1MiB"},
      {"slow", "3"},
      {"slow_ms", "5"}}},
    {"resp", "resp", {{"socket", "REDIS"}}, true},
    {"resp_in_chunks",
     "resp",
     {{"socket", "REDIS"}, {"chunk_bytes", "4096"}, {"prefix", "other:"}, {"database", "3"}},
     true},
    {"s3", "s3", {{"part_bytes", "16384"}}, false, true},
    {"s3_conditional",
     "s3",
     {{"if_none_match", "true"}, {"prefix", "a-b/c_d.e~f/"}, {"connections", "3"}},
     false,
     true},
    {"s3_given", "s3", {}},      // $MARU_TEST_S3
    {"example", "EXAMPLE", {}},  // $MARU_TEST_EXAMPLE_TIER
};

class Conformance : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (GetParam().has_redis) {
      if (!RedisProcess::is_installed()) GTEST_SKIP() << "there is no redis-server";
      redis_ = std::make_unique<RedisProcess>(directory_.path());
    }
    if (GetParam().has_s3)
      s3_ = std::make_unique<S3Process>(directory_.path(), std::vector<std::string>{"--page", "7"});
    if (GetParam().name == std::string("s3_given")) {
      const char* const given = std::getenv("MARU_TEST_S3");
      if (!given) GTEST_SKIP() << "MARU_TEST_S3 names no bucket";
      std::istringstream words(given);
      for (std::string word; words >> word;)
        given_.emplace_back(word.substr(0, word.find('=')), word.substr(word.find('=') + 1));
      given_.emplace_back("prefix", "test-" + std::to_string(random_.next()) + "/");  // each test has an empty one
    }
    open();
  }

  void open() {
    tier_.reset();
    tierd::TierOptions options = given_.empty() ? GetParam().options : given_;
    if (s3_) options = s3_->options(options);
    for (auto& [name, value] : options)
      if (value == "DIR" || value == "REDIS") value = value == "DIR" ? directory_.path() : redis_->socket_path();
    const char* const example = std::getenv("MARU_TEST_EXAMPLE_TIER");
    tier_ = open_or_throw(GetParam().kind == "EXAMPLE" ? (example ? example : "EXAMPLE") : GetParam().kind, options);
  }
  bool can(uint32_t capability) { return (tier_->properties().capabilities & capability) != 0; }

  TemporaryDirectory directory_;
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<S3Process> s3_;
  tierd::TierOptions given_;
  std::unique_ptr<tierd::Tier> tier_;
  Random random_{fresh_seed_printed()};

 private:
  static uint64_t fresh_seed_printed() {
    const uint64_t seed = fresh_seed();
    std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
  }
};

TEST_P(Conformance, AbsentKeysAreAbsent) {
  TierUser user(*tier_);
  EXPECT_EQ(user.lookup("nothing").result, -ENOENT);
  EXPECT_EQ(user.remove("nothing"), -ENOENT);
  const uint64_t ticket = user.begin(MARU_TIER_LOAD, "nothing", {"", "room", 0});
  EXPECT_EQ(user.finish(ticket).result, -ENOENT);
}

TEST_P(Conformance, WhatIsStoredIsLoaded) {
  TierUser user(*tier_);
  for (const uint64_t bytes : {1u, 4095u, 4096u, 4097u, 65536u, 200'001u}) {
    for (const bool is_aligned : {true, false}) {
      TierEntry entry = random_entry(random_, 0);
      entry.payload.resize(bytes);
      for (char& c : entry.payload) c = char(random_.next());
      const std::string key = "key " + std::to_string(bytes) + (is_aligned ? " aligned" : "");
      EXPECT_EQ(user.store(key, entry, is_aligned), 0);
      if (!can(MARU_TIER_KEEPS)) {
        EXPECT_EQ(user.lookup(key).result, -ENOENT);
        continue;
      }
      const maru_tier_completion found = user.lookup(key);
      EXPECT_EQ(found.result, 0);
      EXPECT_EQ(found.payload_bytes, bytes);
      EXPECT_EQ(found.attributes_bytes, entry.attributes.size());
      EXPECT_EQ(found.note, entry.note);
      EXPECT_EQ(user.load(key, nullptr, is_aligned), entry) << bytes;
    }
  }
}

TEST_P(Conformance, KeysOfAllBytesAndLengthsAreApart) {
  if (!can(MARU_TIER_KEEPS)) GTEST_SKIP() << "keeps nothing";
  TierUser user(*tier_);
  std::map<std::string, TierEntry> model;
  for (const size_t bytes : {size_t(1), size_t(2), size_t(40), size_t(4096), size_t(MARU_TIER_KEY_BYTES_MAX)}) {
    for (const char last : {'\0', '\n', '\xff'}) {
      const std::string key = std::string(bytes - 1, 'k') + last;
      model[key] = random_entry(random_, 100, 100);
      EXPECT_EQ(user.store(key, model[key]), 0);
    }
  }
  for (const auto& [key, entry] : model) EXPECT_EQ(user.load(key), entry);
}

TEST_P(Conformance, LaterStoresReplaceAndDeletesForget) {
  if (!can(MARU_TIER_KEEPS)) GTEST_SKIP() << "keeps nothing";
  TierUser user(*tier_);
  const TierEntry first = random_entry(random_, 10'000), second = random_entry(random_, 10'000);
  EXPECT_EQ(user.store("key", first), 0);
  EXPECT_EQ(user.store("key", second), 0);
  EXPECT_EQ(user.load("key"), second);
  EXPECT_EQ(user.remove("key"), 0);
  EXPECT_EQ(user.lookup("key").result, -ENOENT);
  EXPECT_EQ(user.store("key", first), 0);
  EXPECT_EQ(user.load("key"), first);
}

TEST_P(Conformance, AnotherLengthThanTheEntrysIsRefused) {
  if (!can(MARU_TIER_KEEPS)) GTEST_SKIP() << "keeps nothing";
  TierUser user(*tier_);
  const TierEntry entry = {"attributes", std::string(5000, 'x'), 7};
  EXPECT_EQ(user.store("key", entry), 0);
  TierEntry room = entry;
  room.payload.resize(4000);
  EXPECT_EQ(user.finish(user.begin(MARU_TIER_LOAD, "key", room)).result, -ESTALE);
  EXPECT_EQ(user.load("key"), entry);
}

TEST_P(Conformance, EachOfManyRequestsCompletesOnce) {
  TierUser user(*tier_);
  std::set<uint64_t> open;
  const TierEntry entry = random_entry(random_, 3000);
  for (int i = 0; i < 500; ++i) {
    uint64_t ticket = 0;
    while ((ticket = user.begin(MARU_TIER_STORE, "key " + std::to_string(i), entry)) == 0) {
      const auto done = user.next();
      ASSERT_TRUE(done);
      EXPECT_EQ(open.erase(done->ticket), 1u);
      user.drop(done->ticket);
    }
    open.insert(ticket);
  }
  while (!open.empty()) {
    const auto done = user.next();
    ASSERT_TRUE(done) << open.size() << " never end";
    EXPECT_EQ(open.erase(done->ticket), 1u);
    EXPECT_EQ(done->result, 0);
    user.drop(done->ticket);
  }
  EXPECT_FALSE(user.next(std::chrono::milliseconds(20)));
}

// Far more than it has room for, with loads and deletes among it: an entry may be gone, and never be another one.
TEST_P(Conformance, NoEntryIsEverAnother) {
  TierUser user(*tier_);
  std::map<std::string, TierEntry> model;
  for (int step = 0; step < 1500; ++step) {
    const std::string key = "key " + std::to_string(random_.below(200));
    switch (random_.below(8)) {
      case 0:
        user.remove(key);
        model.erase(key);
        break;
      case 1:
      case 2:
      case 3: {
        const TierEntry entry = random_entry(random_, 60'000, 500);
        if (const int result = user.store(key, entry); result == 0)
          model[key] = entry;
        else
          ADD_FAILURE() << "store: " << result;
        break;
      }
      default:
        if (const auto found = user.load(key); found) {
          ASSERT_TRUE(model.contains(key)) << "a deleted entry is back";
          ASSERT_EQ(*found, model[key]);
        }
    }
    const maru_tier_usage usage = tier_->usage();
    if (usage.capacity_bytes > 0) {
      ASSERT_LE(usage.physical_bytes, usage.capacity_bytes);
    }
  }
}

TEST_P(Conformance, ListHasEveryEntryOnceAndUsageCountsThem) {
  if (!can(MARU_TIER_LISTS) || !can(MARU_TIER_KEEPS)) GTEST_SKIP() << "does not list";
  TierUser user(*tier_);
  std::map<std::string, TierEntry> model;
  uint64_t bytes = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string key = "key " + std::to_string(i);
    model[key] = random_entry(random_, 20'000, 500);
    ASSERT_EQ(user.store(key, model[key]), 0);
    bytes += model[key].payload.size() + model[key].attributes.size();
  }
  EXPECT_EQ(tier_->usage().entries, model.size());
  EXPECT_EQ(tier_->usage().entry_bytes, bytes);
  std::vector<maru_tier_entry> page(7);
  uint64_t cursor = 0;
  for (int n = 0; (n = tier_->list(&cursor, page.data(), page.size())) > 0;) {
    for (int i = 0; i < n; ++i) {
      const maru_tier_entry& entry = page[size_t(i)];
      const auto found = model.find(std::string(reinterpret_cast<const char*>(entry.key), entry.key_bytes));
      ASSERT_TRUE(found != model.end());
      EXPECT_EQ(entry.payload_bytes, found->second.payload.size());
      EXPECT_EQ(entry.note, found->second.note);
      model.erase(found);
    }
  }
  EXPECT_TRUE(model.empty());
}

// Groups of maru/tier.h, with keys that are short, and longer than the name of an object in S3 may be.
TEST_P(Conformance, GroupsAreCountedAlsoAfterARestart) {
  if (!can(MARU_TIER_COUNTS_GROUPS)) GTEST_SKIP() << "does not count groups";
  const std::vector<std::string> names = {"", "na", "nb", "n" + std::string(64, 'c')};
  const auto key_of = [&](const std::string& group, int i) {
    return std::string(1, 1) + char(group.size()) + group + std::string(i % 3 == 0 ? 300 : 3, 'k') + std::to_string(i);
  };
  struct Counted {
    uint64_t entries = 0, bytes = 0;
    bool operator==(const Counted&) const = default;
  };
  std::map<std::string, Counted> model;
  std::map<std::string, std::vector<std::string>> order;
  int seconds = 0;
  {
    TierUser user(*tier_);
    const auto store = [&](const std::string& group, int i) {
      if (s3_) s3_->tell("clock " + std::to_string(seconds++));  // S3 tells ages in seconds
      const TierEntry entry = random_entry(random_, 3000, 300);
      ASSERT_EQ(user.store(key_of(group, i), entry), 0);
      ++model[group].entries;
      model[group].bytes += entry.payload.size() + entry.attributes.size();
      order[group].push_back(key_of(group, i));
    };
    const auto remove = [&](const std::string& group, int i) {
      const maru_tier_completion found = user.lookup(key_of(group, i));
      --model[group].entries;
      model[group].bytes -= found.payload_bytes + found.attributes_bytes;
      std::erase(order[group], key_of(group, i));
    };
    for (int i = 0; i < 7; ++i)
      for (const std::string& group : names) store(group, i);
    for (const int i : {0, 1}) {
      remove("na", i);
      store("na", i);  // another one, which is the newest now
      remove("nb", i);
      ASSERT_EQ(user.remove(key_of("nb", i)), 0);
    }
  }
  for (const bool is_again : {false, true}) {
    if (is_again && !can(MARU_TIER_SURVIVES)) continue;
    if (is_again) open();
    std::map<std::string, Counted> found;
    for (const maru_tier_group& group : tier_->groups())
      found[{reinterpret_cast<const char*>(group.name), group.name_bytes}] = {group.entries, group.entry_bytes};
    EXPECT_EQ(found, model);
    for (const std::string& name : names) {
      const maru_tier_group group = tier_->group(name);
      EXPECT_EQ((Counted{group.entries, group.entry_bytes}), model[name]);
      if (GetParam().name == std::string("s3_given")) continue;  // all of it in one second
      std::vector<std::string> oldest;
      const auto are_listed = [&] {
        oldest.clear();
        for (const auto& [key, bytes] : tier_->oldest(name, 100)) oldest.push_back(key);
        return oldest == order[name];
      };
      ASSERT_TRUE(wait_until(are_listed)) << name;  // heads tell long keys in S3, and are read later
      EXPECT_EQ(tier_->oldest(name, 2).size(), 2u);
    }
    EXPECT_EQ(tier_->group("nobody").entries, 0u);
  }
}

// A deletion may look first: a quota that finds the entry among the newest would delete another one in its place.
TEST_P(Conformance, ALookMakesNoEntryYounger) {
  if (!can(MARU_TIER_COUNTS_GROUPS)) GTEST_SKIP() << "does not count groups";
  if (GetParam().name == std::string("s3_given")) GTEST_SKIP() << "all of it in one second";
  TierUser user(*tier_);
  int seconds = 0;
  for (const char* const key : {"1", "2", "3"}) {
    if (s3_) s3_->tell("clock " + std::to_string(seconds += 10));  // S3 tells ages in seconds
    ASSERT_EQ(user.store(key, {"", "x", 0}), 0);
  }
  ASSERT_EQ(user.lookup("1").result, 0);
  ASSERT_TRUE(user.load("2"));
  std::vector<std::string> oldest;
  for (const auto& [key, bytes] : tier_->oldest("", 3)) oldest.push_back(key);
  EXPECT_EQ(oldest, (std::vector<std::string>{"1", "2", "3"}));
}

TEST_P(Conformance, EntriesSurviveARestart) {
  if (!can(MARU_TIER_SURVIVES)) GTEST_SKIP() << "keeps nothing over a restart";
  std::map<std::string, TierEntry> model;
  uint64_t entry_bytes = 0;
  {
    TierUser user(*tier_);
    for (int i = 0; i < 60; ++i) {
      const std::string key = "key " + std::to_string(i % 50);
      model[key] = random_entry(random_, 60'000, 500);
      ASSERT_EQ(user.store(key, model[key]), 0);
    }
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(user.remove("key " + std::to_string(i)), 0);
      model.erase("key " + std::to_string(i));
    }
    entry_bytes = tier_->usage().entry_bytes;
  }
  open();
  TierUser user(*tier_);
  if (can(MARU_TIER_LISTS)) {
    EXPECT_EQ(tier_->usage().entries, model.size());
    EXPECT_EQ(tier_->usage().entry_bytes, entry_bytes);
  }
  for (int i = 0; i < 50; ++i) {
    const std::string key = "key " + std::to_string(i);
    const auto found = user.load(key);
    EXPECT_EQ(found.has_value(), model.contains(key));
    if (found) {
      EXPECT_EQ(*found, model[key]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, Conformance, testing::ValuesIn(kSubjects),
                         [](const auto& subject) { return std::string(subject.param.name); });

}  // namespace
}  // namespace maru::test
