// The bounds of maru-tierd beside a real marud: orders about quotas, bytes a day, pins that hold whole chains, and blocks that
// a ticket has for itself alone.
#include "libmaru/prefetch/message.h"
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kBlockBytes = 60'000;
const std::string kFileTier =
    "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"DIR\"\ncapacity = \"64MiB\"\nregion_bytes = "
    "\"1MiB\"\n";
const std::string kHangingTier =
    "[[tier]]\nname = \"hanging\"\nkind = \"fault\"\nstore_timeout_ms = 60000\n[tier.options]\ninner = \"null\"\nhang "
    "= 1\n";

class TierdBounds : public testing::Test {
 protected:
  void start(const std::string& tiers = kFileTier, const std::string& more = {}) {
    tierd_ = std::make_unique<TierdProcess>(marud_, tiers, more);
    tierd_->start();
  }
  static uint64_t tenant_of(TestClient& client, const std::string& name) {
    uint64_t tenant = 0;
    EXPECT_EQ(maru_tenant(client, name.data(), name.size(), &tenant), 0);
    return tenant;
  }
  static void store(TestClient& client, uint64_t tenant, int first, int last, uint64_t bytes = kBlockBytes) {
    for (int i = first; i < last; ++i)
      EXPECT_GE(client.store(key_of("block " + std::to_string(i), tenant), std::string(bytes, char('a' + i % 20))), 0);
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

  MarudProcess marud_;
  std::unique_ptr<TierdProcess> tierd_;
};

// Engines may open the socket as well, and a quota takes entries of others away.
TEST_F(TierdBounds, OtherUsersLookAtQuotasByHttpAndChangeNone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user as well";
  start(kFileTier, "[quotas]\nfile = \"DIR/quotas\"\n");
  std::pair<int, json> looked, changed, removed;
  std::thread([&] {
    // This thread alone; as the owner of the files, so that it may open the socket.
    EXPECT_EQ(::syscall(SYS_setresuid, -1, 65534, -1), 0);
    (void)::setfsuid(0);
    looked = tierd_->http("GET", "/quota");
    changed = tierd_->http("PUT", "/quota/a", "{\"limit_gb\": 0}");
    removed = tierd_->http("DELETE", "/quota/a");
  }).join();
  EXPECT_EQ(looked.first, 200) << looked.second.dump();
  EXPECT_EQ(changed.first, 403) << changed.second.dump();
  EXPECT_EQ(removed.first, 403) << removed.second.dump();
}

TEST_F(TierdBounds, QuotasByHttpAreThoseOfTheSocket) {
  start(kFileTier, "[quotas]\nfile = \"DIR/quotas\"\ndefault = \"1GiB\"\n");
  TestClient client(marud_.socket_path());
  auto [status, answer] = tierd_->http("PUT", "/quota/a%20b", "{\"limit_gb\": 2}");
  EXPECT_EQ(status, 200) << answer.dump();
  EXPECT_EQ(answer["status"], "ok");
  store(client, tenant_of(client, "a b"), 0, 3);
  const std::string name = answer["cache_salt"];
  ASSERT_TRUE(has_usage(name, 3)) << tierd_->ask(maru::prefetch::kListQuotas).dump();
  std::tie(status, answer) = tierd_->http("GET", "/quota/a%20b");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(answer["limit_gb"], 2.0);
  EXPECT_EQ(answer["exists"], true);
  EXPECT_DOUBLE_EQ(answer["current_usage_gb"].get<double>() * (1 << 30), usage(name)["used_bytes"].get<double>());
  std::tie(status, answer) = tierd_->http("GET", "/api/quota");
  EXPECT_EQ(answer["users"][name]["limit_gb"], 2.0);
  EXPECT_EQ(answer["default_limit_gb"], 1.0);
  for (const char* body :
       {"", "{}", "[1]", "{\"limit_gb\": -1}", "{\"limit_gb\": \"2\"}", "{\"limit_gb\": 1, \"x\": 1}"})
    EXPECT_EQ(tierd_->http("PUT", "/quota/a", body).first, 400) << body;
  EXPECT_EQ(tierd_->http("PUT", "/quota/a%2", "{\"limit_gb\": 1}").first, 400);
  EXPECT_EQ(tierd_->http("PUT", "/quota", "{\"limit_gb\": 1}").first, 405);
  EXPECT_EQ(tierd_->http("POST", "/quota/a").first, 405);
  EXPECT_EQ(tierd_->http("DELETE", "/quota/a%20b").second["status"], "removed");
  EXPECT_EQ(tierd_->http("DELETE", "/quota/a%20b").second["status"], "not_found");
  EXPECT_EQ(tierd_->http("GET", "/quota/a%20b").second["limit_gb"], 1.0);
}

TEST_F(TierdBounds, WithoutAFileAQuotaIsRefused) {
  start();
  const json refused = tierd_->ask(maru::prefetch::kSetQuota, json{{"tenant", "a"}, {"bytes", 5u}}.dump());
  EXPECT_NE(refused.value("text", "").find("[quotas]"), std::string::npos) << refused.dump();
  for (const char* body : {"", "{}", "[]", "{\"tenant\": 5, \"bytes\": 5}", "{\"tenant\": \"\", \"bytes\": 5}",
                           "{\"tenant\": \"id:7\", \"bytes\": 5}", "{\"tenant\": \"a\", \"bytes\": -5}"})
    EXPECT_TRUE(tierd_->ask(maru::prefetch::kSetQuota, body).contains("text")) << body;
  EXPECT_TRUE(tierd_->ask(maru::prefetch::kListQuotas, "{\"tenant\": 5}").contains("usage"));
}

TEST_F(TierdBounds, TheBytesOfTheDayAreKept) {
  start(kFileTier, "[store]\nbytes_a_day = \"" + std::to_string(24 * 10 * kBlockBytes) + "\"\n");
  TestClient client(marud_.socket_path());
  store(client, 0, 0, 40);
  ASSERT_TRUE(wait_until([&] { return tierd_->metric("maru_tier_store_over_budget_total") >= 25; }));
  EXPECT_TRUE(wait_until([&] { return tierd_->tier()["entries"] >= 10u; }));
  EXPECT_LE(tierd_->tier()["entries"], 15u);
}

// Long chains in a pool of 270 blocks, and a tier that never ends a store: what the pins hold with the chains above them stays
// within the bound, so every store finds room.
TEST_F(TierdBounds, PinsOfAStalledTierHoldNoMoreThanTheirShare) {
  start(kHangingTier);
  TestClient client(marud_.socket_path());
  const std::string payload(kBlockBytes, 'x');
  for (int chain = 0; chain < 60; ++chain)
    for (int i = 0; i < 10; ++i) {
      const std::string key = std::to_string(chain) + " " + std::to_string(i);
      const std::string parent = i == 0 ? "" : std::to_string(chain) + " " + std::to_string(i - 1);
      ASSERT_EQ(client.store(key, payload, parent), 0) << key << ' ' << tierd_->list().dump();
    }
  // Two answers, and pins may grow between them.
  EXPECT_TRUE(wait_until([&] {
    const uint64_t pinned = tierd_->metric("maru_tier_pinned_bytes");
    return pinned > 0 && tierd_->metric("maru_tier_pinned_chain_bytes") >= pinned;
  }));
  EXPECT_LE(tierd_->metric("maru_tier_pinned_chain_bytes"), (16u << 20) / 20);
}

// -- prefetch ------------------------------------------------------------------------------------------------------------

class TierdTickets : public TierdBounds {
 protected:
  // A ticket with flags, which Prefetch does not know.
  maru_prefetch_ticket* ask(const std::vector<std::string>& keys, uint32_t policy, uint32_t flags,
                            maru_prefetch_status_info& ret_status) {
    std::vector<maru_key> asked;
    for (const std::string& key : keys) asked.push_back(key_of(key));
    maru_prefetch_options options = {};
    options.size = sizeof(options);
    options.socket_path = tierd_->socket_path().c_str();
    options.deadline_ms = std::min<uint32_t>(far_too_long_ms(), 60'000);
    options.policy = policy;
    options.flags = flags;
    maru_prefetch_ticket* ticket = nullptr;
    EXPECT_EQ(maru_prefetch(asked.data(), asked.size(), &options, &ticket), 0);
    ret_status = {};
    ret_status.size = sizeof(ret_status);
    EXPECT_EQ(maru_prefetch_wait(ticket, -1, &ret_status), 0);
    return ticket;
  }
  static std::vector<std::string> keys(int n) {
    std::vector<std::string> all;
    for (int i = 0; i < n; ++i) all.push_back("block " + std::to_string(i));
    return all;
  }
  // In the tier and not in the pool.
  void put_below(TestClient& client, int n, uint64_t bytes = kBlockBytes) {
    store(client, 0, 0, n, bytes);
    ASSERT_TRUE(wait_until([&] {
      const auto all = keys(n);
      return std::none_of(all.begin(), all.end(), [&](const std::string& key) { return client.exists(key) == 1; });
    }));
    ASSERT_TRUE(tierd_->has_entries(uint64_t(n)));
  }
};

TEST_F(TierdTickets, TemporaryBlocksLeaveThePoolWithTheirTicketAndStayInTheTier) {
  start(kFileTier, "[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  put_below(client, 6);
  maru_prefetch_status_info status = {};
  maru_prefetch_ticket* ticket = ask(keys(6), MARU_PREFETCH_PREFIX, MARU_PREFETCH_TEMPORARY, status);
  EXPECT_EQ(status.loaded, 6u);
  maru_view held = {};
  ASSERT_EQ(client.retrieve("block 3", &held), 0);
  maru_prefetch_release(ticket);
  EXPECT_TRUE(wait_until([&] { return client.exists("block 0") == 0 && client.exists("block 5") == 0; }));
  EXPECT_EQ(client.exists("block 3"), 1) << "others hold it";
  client.release(held);
  EXPECT_TRUE(tierd_->has_entries(6)) << "what has gone was not deleted by a client";
  // One that is asked for without the flag as well stays.
  ticket = ask(keys(2), MARU_PREFETCH_PREFIX, 0, status);
  maru_prefetch_ticket* const other = ask(keys(2), MARU_PREFETCH_PREFIX, MARU_PREFETCH_TEMPORARY, status);
  EXPECT_EQ(status.in_pool, 2u);
  maru_prefetch_release(other);
  maru_prefetch_release(ticket);
  EXPECT_EQ(tierd_->list()["loading_bytes"], 0u);  // an answer, so that both releases were seen
  EXPECT_EQ(client.exists("block 0"), 1);
}

// Every load of this tier has a wrong bit, and one of these blocks is in flight at a time: so the policies differ in how far
// they try.
TEST_F(TierdTickets, ASegmentedPrefixPassesOverLoadsThatFail) {
  start(
      "[[tier]]\nname = \"disk\"\nkind = \"fault\"\n[tier.options]\ninner = \"file\"\ninner_path = \"DIR\"\n"
      "inner_capacity = \"64MiB\"\ninner_region_bytes = \"1MiB\"\nflip = 1\n",
      "[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  maru_prefetch_status_info status = {};
  for (const auto& [policy, failed] : {std::pair{MARU_PREFETCH_PREFIX, 1u}, {MARU_PREFETCH_SEGMENTED_PREFIX, 3u}}) {
    put_below(client, 3, 600'000);
    maru_prefetch_release(ask(keys(3), policy, 0, status));
    EXPECT_EQ(status.failed, failed);
    EXPECT_EQ(status.usable, 0u);
    EXPECT_TRUE(tierd_->has_entries(3 - failed)) << "what does not verify is forgotten";
  }
}

// One of these blocks is in flight at a time: the tier answers that it lacks the last key before the second load begins.
TEST_F(TierdTickets, BlocksBeforeAKeyThatIsNowhereAreLoaded) {
  start(kFileTier, "[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  std::vector<std::string> asked = keys(3);
  asked.push_back("never stored");
  for (const uint32_t policy : {MARU_PREFETCH_PREFIX, MARU_PREFETCH_SEGMENTED_PREFIX}) {
    put_below(client, 3, 600'000);
    maru_prefetch_status_info status = {};
    maru_prefetch_release(ask(asked, policy, MARU_PREFETCH_TEMPORARY, status));
    EXPECT_EQ(status.usable, 3u);
    EXPECT_EQ(status.loaded, 3u);
    EXPECT_EQ(status.late, 0u);
  }
}

// The tier keeps the memory of a load for ever, and with it all that may be in flight. At the deadline of this load the loop
// tells the ticket that waits for room.
TEST_F(TierdTickets, ATicketThatWaitsForRoomEndsWithTheLateLoad) {
  const char* const plugin = std::getenv("MARU_TEST_SCRIPTED_TIER");
  ASSERT_NE(plugin, nullptr);
  start("[[tier]]\nname = \"late\"\nkind = \"" + std::string(plugin) +
            "\"\nload_timeout_ms = 100\n[tier.options]\nname = \"late\"\nhang = \"block 0\"\n",
        "in_flight = " + std::to_string(kBlockBytes) + "\n[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  put_below(client, 2);
  Prefetch first(*tierd_, {"block 0"});
  Prefetch second(*tierd_, {"block 1"});
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(first.status().failed, 1u);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(second.status().failed, 1u);
  EXPECT_EQ(second.status().late, 0u) << "it ended at its own deadline";
}

TEST_F(TierdTickets, ASegmentedPrefixEndsAtAKeyThatIsNowhere) {
  start(kFileTier, "[store]\npolicy = \"skip_pool\"\n");
  TestClient client(marud_.socket_path());
  put_below(client, 4);
  std::vector<std::string> asked = keys(4);
  asked[2] = "never stored";
  maru_prefetch_status_info status = {};
  maru_prefetch_release(ask(asked, MARU_PREFETCH_SEGMENTED_PREFIX, 0, status));
  EXPECT_EQ(status.usable, 2u);
  EXPECT_EQ(status.loaded, 2u);
  maru_prefetch_release(ask(asked, MARU_PREFETCH_SPARSE, 0, status));
  EXPECT_EQ(status.loaded, 1u);
}

}  // namespace
}  // namespace maru::test
