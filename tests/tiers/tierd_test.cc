// maru-tierd beside a real marud: blocks go down, are evicted, and come up again, and every byte is verified.
#include "libmaru/prefetch/message.h"
#include "tests/support/block_content.h"
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace maru::test {
namespace {

constexpr uint64_t kBlockBytes = 60'000;  // not a multiple of a page
const std::string kFileTier =
    "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"DIR\"\ncapacity = \"64MiB\"\nregion_bytes = "
    "\"1MiB\"\n";

std::vector<std::string> keys_of(const std::string& name, size_t n) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(name + " " + std::to_string(i));
  return keys;
}

std::string metadata_of(const std::string& key) { return "about " + key + std::string(key.size() * 7 % 100, '.'); }

// Each block under the one before.
void store_chain(TestClient& client, const std::vector<std::string>& keys, uint64_t bytes = kBlockBytes) {
  std::string payload(bytes, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    BlockContent::write(payload.data(), payload.size(), keys[i], i);
    const maru_key key = key_of(keys[i]), parent = key_of(keys[i ? i - 1 : 0]);
    const std::string metadata = metadata_of(keys[i]);
    const maru_metadata described = {metadata.data(), uint32_t(metadata.size()), 0};
    maru_store_options options = {};
    options.size = sizeof(options);
    options.parent_key = i ? &parent : nullptr;
    options.metadata = &described;
    options.priority = uint32_t(i % 5);
    ASSERT_GE(maru_store_copy(client, &key, payload.data(), payload.size(), &options, nullptr), 0) << keys[i];
  }
}

// Blocks that nobody asks for again, until these keys are gone.
void evict(TestClient& client, const std::vector<std::string>& keys) {
  static uint64_t filler = 0;
  const auto any_is_there = [&] {
    return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return client.exists(key) == 1; });
  };
  const std::string payload(kBlockBytes, 'f');
  ASSERT_TRUE(wait_until([&] {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(client.store("filler " + std::to_string(filler++), payload), 0);
    return !any_is_there();
  }));
}

void expect_whole(TestClient& client, const std::vector<std::string>& keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    maru_view view = {};
    ASSERT_EQ(client.retrieve(keys[i], &view), 0) << keys[i];
    EXPECT_EQ(BlockContent::problem(view.data, view.bytes, keys[i]), nullptr) << keys[i];
    maru_metadata metadata = {};
    ASSERT_EQ(maru_view_metadata(client, &view, &metadata), 0);
    EXPECT_EQ(std::string(static_cast<const char*>(metadata.data), metadata.bytes), metadata_of(keys[i]));
    maru_block_info info = {};
    info.size = sizeof(info);
    ASSERT_EQ(maru_get_block_info(client, view.block, &info, nullptr), 0);
    EXPECT_EQ(info.depth, i);
    EXPECT_EQ(info.priority, i % 5);
    client.release(view);
  }
}

class Tierd : public testing::Test {
 protected:
  void start(const std::string& tiers = kFileTier, const std::string& more = {}) {
    tierd_ = std::make_unique<TierdProcess>(marud_, tiers, more);
    tierd_->start();
  }

  MarudProcess marud_;
  std::unique_ptr<TierdProcess> tierd_;
};

TEST_F(Tierd, BlocksComeBackAfterEvictionWithParentMetadataAndBytes) {
  start();
  TestClient client(marud_.socket_path());
  const auto keys = keys_of("chain", 40);
  store_chain(client, keys);
  ASSERT_TRUE(tierd_->has_entries(40)) << tierd_->list().dump();
  EXPECT_TRUE(wait_until([&] { return tierd_->metric("maru_tier_reported_copies_total") >= 40; }));
  evict(client, keys);
  Prefetch prefetch(*tierd_, keys);
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 40u) << prefetch.status().failed << " failed\n" << tierd_->log();
  EXPECT_EQ(prefetch.status().loaded, 40u);
  expect_whole(client, keys, 40);
  // What came up is in the tier already, and is not written again.
  EXPECT_EQ(tierd_->metric("maru_tier_unproven_total"), 0u);
  tierd_->stop();
}

TEST_F(Tierd, WhatThePoolHasIsHeldAndWhatNobodyHasEndsThePrefix) {
  start();
  TestClient client(marud_.socket_path());
  const auto keys = keys_of("chain", 10);
  store_chain(client, {keys.begin(), keys.begin() + 6});
  ASSERT_TRUE(tierd_->has_entries(6));
  Prefetch prefetch(*tierd_, keys);
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 6u);
  EXPECT_EQ(prefetch.status().in_pool, 6u);
  EXPECT_EQ(prefetch.status().loaded, 0u);
  EXPECT_EQ(client.remove(keys[5]), 0);  // gone for finders, and its memory held
  prefetch.release();
}

TEST_F(Tierd, EntriesOutliveItsOwnDeathAndThePool) {
  start();
  const auto keys = keys_of("chain", 20);
  {
    TestClient client(marud_.socket_path());
    store_chain(client, keys);
    ASSERT_TRUE(tierd_->has_entries(20));
    tierd_->kill();
    tierd_->start();
    EXPECT_EQ(tierd_->tier()["entries"], 20u);
    tierd_->stop();
  }
  MarudProcess other;  // another pool, with other secrets
  TierdProcess again(other, [&] {
    std::string tiers = kFileTier;
    tiers.replace(tiers.find("DIR"), 3, marud_.directory().path());
    return tiers;
  }());
  again.start();
  TestClient client(other.socket_path());
  Prefetch prefetch(again, keys);
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 20u);
  expect_whole(client, keys, 20);
  again.stop();
}

TEST_F(Tierd, DeletedBlocksAreForgotten) {
  start();
  TestClient client(marud_.socket_path());
  const auto keys = keys_of("chain", 3);
  store_chain(client, keys);
  ASSERT_TRUE(tierd_->has_entries(3));
  EXPECT_EQ(client.remove(keys[2]), 0);
  ASSERT_TRUE(tierd_->has_entries(2));
  Prefetch prefetch(*tierd_, {keys[2]});
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().absent, 1u);
}

TEST_F(Tierd, AnotherValueUnderAKeyReplacesTheFirst) {
  start();
  TestClient client(marud_.socket_path());
  const std::string one(kBlockBytes - 5, 'a'), two(kBlockBytes - 3, 'b');
  EXPECT_EQ(client.store("key", one), 0);
  ASSERT_TRUE(tierd_->has_entries(1));
  const uint64_t first_bytes = tierd_->tier()["entry_bytes"];
  EXPECT_EQ(client.remove("key"), 0);
  EXPECT_EQ(client.store("key", two), 0);
  ASSERT_TRUE(wait_until([&] {
    const nlohmann::json tier = tierd_->tier();
    return tier["entry_bytes"] == first_bytes + 2 && tier["entries"] == 1u;
  }));
  evict(client, {"key"});
  Prefetch prefetch(*tierd_, {"key"});
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 1u);
  EXPECT_EQ(client.text("key"), two);
}

TEST_F(Tierd, SecondUseAdmitsWhatComesBack) {
  start(kFileTier, "[store]\npolicy = \"second_use\"\nforget_deleted = false\n");
  TestClient client(marud_.socket_path());
  EXPECT_EQ(client.store("once", std::string(5000, 'x')), 0);
  EXPECT_EQ(client.store("twice", std::string(5000, 'y')), 0);
  ASSERT_TRUE(wait_until([&] { return tierd_->metric("maru_tier_store_not_admitted_total") == 2; }));
  EXPECT_EQ(client.remove("twice"), 0);
  EXPECT_EQ(client.store("twice", std::string(5000, 'y')), 0);
  ASSERT_TRUE(tierd_->has_entries(1));
}

// By second use a part of a batch is in the tier. The others were stored first, so they would go first otherwise.
TEST_F(Tierd, OfEquallyColdBlocksThoseInATierGoFirst) {
  constexpr size_t kEach = 12, kAll = 2 * kEach;  // marud looks at the next fifteen
  start(kFileTier, "[store]\npolicy = \"second_use\"\nforget_deleted = false\n");
  TestClient client(marud_.socket_path());
  const std::string payload(1000, 'x');
  const auto comes_to = [&](const std::string& metric, uint64_t n) {
    return wait_until([&] { return tierd_->metric(metric) == n; });
  };
  std::vector<std::string> names = keys_of("here alone", kEach);
  for (const std::string& name : keys_of("in a tier", kEach)) {
    names.push_back(name);
    ASSERT_EQ(client.store(name, payload), 0);
  }
  ASSERT_TRUE(comes_to("maru_tier_store_not_admitted_total", kEach));
  for (size_t i = kEach; i < kAll; ++i) ASSERT_EQ(client.remove(names[i]), 0);

  maru_key keys[kAll];
  const void* data[kAll];
  uint64_t bytes[kAll], stored_ms[kAll];
  maru_block blocks[kAll];
  int32_t results[kAll];
  for (size_t i = 0; i < kAll; ++i) keys[i] = key_of(names[i]), data[i] = payload.data(), bytes[i] = payload.size();
  ASSERT_EQ(maru_store_copy_batch(client, keys, data, bytes, kAll, nullptr, blocks, results), int(kAll));
  for (size_t i = 0; i < kAll; ++i) {
    maru_block_info info = {};
    info.size = sizeof(info);
    ASSERT_EQ(maru_get_block_info(client, blocks[i], &info, nullptr), 0);
    stored_ms[i] = info.stored_ms;
  }
  ASSERT_TRUE(comes_to("maru_tier_store_not_admitted_total", 2 * kEach));
  ASSERT_TRUE(comes_to("maru_tier_reported_copies_total", kEach));

  // Each block's step: how many others were stored before it went.
  uint64_t steps[kAll] = {}, gone = 0;
  for (uint64_t step = 1; gone < kAll && step < 100'000; ++step) {
    ASSERT_EQ(client.store("filler " + std::to_string(step), payload), 0);
    uint8_t present[kAll];
    ASSERT_GE(maru_exists_batch(client, keys, kAll, present), 0);
    for (size_t i = 0; i < kAll; ++i)
      if (!present[i] && steps[i] == 0) steps[i] = step, ++gone;
  }
  ASSERT_EQ(gone, kAll);
  size_t earlier = 0;
  for (size_t here = 0; here < kEach; ++here)
    for (size_t copied = kEach; copied < kAll; ++copied) {
      if (stored_ms[here] != stored_ms[copied]) continue;
      EXPECT_LE(steps[copied], steps[here]) << names[here] << " went before " << names[copied];
      earlier += steps[copied] < steps[here];
    }
  EXPECT_GT(earlier, 0u) << "or no two of them were stored in one millisecond";
}

TEST_F(Tierd, SkipPoolFreesWhatIsWritten) {
  start(kFileTier, "[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  EXPECT_EQ(client.store("through", std::string(5000, 'x')), 0);
  ASSERT_TRUE(wait_until([&] { return client.exists("through") == 0; }));
  Prefetch prefetch(*tierd_, {"through"});
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 1u);
  EXPECT_EQ(client.text("through"), std::string(5000, 'x'));
}

TEST_F(Tierd, TheNearestTierThatHasABlockIsAsked) {
  start("[[tier]]\nname = \"nothing\"\nkind = \"null\"\n" + kFileTier);
  TestClient client(marud_.socket_path());
  const auto keys = keys_of("chain", 5);
  store_chain(client, keys);
  ASSERT_TRUE(tierd_->has_entries(5, 1));
  evict(client, keys);
  Prefetch prefetch(*tierd_, keys);
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 5u);
  expect_whole(client, keys, 5);
}

TEST_F(Tierd, ALoadThatPromisesToBeSlowerThanComputingDoesNotBegin) {
  start(
      "[[tier]]\nname = \"slow\"\nkind = \"fault\"\n[tier.options]\ninner = \"file\"\ninner_path = \"DIR\"\n"
      "inner_capacity = \"1GiB\"\ninner_region_bytes = \"1MiB\"\nslow = 1\nslow_ms = 20\n");
  TestClient client(marud_.socket_path());
  std::vector<std::string> all;
  for (const char* name : {"first", "second", "third"}) {
    const auto keys = keys_of(name, 5);
    store_chain(client, keys);
    all.insert(all.end(), keys.begin(), keys.end());
  }
  ASSERT_TRUE(tierd_->has_entries(all.size()));
  evict(client, all);
  // Nothing is known of the tier at first. Then a microsecond is too short, and over an hour is not.
  struct {
    const char* name;
    uint32_t compute_us, usable, gated;
  } const cases[] = {{"first", 1, 5, 0}, {"second", 1, 0, 1}, {"third", UINT32_MAX, 5, 0}};
  for (const auto& [name, compute_us, usable, gated] : cases) {
    Prefetch prefetch(*tierd_, keys_of(name, 5), far_too_long_ms(), MARU_PREFETCH_PREFIX, compute_us);
    ASSERT_EQ(prefetch.wait(), 0);
    EXPECT_EQ(prefetch.status().usable, usable) << name;
    EXPECT_EQ(prefetch.status().gated, gated) << name;
  }
}

TEST_F(Tierd, ADescriptorWakesWhoWaitsAndSoDoesADeath) {
  start("[[tier]]\nname = \"slow\"\nkind = \"fault\"\n[tier.options]\ninner = \"null\"\nhang = 1\n");
  Prefetch prefetch(*tierd_, {"key"});
  ASSERT_EQ(prefetch.poll_status(), 0);
  EXPECT_EQ(prefetch.status().is_done, 0u);
  tierd_->kill();
  pollfd wait = {prefetch.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, int(far_too_long_ms())), 1);
  EXPECT_EQ(prefetch.wait(), -ECONNRESET);
  EXPECT_EQ(Prefetch(*tierd_, {"key"}).begun(), -ECONNREFUSED);
}

TEST_F(Tierd, ADeadlineGivesThePrefixThatIsThere) {
  start(
      "[[tier]]\nname = \"hanging\"\nkind = \"fault\"\nload_timeout_ms = 60000\n[tier.options]\ninner = \"null\"\nhang "
      "= 1\n");
  TestClient client(marud_.socket_path());
  const auto keys = keys_of("chain", 5);
  store_chain(client, {keys.begin(), keys.begin() + 2});
  Prefetch prefetch(*tierd_, keys, 50);
  ASSERT_EQ(prefetch.wait(), 0);
  EXPECT_EQ(prefetch.status().usable, 2u);
  EXPECT_EQ(prefetch.status().late, 3u);
}

// Every store hangs: pins stay within their bound, nobody's store is refused, and the breaker opens.
TEST_F(Tierd, AHangingTierHoldsUpNobody) {
  start(
      "[[tier]]\nname = \"hanging\"\nkind = \"fault\"\nstore_timeout_ms = 200\n[tier.options]\ninner = \"null\"\nhang "
      "= 1\n");
  TestClient client(marud_.socket_path());
  const std::string payload(kBlockBytes, 'x');
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(client.store("key " + std::to_string(i), payload), 0);
    if (i % 100 == 0) {
      ASSERT_LE(tierd_->list()["pinned_bytes"], (16u << 20) / 20);
    }
  }
  ASSERT_TRUE(wait_until([&] { return tierd_->tier()["breaker"] != "closed"; })) << tierd_->list().dump();
  for (int i = 0; i < 500; ++i) ASSERT_EQ(client.store("more " + std::to_string(i), payload), 0);
}

TEST_F(Tierd, OperatorsListDrainAndClear) {
  start();
  TestClient client(marud_.socket_path());
  store_chain(client, keys_of("chain", 4));
  ASSERT_TRUE(tierd_->has_entries(4));
  EXPECT_EQ(tierd_->ask(maru::prefetch::kDrainTiers)["drained"], true);
  EXPECT_TRUE(tierd_->ask(maru::prefetch::kClearTier, "nothing").contains("text"));
  EXPECT_EQ(tierd_->ask(maru::prefetch::kClearTier, "disk")["deleting"], 4u);
  EXPECT_TRUE(tierd_->has_entries(0));
}

TEST_F(Tierd, WhatMakesNoSenseIsRefusedAndHarmsNobody) {
  start();
  using namespace maru::prefetch;
  Random random(fresh_seed());
  for (int i = 0; i < 300; ++i) {
    std::string body(random.below(200), 0);
    for (char& c : body) c = char(random.next());
    if (body.size() >= sizeof(PrefetchRequest)) {  // so that some of it is understood
      const PrefetchRequest request = {
          uint32_t(random.below(3)), uint32_t(random.below(4)), 1, 0, uint32_t(random.below(3)), {}};
      std::memcpy(body.data(), &request, sizeof request);
    }
    (void)tierd_->ask(uint32_t(random.below(2)), body);
  }
  EXPECT_TRUE(tierd_->is_running());
  EXPECT_FALSE(tierd_->list().is_null());
}

}  // namespace
}  // namespace maru::test
