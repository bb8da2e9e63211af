// Two hosts with one bucket of S3, or with one Redis: each finds the other's blocks, whole, and none that the other has
// deleted. Each host is a marud with a pool of its own, and a maru-tierd.
#include "libmaru/prefetch/message.h"
#include "tests/support/block_content.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_client.h"
#include "tests/tiers/redis_process.h"
#include "tests/tiers/s3_process.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>

namespace maru::test {
namespace {

constexpr uint64_t kBlockBytes = 60'000;

std::string table_of(const std::string& kind, const tierd::TierOptions& options) {
  std::string table = "[[tier]]\nname = \"far\"\nkind = \"" + kind + "\"\n[tier.options]\n";
  for (const auto& [name, value] : options) table += name + " = \"" + value + "\"\n";
  return table;
}

struct Host {
  explicit Host(const std::string& table, const std::string& more = {})
      : tierd(marud, table, more), client(marud.socket_path()) {
    tierd.start();
  }

  void store(const std::vector<std::string>& keys) {
    const uint64_t before = stored();
    std::string payload(kBlockBytes, 0);
    for (size_t i = 0; i < keys.size(); ++i) {
      BlockContent::write(payload.data(), payload.size(), keys[i], i);
      ASSERT_EQ(client.store(keys[i], payload, i ? keys[i - 1] : ""), 0);
    }
    ASSERT_TRUE(wait_until([&] { return stored() == before + keys.size(); })) << tierd.list().dump();
  }
  uint64_t stored() { return tierd.metric("maru_tier_stored_blocks_total"); }

  // How many leading keys it can use after it has asked its tiers.
  uint64_t fetch(const std::vector<std::string>& keys) {
    Prefetch prefetch(tierd, keys);
    EXPECT_EQ(prefetch.wait(), 0);
    for (uint64_t i = 0; i < prefetch.status().usable; ++i) {
      maru_view view = {};
      if (client.retrieve(keys[i], &view) != 0) {
        ADD_FAILURE() << keys[i] << " is usable, and is not there";
        continue;
      }
      EXPECT_EQ(BlockContent::problem(view.data, view.bytes, keys[i]), nullptr) << keys[i];
      client.release(view);
    }
    return prefetch.status().usable;
  }

  MarudProcess marud;
  TierdProcess tierd;
  TestClient client;
};

void expect_shared(const std::string& table) {
  Host one(table), two(table);
  const std::vector<std::string> keys = {"chain 0", "chain 1", "chain 2", "chain 3", "chain 4"};
  EXPECT_EQ(two.fetch(keys), 0u);
  one.store(keys);
  EXPECT_EQ(two.fetch(keys), keys.size());
  // It does not write a block again that it has loaded. The first host finds the blocks of the second.
  EXPECT_EQ(two.stored(), 0u);
  two.store({"other 0", "other 1"});
  EXPECT_EQ(one.fetch({"other 0", "other 1"}), 2u);
  // Both store one block at a time: afterwards it is there, whole.
  one.store({"both"});
  two.store({"both"});
  Host three(table);
  EXPECT_EQ(three.fetch({"both"}), 1u);
  // A block that is deleted before the feed has told of its load is no event, and its entry stays: then once more.
  EXPECT_TRUE(wait_until([&] {
    (void)one.fetch({"other 0", "other 1"});
    (void)one.client.remove("other 1");
    return Host(table).fetch({"other 0", "other 1"}) == 1;
  }));
  for (Host* const host : {&one, &two, &three}) {
    EXPECT_EQ(host->tierd.metric("maru_tier_unproven_total"), 0u);
    host->tierd.stop();
  }
}

TEST(SharedTiers, TwoHostsShareABucket) {
  TemporaryDirectory directory;
  const S3Process s3(directory.path());
  expect_shared(table_of("s3", s3.options({{"if_none_match", "true"}})));
}

TEST(SharedTiers, TwoHostsShareARedis) {
  if (!RedisProcess::is_installed()) GTEST_SKIP() << "there is no redis-server";
  TemporaryDirectory directory;
  const RedisProcess redis(directory.path());
  expect_shared(table_of("resp", {{"socket", redis.socket_path()}}));
}

// Each of two hosts counts all entries of their server: the other host's stores count from the next list on. So the newest
// entries of both hosts together are within the quota.
void expect_one_quota(const std::string& table) {
  constexpr uint64_t kLimit = 8 * (kBlockBytes + 1000);
  const std::string quotas = "[quotas]\ndefault = \"" + std::to_string(kLimit) + "\"\n";
  Host one(table, quotas), two(table, quotas);
  const auto used = [](Host& host) {
    const auto all = host.tierd.ask(maru::prefetch::kListQuotas);
    return all["usage"].empty() ? uint64_t(0) : all["usage"][0].value("used_bytes", uint64_t(0));
  };
  const auto store = [](Host& host, const std::string& name, int n) {
    ASSERT_FALSE(host.marud.ask({{"command", "quota.set"}, {"tenant", "a"}, {"soft", 1u << 30}}).contains("refused"));
    uint64_t tenant = 0;
    ASSERT_EQ(maru_tenant(host.client, "a", 1, &tenant), 0);
    for (int i = 0; i < n; ++i)
      ASSERT_EQ(host.client.store(key_of(name + std::to_string(i), tenant), std::string(kBlockBytes, 'x')), 0);
    ASSERT_TRUE(wait_until([&] { return host.stored() == uint64_t(n); })) << host.tierd.list().dump();
  };
  store(one, "one ", 6);
  EXPECT_TRUE(wait_until([&] { return used(two) == used(one); })) << "by its list";
  EXPECT_GT(used(two), 6 * kBlockBytes);
  store(two, "two ", 6);
  EXPECT_TRUE(wait_until([&] { return used(two) <= kLimit && used(one) == used(two); }));
  EXPECT_GT(used(two), 4 * kBlockBytes) << "both hosts deleted";
}

TEST(SharedTiers, OneQuotaHoldsForAllHostsWithABucket) {
  TemporaryDirectory directory;
  const S3Process s3(directory.path());
  expect_one_quota(table_of("s3", s3.options({{"list_every_s", "1"}})));
  EXPECT_LE(s3.count("objects"), 8u);
}

TEST(SharedTiers, OneQuotaHoldsForAllHostsWithARedis) {
  if (!RedisProcess::is_installed()) GTEST_SKIP() << "there is no redis-server";
  TemporaryDirectory directory;
  const RedisProcess redis(directory.path());
  expect_one_quota(table_of("resp", {{"socket", redis.socket_path()}, {"list_every_s", "1"}}));
}

// An order by marudctl reaches all that a bucket has, whoever stored it.
TEST(SharedTiers, ClearEmptiesABucket) {
  TemporaryDirectory directory;
  const S3Process s3(directory.path());
  const std::string table = table_of("s3", s3.options());
  Host one(table);
  one.store({"chain 0", "chain 1", "chain 2"});
  Host two(table);
  EXPECT_EQ(two.tierd.tier()["entries"], 3u);
  EXPECT_EQ(two.tierd.ask(maru::prefetch::kClearTier, "far")["deleting"], 3u);
  EXPECT_TRUE(two.tierd.has_entries(0));
  EXPECT_EQ(s3.count("objects"), 0u);
}

}  // namespace
}  // namespace maru::test
