// Tenants of a Pool: usage against the pages, limits and credit, deaths and restarts, and what administrators set.
#include "tests/unit/pool_fixture.h"

#include "libmaru/shm/blocks/tenant_account.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <future>
#include <map>

namespace maru::daemon {
namespace {

using nlohmann::json;

class PoolTenantsTest : public testing::Test {
 protected:
  explicit PoolTenantsTest(uint64_t bytes = 1u << 20, uint32_t tenants_max = 0)
      : home_(bytes, 16, 64, {}, tenants_max) {
    set_limits();
  }

  void set_limits() {
    home_.pool->set_tenant_limits(saved_, [this](const TenantSettings& settings) {
      if (!disk_works_) return Result<void>(failure(EIO, "write"));
      saved_ = settings;
      return Result<void>();
    });
  }
  bool restart() {
    if (!home_.restart()) return false;
    set_limits();
    return true;
  }
  uint64_t id(std::string_view name) const {
    return shm::tenant_id(home_.region.secret(), std::as_bytes(std::span(name.data(), name.size())));
  }
  json ask(json request) { return home_.pool->admin(request["command"].get<std::string>(), request, home_.now_ms); }
  uint64_t used(std::string_view name) {
    return ask({{"command", "quota.get"}, {"tenant", name}}).value("used_bytes", uint64_t{0});
  }
  json set(std::string_view name, json limits) {
    limits["command"] = "quota.set";
    limits["tenant"] = name;
    return ask(limits);
  }
  // 0, or the errno with which marud or the store refuses.
  int store(InProcessClient& client, std::string_view key, std::string_view tenant, uint32_t pages = 1) {
    const PageRef own = client.take(pages);
    if (own.is_none()) return ENOSPC;
    shm::NewBlock block{};
    block.tenant = id(tenant);
    block.digest =
        shm::digest_of_bytes(home_.region.secret(), std::as_bytes(std::span(key.data(), key.size())), block.tenant);
    block.key = std::as_bytes(std::span(key.data(), key.size()));
    block.length = 100;
    block.now_ms = home_.now_ms;
    for (int tries = 0; tries < 3; ++tries) {
      const shm::PublishResult result = shm::publish(client.lane, own, block);
      if (result.status == shm::PublishStatus::kStored) {
        blocks_[std::string(key)] = result.block;
        return 0;
      }
      if (result.status != shm::PublishStatus::kNeedsCredit) break;
      ++asked_;
      wire::CreditRequest request{};
      request.tenant = block.tenant;
      request.bytes = uint64_t(pages) * 4096;
      request.account = shm::find_account(home_.region, client.grant.lane, block.tenant);
      std::string why;
      if (const int code = home_.pool->grant_credit(client.grant.lane, request, home_.now_ms, &why); code != 0) {
        EXPECT_NE(why, "");
        shm::give_back_run(home_.region, client.lane.id, own);
        return code;
      }
    }
    shm::give_back_run(home_.region, client.lane.id, own);
    return EEXIST;
  }
  void remove(InProcessClient& client, std::string_view key) {
    const PageRef ref = blocks_[std::string(key)];
    ASSERT_EQ(shm::retire_ref(client.lane, ref), shm::RetireStatus::kRetired);
    ASSERT_EQ(shm::finish_retired(client.lane, ref, shm::LaneSet::in_use(home_.region), nullptr),
              shm::FinishStatus::kFreed);
  }
  // What the pages say.
  uint64_t counted(std::string_view name) const {
    uint64_t sum = 0;
    for (uint32_t page = 0; page < home_.region.pages(); ++page) {
      uint64_t tenant = 0;
      const uint64_t bytes = shm::tenant_bytes(home_.region, page, &tenant);
      if (tenant == id(name)) sum += bytes;
    }
    return sum;
  }
  format::LaneAccount& account(const InProcessClient& client, std::string_view name) const {
    return home_.region.account(client.grant.lane, shm::find_account(home_.region, client.grant.lane, id(name)));
  }

  PoolUnderTest home_;
  TenantSettings saved_;
  bool disk_works_ = true;
  std::map<std::string, PageRef> blocks_;
  int asked_ = 0;
};

TEST_F(PoolTenantsTest, UsageIsWhatThePagesSay) {
  auto one = home_.attach(), two = home_.attach();
  EXPECT_EQ(store(*one, "1", "a"), 0);
  EXPECT_EQ(store(*two, "2", "a", 3), 0);
  EXPECT_EQ(store(*two, "3", "b"), 0);
  EXPECT_EQ(used("a"), 4 * 4096u);
  EXPECT_EQ(used("b"), 4096u);
  remove(*two, "1");
  EXPECT_EQ(used("a"), 3 * 4096u);
  ask({{"command", "clear"}});
  EXPECT_EQ(used("a"), 0u);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(PoolTenantsTest, WhatIsEvictedIsReturned) {
  auto client = home_.attach();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store(*client, std::to_string(i), i % 2 ? "a" : "b"), 0);
  ask({{"command", "evict"}, {"pages", 7}});
  EXPECT_EQ(used("a") + used("b"), 13 * 4096u);
  EXPECT_EQ(used("a"), counted("a"));
}

TEST_F(PoolTenantsTest, AClientThatLeavesLeavesItsBytesInTheBalance) {
  auto one = home_.attach(), two = home_.attach();
  store(*one, "1", "a", 2);
  store(*two, "2", "a");
  home_.pool->detach(one->grant.lane);
  EXPECT_EQ(used("a"), 3 * 4096u);
  remove(*two, "1");
  EXPECT_EQ(used("a"), 4096u);
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(PoolTenantsTest, ADeathInTheMiddleIsCountedAgain) {
  auto one = home_.attach(), two = home_.attach();
  store(*one, "1", "a");
  store(*two, "2", "a");
  // It dies after it has charged and before its page is SEALED.
  account(*one, "a").in_flight.store_relaxed(shm::kStoreInFlight);
  account(*one, "a").charged.store_relaxed(2 * 4096);
  home_.pool->client_died(one->grant.lane);
  EXPECT_EQ(used("a"), 3 * 4096u);  // too high, never too low
  home_.settle();
  EXPECT_EQ(used("a"), 2 * 4096u);
  EXPECT_FALSE(home_.pool->status_json(home_.now_ms)["tenants"]["counting"].get<bool>());
}

TEST_F(PoolTenantsTest, ACountWaitsForWhatIsInFlight) {
  auto one = home_.attach(), two = home_.attach();
  store(*one, "1", "a");
  store(*two, "2", "a");
  account(*one, "a").in_flight.store_relaxed(shm::kStoreInFlight);
  account(*one, "a").charged.store_relaxed(2 * 4096);
  account(*two, "a").in_flight.store_relaxed(shm::kFreeInFlight);  // at work for a long time
  home_.pool->client_died(one->grant.lane);
  home_.settle();
  EXPECT_EQ(used("a"), 3 * 4096u);
  account(*two, "a").in_flight.store_relaxed(0);
  home_.now_ms += 60'000;
  home_.settle();
  EXPECT_EQ(used("a"), 2 * 4096u);
}

TEST_F(PoolTenantsTest, AHardLimitIsReachedAndNotPassed) {
  set("a", {{"hard", 5 * 4096}});
  auto one = home_.attach(), two = home_.attach();
  int stored = 0, refused = 0;
  for (int i = 0; i < 10; ++i) {
    const int code = store(i % 2 ? *one : *two, std::to_string(i), "a");
    stored += code == 0;
    refused += code == EDQUOT;
  }
  EXPECT_EQ(stored, 5);
  EXPECT_EQ(refused, 5);
  EXPECT_EQ(counted("a"), 5 * 4096u);
  EXPECT_EQ(store(*one, "b", "b"), 0);
  remove(*one, "0");
  EXPECT_EQ(store(*one, "again", "a"), 0);
  EXPECT_EQ(store(*one, "more", "a"), EDQUOT);
}

TEST_F(PoolTenantsTest, UnusedCreditComesBack) {
  set("a", {{"hard", 160 * 4096}});  // an eighth of it in advance: 20 pages
  auto one = home_.attach(), two = home_.attach();
  EXPECT_EQ(store(*one, "1", "a"), 0);
  for (int i = 0; i < 19; ++i) EXPECT_EQ(store(*one, "more" + std::to_string(i), "a"), 0);
  EXPECT_EQ(asked_, 1);
  set("a", {{"hard", 21 * 4096}});
  EXPECT_EQ(store(*one, "last", "a"), 0);
  EXPECT_EQ(store(*two, "none", "a"), EDQUOT);
  // What one holds and does not use is taken back for two.
  set("a", {{"hard", 40 * 4096}});
  shm::grant_credit(home_.region, one->grant.lane, shm::find_account(home_.region, one->grant.lane, id("a")),
                    19 * 4096);
  EXPECT_EQ(store(*two, "some", "a"), 0);
  home_.pool->detach(one->grant.lane);
  for (int i = 0; i < 18; ++i) EXPECT_EQ(store(*two, "rest" + std::to_string(i), "a"), 0) << i;
  EXPECT_EQ(store(*two, "full", "a"), EDQUOT);
  EXPECT_EQ(counted("a"), 40 * 4096u);
}

TEST_F(PoolTenantsTest, ALimitThatAppearsCountsStoresInFlight) {
  auto one = home_.attach(), two = home_.attach();
  EXPECT_EQ(store(*one, "1", "a"), 0);
  account(*one, "a").in_flight.store_relaxed(shm::kStoreInFlight);  // past its look at the rules
  set("a", {{"hard", 10 * 4096}});
  EXPECT_EQ(store(*two, "2", "a"), EDQUOT);  // it could be a block of a whole region
  account(*one, "a").in_flight.store_relaxed(0);
  EXPECT_EQ(store(*two, "2", "a"), 0);
}

TEST_F(PoolTenantsTest, ALowerLimitTakesCreditBack) {
  set("a", {{"hard", 100 * 4096}});
  auto one = home_.attach();
  EXPECT_EQ(store(*one, "1", "a"), 0);
  set("a", {{"hard", 2 * 4096}});
  EXPECT_EQ(store(*one, "2", "a"), 0);
  EXPECT_EQ(store(*one, "3", "a"), EDQUOT);
}

TEST_F(PoolTenantsTest, DefaultsAndTheAllowList) {
  auto client = home_.attach();
  ask({{"command", "quota.default"}, {"hard", 2 * 4096}});
  EXPECT_EQ(store(*client, "1", "a"), 0);
  EXPECT_EQ(store(*client, "2", "a"), 0);
  EXPECT_EQ(store(*client, "3", "a"), EDQUOT);
  set("b", {{"hard", 0}});  // none for this one
  asked_ = 0;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(store(*client, "b" + std::to_string(i), "b"), 0);
  EXPECT_EQ(asked_, 0);
  ask({{"command", "quota.default"}, {"hard", 0}});
  EXPECT_EQ(store(*client, "3", "a"), 0);
  ask({{"command", "quota.mode"}, {"listed", true}});
  EXPECT_EQ(store(*client, "4", "a"), EPERM);
  EXPECT_EQ(store(*client, "b9", "b"), 0);
  EXPECT_EQ(store(*client, "c", "c"), EPERM);
  ask({{"command", "quota.mode"}, {"listed", false}});
  EXPECT_EQ(store(*client, "c", "c"), 0);
}

TEST_F(PoolTenantsTest, SettingsAndUsageSurviveMarud) {
  set("a", {{"hard", 3 * 4096}, {"soft", 4096}});
  ask({{"command", "quota.default"}, {"soft", 8192}});
  auto client = home_.attach();
  store(*client, "1", "a");
  store(*client, "2", "a");
  store(*client, "3", "b");
  home_.pool->detach(home_.attach()->grant.lane);
  ASSERT_TRUE(restart());
  const json a = ask({{"command", "quota.get"}, {"tenant", "a"}});
  EXPECT_EQ(a["hard_bytes"], 3 * 4096);
  EXPECT_EQ(a["soft_bytes"], 4096);
  EXPECT_EQ(a["used_bytes"], 2 * 4096);
  EXPECT_EQ(a["set_by"], "run time");
  EXPECT_EQ(ask({{"command", "quota.get"}, {"tenant", "b"}})["soft_bytes"], 8192);
  EXPECT_EQ(store(*client, "4", "a"), 0);
  EXPECT_EQ(store(*client, "5", "a"), EDQUOT);
  home_.settle();
  EXPECT_EQ(used("a"), counted("a"));
  EXPECT_EQ(home_.audit(), std::set<std::string>{});
}

TEST_F(PoolTenantsTest, AMarudThatDiedInTheMiddleIsCountedAgain) {
  set("a", {{"hard", 5 * 4096}});
  auto client = home_.attach();
  for (int i = 0; i < 4; ++i) store(*client, std::to_string(i), "a");
  home_.pool->detach(client->grant.lane);
  // It freed a page and did not write its balance.
  const auto place = shm::find_tenant(home_.region, id("a"));
  ASSERT_NE(place, ~0u);
  home_.region.tenant(place).balance.fetch_add_relaxed(4096);
  ASSERT_TRUE(restart());
  EXPECT_EQ(used("a"), 5 * 4096u);
  home_.settle();
  EXPECT_EQ(used("a"), 4 * 4096u);
}

TEST_F(PoolTenantsTest, ConfiguredLimitsGiveWayToThoseOfRunTime) {
  home_.config.tenants.tenants["a"] = {.soft_bytes = 1 << 20, .hard_bytes = 2 << 20};
  ASSERT_TRUE(restart());
  EXPECT_EQ(ask({{"command", "quota.get"}, {"tenant", "a"}})["set_by"], "configuration");
  const json now = set("a", {{"soft", 3 << 19}});
  EXPECT_EQ(now["soft_bytes"], 3 << 19);
  EXPECT_EQ(now["hard_bytes"], 2 << 20);
  EXPECT_EQ(now["configured"]["soft_bytes"], 1 << 20);
  EXPECT_TRUE(ask({{"command", "quota.remove"}, {"tenant", "a"}}).contains("note"));
  ASSERT_TRUE(restart());
  EXPECT_EQ(ask({{"command", "quota.remove"}, {"tenant", "a"}})["errno"], ENOENT);
}

TEST_F(PoolTenantsTest, WhatCannotBeWrittenDownIsNotSet) {
  disk_works_ = false;
  EXPECT_EQ(set("a", {{"hard", 4096}})["errno"], EIO);
  auto client = home_.attach();
  EXPECT_EQ(store(*client, "1", "a"), 0);
  EXPECT_EQ(store(*client, "2", "a"), 0);
}

TEST_F(PoolTenantsTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(set("", {{"hard", 1}})["errno"], EINVAL);
  EXPECT_EQ(set(std::string(65, 'x'), {{"hard", 1}})["errno"], EINVAL);
  EXPECT_EQ(set("a", {{"hard", -1}})["errno"], EINVAL);
  EXPECT_EQ(set("a", {{"soft", "1"}})["errno"], EINVAL);
  EXPECT_EQ(ask({{"command", "quota.get"}, {"tenant", "nobody"}})["errno"], ENOENT);
  EXPECT_EQ(ask({{"command", "quota.mode"}, {"listed", 1}})["errno"], EINVAL);
  auto client = home_.attach();
  std::string why;
  wire::CreditRequest request{};
  request.tenant = 5;
  request.bytes = 4096;
  request.account = 1;
  EXPECT_EQ(home_.pool->grant_credit(client->grant.lane, request, home_.now_ms, &why), EINVAL);
  request.account = 1u << 30;
  EXPECT_EQ(home_.pool->grant_credit(client->grant.lane, request, home_.now_ms, &why), EINVAL);
  EXPECT_EQ(home_.pool->grant_credit(7, request, home_.now_ms, &why), ENOTCONN);
}

TEST_F(PoolTenantsTest, NamesOfAnyBytesAreListed) {
  set("0x00ff", {{"soft", 1}});
  set("plain", {{"soft", 2}});
  auto client = home_.attach();
  store(*client, "1", "unnamed");
  const json list = ask({{"command", "quota.list"}});
  ASSERT_EQ(list["tenants"].size(), 3u);
  std::set<std::string> names;
  for (const json& row : list["tenants"])
    names.insert(row["tenant"].is_null() ? "-" : row["tenant"].get<std::string>());
  EXPECT_EQ(names, (std::set<std::string>{"-", "0x00ff", "plain"}));
  EXPECT_TRUE(saved_.tenants.contains(std::string("\0\xff", 2)));
  EXPECT_EQ(ask({{"command", "quota.get"}, {"id", id("unnamed")}})["used_bytes"], 4096);
}

TEST_F(PoolTenantsTest, MoreTenantsThanPlacesAreCountedTogether) {
  auto client = home_.attach();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store(*client, "k" + std::to_string(i), "t" + std::to_string(i)), 0);
  uint64_t sum = 0;
  const json list = ask({{"command", "quota.list"}});
  for (const json& row : list["tenants"]) sum += row["used_bytes"].get<uint64_t>();
  EXPECT_EQ(sum + list["others_used_bytes"].get<uint64_t>(), 100 * 4096u);
  EXPECT_GT(list["others_used_bytes"], 0);
  EXPECT_TRUE(home_.pool->status_json(home_.now_ms)["tenants"].contains("others"));
  ask({{"command", "clear"}});
  for (int i = 0; i < 8; ++i) {
    home_.now_ms += 3000;
    home_.pool->turn(home_.now_ms);
  }
  const json empty = ask({{"command", "quota.list"}});
  for (const json& row : empty["tenants"]) EXPECT_EQ(row["used_bytes"], 0);
  EXPECT_EQ(empty["others_used_bytes"], 0);
}

// -- more tenants than places, and hard limits ----------------------------------------------------------------------------

class PoolTenantsInSmallTable : public PoolTenantsTest {
 protected:
  PoolTenantsInSmallTable() : PoolTenantsTest(1u << 20, 8) {}
  // So many tenants store a page each; how many of them the pool refuses for want of a place.
  int fill_the_table(InProcessClient& client, int tenants) {
    int refused = 0;
    for (int i = 0; i < tenants; ++i) {
      const int result = store(client, "k" + std::to_string(i), "t" + std::to_string(i));
      EXPECT_TRUE(result == 0 || result == EUSERS) << i << ": " << result;
      refused += result == EUSERS;
    }
    return refused;
  }
  json tenants_status() { return home_.pool->status_json(home_.now_ms)["tenants"]; }
};

TEST_F(PoolTenantsInSmallTable, AHardLimitHoldsForEveryTenantOrItIsRefusedByName) {
  ask({{"command", "quota.default"}, {"hard", 2 * 4096}});
  auto one = home_.attach(), two = home_.attach();
  int refused = 0;
  for (int i = 0; i < 30; ++i)
    for (int k = 0; k < 4; ++k) {
      const std::string tenant = "t" + std::to_string(i);
      const int result = store(k % 2 == 0 ? *one : *two, tenant + "." + std::to_string(k), tenant);
      EXPECT_TRUE(result == 0 || result == EDQUOT || result == EUSERS) << result;
      refused += result == EUSERS;
    }
  for (int i = 0; i < 30; ++i) EXPECT_LE(counted("t" + std::to_string(i)), 2 * 4096u) << i;
  EXPECT_EQ(refused, 22 * 4);
  EXPECT_EQ(tenants_status()["refused_without_place"], refused);
}

TEST_F(PoolTenantsInSmallTable, APlaceThatBecomesFreeIsTheNextTenants) {
  ask({{"command", "quota.default"}, {"hard", 4096}});
  {
    auto client = home_.attach();
    EXPECT_EQ(fill_the_table(*client, 9), 1);
    home_.pool->detach(client->grant.lane);
  }
  ask({{"command", "clear"}});
  home_.settle();
  auto client = home_.attach();
  EXPECT_EQ(store(*client, "again", "t8"), 0);
  EXPECT_EQ(store(*client, "more", "t8"), EDQUOT);
}

// A tenant without a place keeps no credit from before the limit.
TEST_F(PoolTenantsInSmallTable, CreditFromBeforeTheLimitEndsWithIt) {
  auto client = home_.attach();
  ask({{"command", "quota.mode"}, {"listed", false}});
  EXPECT_EQ(fill_the_table(*client, 9), 0);
  std::string without;  // the tenant that has no place
  for (int i = 0; i < 9; ++i)
    if (const std::string name = "t" + std::to_string(i);
        ask({{"command", "quota.get"}, {"tenant", name}}).value("errno", 0) == ENOENT)
      without = name;
  const uint32_t account = shm::find_account(home_.region, client->grant.lane, id(without));
  ASSERT_NE(account, shm::kOthersAccount) << without;
  shm::grant_credit(home_.region, client->grant.lane, account, 64u << 20);  // as older versions did
  ask({{"command", "quota.default"}, {"hard", 4096}});
  EXPECT_EQ(store(*client, "more", without), EUSERS);
}

TEST_F(PoolTenantsInSmallTable, AListedTenantWithoutAPlaceIsNotLetOffItsLimit) {
  auto client = home_.attach();
  EXPECT_EQ(fill_the_table(*client, 20), 0);
  home_.pool->detach(client->grant.lane);
  home_.config.tenants.tenants["late"].hard_bytes = 4096;
  ASSERT_TRUE(restart());
  client = home_.attach();
  ASSERT_EQ(tenants_status()["names_without_place"], 1);
  EXPECT_EQ(store(*client, "1", "late"), EUSERS);
  EXPECT_EQ(store(*client, "2", "t19"), 0) << "nothing limits this one";
  // As soon as there is a place it has its limit.
  ask({{"command", "clear"}});
  home_.settle();
  home_.pool->detach(client->grant.lane);
  home_.settle();
  client = home_.attach();
  EXPECT_EQ(store(*client, "3", "late"), 0);
  EXPECT_EQ(store(*client, "4", "late"), EDQUOT);
  EXPECT_EQ(ask({{"command", "quota.get"}, {"tenant", "late"}})["listed"], true);
}

// -- limits that are being written down -----------------------------------------------------------------------------------

class PoolTenantsOnSlowDisk : public PoolTenantsTest {
 protected:
  PoolTenantsOnSlowDisk() : PoolTenantsTest(1u << 20, 8) {
    home_.pool->set_tenant_limits({}, [written = written_.get_future().share()](const TenantSettings&) {
      return written.get() ? Result<void>() : Result<void>(failure(ENOSPC, "write"));
    });
  }
  json ask(json request, uint64_t* ret_ticket) {
    return home_.pool->admin(request["command"].get<std::string>(), request, home_.now_ms, ret_ticket);
  }
  // What it answers in the end.
  json answer(const json& request, uint64_t* ret_ticket) {
    json reply;
    EXPECT_TRUE(test::wait_until([&] {
      home_.pool->turn(++home_.now_ms);
      return !(reply = ask(request, ret_ticket)).is_null();
    }));
    return reply;
  }
  void fill_the_table() {
    if (!client_) client_ = home_.attach();
    for (int i = 0; i < 40; ++i) EXPECT_EQ(store(*client_, "k" + std::to_string(i), "t" + std::to_string(i)), 0);
    EXPECT_GT(PoolTenantsTest::ask({{"command", "quota.list"}})["others_used_bytes"], 0) << "no place is left";
  }
  std::promise<bool> written_;
  std::unique_ptr<InProcessClient> client_;
};

TEST_F(PoolTenantsOnSlowDisk, WhatOnlyAsksDoesNotWait) {
  uint64_t change = 0;
  ASSERT_TRUE(ask({{"command", "quota.default"}, {"soft", 4096}}, &change).is_null());
  for (const char* asks : {"quota.default", "quota.mode", "quota.list"}) {
    uint64_t ticket = 0;
    EXPECT_FALSE(ask({{"command", asks}}, &ticket).is_null()) << asks;
    EXPECT_EQ(ticket, 0u) << asks;
  }
  written_.set_value(true);
}

TEST_F(PoolTenantsOnSlowDisk, PlaceIsKeptForATenantWhoseLimitsAreWrittenDown) {
  const json change = {{"command", "quota.set"}, {"tenant", "listed"}, {"hard", 1u << 20}};
  uint64_t ticket = 0;
  ASSERT_TRUE(ask(change, &ticket).is_null());
  fill_the_table();
  written_.set_value(true);
  const json reply = answer(change, &ticket);
  EXPECT_EQ(reply.value("listed", false), true) << reply.dump();
  EXPECT_EQ(reply.value("hard_bytes", 0), 1 << 20) << reply.dump();
}

TEST_F(PoolTenantsOnSlowDisk, PlaceIsGivenBackWhenTheyCannotBe) {
  const json change = {{"command", "quota.set"}, {"tenant", "listed"}, {"hard", 1u << 20}};
  uint64_t ticket = 0;
  ASSERT_TRUE(ask(change, &ticket).is_null());
  written_.set_value(false);
  EXPECT_EQ(answer(change, &ticket)["errno"], EIO) << "ENOSPC is said where the pool has no place";
  const json list = PoolTenantsTest::ask({{"command", "quota.list"}});
  for (const json& row : list["tenants"]) EXPECT_TRUE(row["tenant"].is_null()) << row.dump();
  fill_the_table();
  EXPECT_EQ(PoolTenantsTest::ask({{"command", "quota.get"}, {"tenant", "listed"}})["errno"], ENOENT);
}

// -- tenants that somebody scribbled ------------------------------------------------------------------------------------

class PoolTenantsScribbled : public PoolTenantsTest {
 protected:
  PoolTenantsScribbled() : PoolTenantsTest(8u << 20, 256) {}

  // Every page is a block of another tenant, as its client says, and all are counted.
  void scribble_and_count() {
    const auto client = home_.attach();
    for (uint32_t page = 0; page < home_.region.pages(); ++page) {
      home_.region.block(page).shape.store_relaxed(1);
      home_.region.detail(page).tenant.store_relaxed(0x9e37'79b9'7f4a'7c15 * (page + 1));
      home_.region.block(page).word.store_release(PageWord::ready(0, 0).bits);
    }
    // A death between charging and storing makes marud count.
    home_.region.lane_header(client->grant.lane).accounts.store_relaxed(1);
    format::LaneAccount& account = home_.region.account(client->grant.lane, 1);
    account.tenant.store_relaxed(id("dead"));
    account.in_flight.store_relaxed(shm::kStoreInFlight);
    home_.pool->client_died(client->grant.lane);
  }
  std::map<uint64_t, uint64_t> counted_by_tenant() const {
    std::map<uint64_t, uint64_t> sums;
    for (uint32_t page = 0; page < home_.region.pages(); ++page) {
      uint64_t tenant = 0;
      const uint64_t bytes = shm::tenant_bytes(home_.region, page, &tenant);
      if (bytes != 0) sums[tenant] += bytes;
    }
    return sums;
  }
  uint64_t records() const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < home_.region.parameters().tenants; ++i)
      sum += home_.region.tenant(i).id.load_relaxed() != 0;
    return sum;
  }
};

TEST_F(PoolTenantsScribbled, WhatAPassCountedForOneTenantIsNotTakenForAnothers) {
  scribble_and_count();
  ASSERT_GT(home_.region.pages(), home_.region.parameters().tenants);
  home_.settle();
  auto counted = counted_by_tenant();
  const json list = ask({{"command", "quota.list"}});
  EXPECT_GT(list["tenants"].size(), 1u);
  for (const json& row : list["tenants"])
    EXPECT_EQ(row["used_bytes"].get<uint64_t>(), counted[std::stoull(row["id"].get<std::string>())]) << row.dump();
}

TEST_F(PoolTenantsScribbled, ATurnAddsSoManyAndTheNextOnesTheOthers) {
  home_.config.tenants.defaults.hard_bytes = 1 << 20;
  ASSERT_TRUE(restart());
  scribble_and_count();
  ASSERT_GT(home_.region.parameters().tenants, 2 * 64u);
  uint64_t before = records();
  for (int turns = 0; turns < 16; ++turns) {
    home_.now_ms += 50;
    home_.pool->turn(home_.now_ms);
    EXPECT_LE(records() - before, 64u + 1) << "in a turn the one that died as well";
    before = records();
  }
  EXPECT_EQ(before, home_.region.parameters().tenants) << "all places are in use in the end";
}

}  // namespace
}  // namespace maru::daemon
