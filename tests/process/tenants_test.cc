// Tenants between real processes: usage is what the blocks say, whoever was killed; a hard limit is never passed; what was set
// survives marud; a tenant that floods the pool takes nothing from one within its limit.
//
// MARU_KILLS says how often (60 in the test command).
#include "libmaru/shm/blocks/tenant_account.h"
#include "tests/process/board.h"
#include "tests/process/tenant_worker.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint32_t kWorkersEach = 4;

PoolWish tenant_pool(bool in_file = false) {
  PoolWish pool;
  pool.bytes = 4u << 20;
  pool.region_bytes = 256u << 10;
  pool.lanes = 12;
  pool.in_file = in_file;
  return pool;
}

class Tenants : public ::testing::Test {
 protected:
  explicit Tenants(std::vector<PoolWish> pools = {tenant_pool()})
      : marud_(std::move(pools)), seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }

  void start_worker(uint32_t i, uint64_t keys, uint64_t tenants) {
    workers_[i] = std::make_unique<ChildProcess>(
        std::vector<std::string>{own_program(), "--role", "tenant-worker", marud_.socket_path(),
                                 std::to_string(random_.next()), std::to_string(board_.fd()), std::to_string(i),
                                 std::to_string(keys), std::to_string(tenants)},
        "", std::vector<int>{board_.fd()});
  }
  void expect_operations(uint64_t more) {
    const uint64_t until = board_.total(&BoardWords::Worker::operations) + more;
    EXPECT_TRUE(wait_until([&] { return board_.total(&BoardWords::Worker::operations) >= until || is_broken(); }))
        << "the workers stand still";
    EXPECT_FALSE(is_broken()) << "a worker ended";
  }
  bool is_broken() {
    for (auto& worker : workers_)
      if (worker && !worker->is_running()) return true;
    return false;
  }
  void stop_workers() {
    board_->stop.store(1);
    for (auto& worker : workers_) {
      if (!worker) continue;
      const auto ended = worker->wait();
      EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a worker hangs");
      worker.reset();
    }
    board_->stop.store(0);
  }
  bool stands_still(const ChildProcess& process) {
    std::ifstream file("/proc/" + std::to_string(process.pid()) + "/stat");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t end = text.rfind(')');
    return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'T';
  }

  json quota(const std::string& name) { return marud_.ask({{"command", "quota.get"}, {"tenant", name}}); }
  uint64_t used(const std::string& name) { return quota(name).value("used_bytes", uint64_t{0}); }
  json set(const std::string& name, json limits) {
    limits["command"] = "quota.set";
    limits["tenant"] = name;
    return marud_.ask(limits);
  }
  // By tenant, over all blocks that marud lists.
  std::map<uint64_t, uint64_t> listed_bytes() {
    std::map<uint64_t, uint64_t> bytes;
    uint64_t cursor = 0;
    for (;;) {
      const json reply = marud_.ask({{"command", "blocks"}, {"cursor", cursor}});
      for (const json& row : reply.at("blocks"))
        bytes[std::stoull(row.value("tenant", "0"))] += row.at("pages").get<uint64_t>() * 4096;
      if (!reply.contains("next")) return bytes;
      cursor = reply.at("next").get<uint64_t>();
    }
  }
  void expect_exact() {
    EXPECT_TRUE(wait_until([&] {
      const json status = marud_.pool_status();
      return status.at("lanes").at("reclaiming") == 0 && status.at("lanes").at("live") == 0 &&
             status.at("retired_waiting") == 0 && !status.at("tenants").at("counting").get<bool>();
    })) << marud_.pool_status().dump(1);
    const auto listed = listed_bytes();
    for (const char* name : kTenantNameTexts) {
      const json row = quota(name);
      const auto found = listed.find(std::stoull(row.value("id", "0")));
      EXPECT_EQ(row.value("used_bytes", uint64_t{0}), found == listed.end() ? 0 : found->second) << name;
    }
  }

  MarudProcess marud_;
  uint64_t seed_;
  Random random_;
  Board board_;
  std::array<std::unique_ptr<ChildProcess>, kWorkersEach> workers_;
};

TEST_F(Tenants, UsageIsWhatTheBlocksSayAfterClientsWereKilled) {
  const uint64_t kills = number_from_environment("MARU_KILLS", 60);
  uint64_t killed = 0;
  for (uint64_t rounds = 0; killed < kills && !HasFailure(); ++rounds) {
    for (uint32_t i = 0; i < 2; ++i) start_worker(i, 200, 3);
    for (uint64_t i = 0; i < 10 && !HasFailure(); ++i, ++killed) {
      expect_operations(random_.below(800));
      for (uint64_t spin = random_.below(20'000); spin > 0; --spin) asm volatile("");
      const auto victim = uint32_t(random_.below(2));
      workers_[victim]->kill();
      start_worker(victim, 200, 3);
    }
    if (rounds % 2 == 1) {                // marud as well, in the middle of it
      for (uint32_t i = 0; i < 2; ++i) {  // each is attached
        const uint64_t before = board_->worker[i].operations.load();
        EXPECT_TRUE(wait_until([&] { return board_->worker[i].operations.load() != before || is_broken(); }));
      }
      marud_.kill();
      expect_operations(20);
      marud_.start();
      expect_operations(300);
    }
    stop_workers();
    expect_exact();
  }
  std::printf("%llu clients killed\n", static_cast<unsigned long long>(killed));
}

TEST_F(Tenants, AHardLimitIsNeverPassed) {
  constexpr uint64_t kLimit = 100 * 4096;
  ASSERT_EQ(set("a", {{"hard", kLimit}}).value("hard_bytes", uint64_t{0}), kLimit);
  const uint64_t id = std::stoull(quota("a").at("id").get<std::string>());
  ControlMap map(marud_.socket_path());
  for (uint32_t i = 0; i < kWorkersEach; ++i) start_worker(i, 120, 1);
  uint64_t most = 0;
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    expect_operations(random_.below(200));
    if (round == 30) {
      workers_[0]->kill();
      start_worker(0, 120, 1);
    }
    // At one instant: everybody stands still, wherever it is.
    for (auto& worker : workers_) worker->signal(SIGSTOP);
    for (auto& worker : workers_) EXPECT_TRUE(wait_until([&] { return stands_still(*worker); }));
    uint64_t bytes = 0;
    for (uint32_t page = 0; page < map.region().pages(); ++page) {
      uint64_t tenant = 0;
      const uint64_t size = shm::tenant_bytes(map.region(), page, &tenant);
      if (tenant == id) bytes += size;
    }
    EXPECT_LE(bytes, kLimit);
    most = std::max(most, bytes);
    for (auto& worker : workers_) worker->signal(SIGCONT);
  }
  stop_workers();
  uint64_t refused = 0;
  for (auto& worker : board_->worker) refused += worker.refused.load();
  EXPECT_GT(refused, 0u);
  EXPECT_GE(most, kLimit * 9 / 10) << "the limit was never near";
  std::printf("at most %llu of %llu bytes, %llu stores refused\n", static_cast<unsigned long long>(most),
              static_cast<unsigned long long>(kLimit), static_cast<unsigned long long>(refused));
}

TEST_F(Tenants, RefusalsLeaveTheBufferWithItsOwner) {
  TestClient client(marud_.socket_path());
  uint64_t id = 0;
  ASSERT_EQ(maru_tenant(client, "a", 1, &id), 0);
  set("a", {{"hard", 4096}});
  maru_buffer buffers[2];
  ASSERT_EQ(maru_alloc_batch(client, 100, 2, buffers), 0);
  const maru_key one = key_of("1", id), two = key_of("2", id);
  ASSERT_EQ(maru_store(client, &one, &buffers[0], nullptr, nullptr), 0);
  EXPECT_EQ(maru_store(client, &two, &buffers[1], nullptr, nullptr), -EDQUOT);
  ASSERT_EQ(maru_delete(client, &one), 0);
  EXPECT_EQ(maru_store(client, &two, &buffers[1], nullptr, nullptr), 0) << "after a delete there is room";
  ASSERT_EQ(maru_alloc(client, 100, &buffers[0]), 0);
  marud_.ask({{"command", "quota.mode"}, {"listed", true}});
  uint64_t stranger = 0;
  ASSERT_EQ(maru_tenant(client, "stranger", 8, &stranger), 0);
  const maru_key other = key_of("3", stranger);
  EXPECT_EQ(maru_store(client, &other, &buffers[0], nullptr, nullptr), -EPERM);
  EXPECT_EQ(maru_abort(client, &buffers[0]), 0);
  EXPECT_EQ(client.store("of nobody", "text"), 0) << "who names no tenant is not refused";
}

class TenantsRestart : public Tenants, public ::testing::WithParamInterface<bool> {
 protected:
  TenantsRestart() : Tenants({tenant_pool(GetParam())}) {}
};

TEST_P(TenantsRestart, LimitsAndUsageSurviveMarud) {
  TestClient client(marud_.socket_path());
  uint64_t id = 0;
  ASSERT_EQ(maru_tenant(client, "a", 1, &id), 0);
  ASSERT_FALSE(set("a", {{"hard", 3 * 4096}}).contains("refused"));
  ASSERT_FALSE(set("0x00ff", {{"soft", 5}}).contains("refused"));
  ASSERT_FALSE(marud_.ask({{"command", "quota.default"}, {"soft", 1 << 20}}).contains("refused"));
  const auto store = [&](const char* text) {
    const maru_key key = key_of(text, id);
    return maru_store_copy(client, &key, text, 1, nullptr, nullptr);
  };
  EXPECT_EQ(store("1"), 0);
  EXPECT_EQ(store("2"), 0);
  const uint64_t epoch = maru_daemon_epoch(client);
  marud_.kill();
  marud_.start();
  // The connection to the killed one may last a moment longer, and then it is no new one that there is.
  ASSERT_TRUE(wait_until([&] { return maru_reattach(client) == 0 && maru_daemon_epoch(client) == epoch + 1; }));
  ASSERT_TRUE(wait_until([&] { return !quota("a").contains("counting"); })) << quota("a");
  EXPECT_EQ(used("a"), 2 * 4096u);
  EXPECT_EQ(quota("a").value("hard_bytes", 0), 3 * 4096);
  EXPECT_EQ(quota("0x00ff").value("soft_bytes", 0), 5);
  EXPECT_EQ(marud_.ask({{"command", "quota.default"}}).value("soft_bytes", 0), 1 << 20);
  EXPECT_EQ(store("3"), 0);
  EXPECT_EQ(store("4"), -EDQUOT);
}

INSTANTIATE_TEST_SUITE_P(Pools, TenantsRestart, ::testing::Values(false, true),
                         [](const auto& about) { return about.param ? "File" : "Memory"; });

PoolWish pool_of_small_table() {
  PoolWish pool = tenant_pool();
  pool.bytes = 16u << 20;
  pool.more = "tenants_max = 64\ndefault_hard_limit = 8192\n";
  return pool;
}

class TenantsBeyondTheTable : public Tenants {
 protected:
  TenantsBeyondTheTable() : Tenants({pool_of_small_table()}) {}
};

// With more tenants than the table has places, too, by many threads and clients at once.
TEST_F(TenantsBeyondTheTable, NobodyPassesAHardLimit) {
  constexpr int kClients = 3, kThreads = 2, kTenants = 300, kBlocks = 3;
  std::atomic<uint64_t> refused{0}, others{0};
  {
    std::vector<std::unique_ptr<TestClient>> clients;
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) clients.push_back(std::make_unique<TestClient>(marud_.socket_path()));
    for (int i = 0; i < kClients * kThreads; ++i)
      threads.emplace_back([&, i] {
        TestClient& client = *clients[size_t(i % kClients)];
        for (int t = 0; t < kTenants; ++t) {
          const std::string name = "tenant " + std::to_string(t);
          uint64_t id = 0;
          if (maru_tenant(client, name.data(), name.size(), &id) != 0) ++others;
          for (int k = 0; k < kBlocks; ++k) {
            const std::string text = std::to_string(i) + "." + std::to_string(k);
            const int result = client.store(key_of(text, id), "x");
            refused += result == -EUSERS;
            others += result != 0 && result != -EUSERS && result != -EDQUOT && result != -EAGAIN && result != -EXFULL;
          }
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(others.load(), 0u);
  EXPECT_GT(refused.load(), 0u);
  for (const auto& [id, bytes] : listed_bytes()) EXPECT_LE(bytes, 8192u) << id;
  const json tenants = marud_.pool_status().at("tenants");
  EXPECT_EQ(tenants.value("refused_without_place", uint64_t{0}), refused.load()) << tenants.dump();
  EXPECT_TRUE(marud_.has_logged("refuses stores, 1 until now: "));
}

// Until the order of eviction asks for the tenants' classes.
TEST_F(Tenants, AFloodTakesNothingFromATenantWithinItsLimit) {
  TestClient quiet(marud_.socket_path()), loud(marud_.socket_path());
  uint64_t a = 0, b = 0;
  ASSERT_EQ(maru_tenant(quiet, "a", 1, &a), 0);
  ASSERT_EQ(maru_tenant(loud, "b", 1, &b), 0);
  const uint64_t pages = quiet.geometry().pages;
  set("a", {{"soft", pages / 4 * 4096}});
  set("b", {{"soft", pages / 4 * 4096}});
  for (uint64_t i = 0; i < pages / 4; ++i) {
    const std::string text = "quiet " + std::to_string(i);
    const maru_key key = key_of(text, a);
    ASSERT_EQ(maru_store_copy(quiet, &key, "x", 1, nullptr, nullptr), 0);
  }
  for (uint64_t i = 0; i < 4 * pages; ++i) {
    const std::string text = "loud " + std::to_string(i);
    const maru_key key = key_of(text, b);
    const int result = maru_store_copy(loud, &key, "x", 1, nullptr, nullptr);
    ASSERT_TRUE(result == 0 || result == -EXFULL) << i << ": " << result;  // rare: both of its buckets are full
  }
  for (uint64_t i = 0; i < pages / 4; ++i) {
    const std::string text = "quiet " + std::to_string(i);
    const maru_key key = key_of(text, a);
    EXPECT_EQ(maru_exists(quiet, &key), 1) << text;
  }
  EXPECT_EQ(used("a"), pages / 4 * 4096);
}

}  // namespace
}  // namespace maru::test
