// Quotas of tenants in each tier that counts their entries: in files, in Redis, in a bucket of S3. Beside a real marud.
#include "libmaru/prefetch/message.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_client.h"
#include "tests/tiers/redis_process.h"
#include "tests/tiers/s3_process.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>
#include <map>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kBlockBytes = 60'000;

class TierdQuotas : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    tierd::TierOptions options = {{"path", "DIR"}, {"capacity", "64MiB"}, {"region_bytes", "1MiB"}};
    if (kind == "resp") {
      if (!RedisProcess::is_installed()) GTEST_SKIP() << "there is no redis-server";
      redis_ = std::make_unique<RedisProcess>(directory_.path());
      options = {{"socket", redis_->socket_path()}};
    } else if (kind == "s3") {
      s3_ = std::make_unique<S3Process>(directory_.path());
      options = s3_->options();
    }
    table_ = "[[tier]]\nname = \"one\"\nkind = \"" + kind + "\"\n[tier.options]\n";
    for (const auto& [name, value] : options) table_ += name + " = \"" + value + "\"\n";
  }
  void start(const std::string& more) {
    tierd_ = std::make_unique<TierdProcess>(marud_, table_, more);
    tierd_->start();
  }
  static uint64_t tenant_of(TestClient& client, const std::string& name) {
    uint64_t tenant = 0;
    EXPECT_EQ(maru_tenant(client, name.data(), name.size(), &tenant), 0);
    return tenant;
  }
  static void store(TestClient& client, uint64_t tenant, int first, int last) {
    for (int i = first; i < last; ++i)
      EXPECT_GE(
          client.store(key_of("block " + std::to_string(i), tenant), std::string(kBlockBytes, char('a' + i % 20))), 0);
  }
  json usage(const std::string& tenant) const {
    const json all = tierd_->ask(maru::prefetch::kListQuotas);
    for (const json& row : all["usage"])
      if (row["tenant"] == tenant) return row;
    return {{"entries", 0u}, {"used_bytes", 0u}, {"limit_bytes", 0u}};
  }
  bool has_usage(const std::string& tenant, uint64_t entries) const {
    return wait_until([&] { return usage(tenant)["entries"] == entries && tierd_->list()["queued"] == 0u; });
  }

  TemporaryDirectory directory_;
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<S3Process> s3_;
  MarudProcess marud_;
  std::string table_;
  std::unique_ptr<TierdProcess> tierd_;
};

TEST_P(TierdQuotas, UsageOfTenantsIsExactAfterARestart) {
  // Names of tenants are those that marud has been told.
  for (const char* name : {"a", "b"})
    ASSERT_FALSE(marud_.ask({{"command", "quota.set"}, {"tenant", name}, {"soft", 1u << 30}}).contains("refused"));
  start("[store]\nforget_deleted = false\n");
  TestClient client(marud_.socket_path());
  const std::map<uint64_t, int> blocks = {{tenant_of(client, "a"), 12}, {tenant_of(client, "b"), 5}, {0, 3}};
  for (const auto& [tenant, n] : blocks) store(client, tenant, 0, n);
  ASSERT_TRUE(has_usage("a", 12) && has_usage("b", 5) && has_usage("(none)", 3))
      << tierd_->ask(maru::prefetch::kListQuotas).dump();
  const json a = usage("a"), b = usage("b");
  EXPECT_GT(a["used_bytes"], 12 * kBlockBytes);
  // The pool has none of them any more, so none is written again.
  for (const auto& [tenant, n] : blocks)
    for (int i = 0; i < n; ++i) {
      const std::string key = "block " + std::to_string(i);
      const maru_key found = key_of(key, tenant);
      ASSERT_EQ(maru_delete(client, &found), 0);
    }
  tierd_->kill();
  tierd_->start();
  EXPECT_EQ(usage("a"), a) << "from the log, or from the server's list";
  EXPECT_EQ(usage("b"), b);
  tierd_->stop();
}

TEST_P(TierdQuotas, ATenantKeepsItsNewestEntriesWithinItsQuota) {
  start("[quotas]\nfile = \"DIR/quotas\"\n");
  TestClient client(marud_.socket_path());
  const uint64_t a = tenant_of(client, "a"), b = tenant_of(client, "b");
  const uint64_t limit = 8 * (kBlockBytes + 1000);
  // marud knows neither of the names; maru-tierd knows those that have a limit.
  const json set = tierd_->ask(maru::prefetch::kSetQuota, json{{"tenant", "a"}, {"bytes", limit}}.dump());
  ASSERT_EQ(set.value("limit_bytes", uint64_t{0}), limit) << set.dump();
  store(client, b, 0, 5);
  store(client, a, 0, 40);
  ASSERT_TRUE(wait_until([&] { return tierd_->metric("maru_tier_evicted_for_quota_total") > 20; }))
      << tierd_->ask(maru::prefetch::kListQuotas).dump();
  EXPECT_TRUE(wait_until([&] { return usage("a")["used_bytes"] <= limit && tierd_->list()["queued"] == 0u; }));
  EXPECT_GE(usage("a")["entries"], 5u);
  EXPECT_EQ(usage("id:" + std::to_string(b))["entries"], 5u) << "others are not concerned";
  // The limit outlives a restart, after which the blocks that the pool has are written again.
  tierd_->stop();
  tierd_->start();
  EXPECT_EQ(usage("a")["limit_bytes"], limit);
  EXPECT_GE(usage("a")["entries"], 5u);
  EXPECT_TRUE(wait_until([&] { return usage("a")["used_bytes"] <= limit && tierd_->list()["queued"] == 0u; }));
  // A lower one holds at once, and without one there is room again.
  (void)tierd_->ask(maru::prefetch::kSetQuota, json{{"tenant", "a"}, {"bytes", 2 * (kBlockBytes + 1000)}}.dump());
  EXPECT_TRUE(wait_until([&] { return usage("a")["entries"] <= 2u; }));
  EXPECT_EQ(tierd_->ask(maru::prefetch::kDropQuota, json{{"tenant", "a"}}.dump()).value("limit_bytes", 1u), 0u);
  EXPECT_TRUE(tierd_->ask(maru::prefetch::kDropQuota, json{{"tenant", "a"}}.dump()).contains("text"));
  store(client, a, 40, 60);
  EXPECT_TRUE(wait_until([&] { return usage("a")["entries"] >= 20u; }));
  tierd_->stop();
}

INSTANTIATE_TEST_SUITE_P(Kinds, TierdQuotas, testing::Values("file", "resp", "s3"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace maru::test
