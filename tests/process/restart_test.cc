// marud is killed and started again, or stands still, while clients work: they go on, and no block that was stored and
// neither deleted nor evicted is missed.
//
// MARU_RESTARTS says how often (a few in the test command, more in scripts/soak).
#include "libmaru/wire/socket.h"
#include "maru/format/control_region.h"
#include "tests/process/baseline.h"
#include "tests/process/board.h"
#include "tests/process/keeper.h"
#include "tests/process/puppet.h"
#include "tests/support/child_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace maru::test {
namespace {

constexpr uint32_t kKeepers = 3;
constexpr uint64_t kKeysEach = 800;

// Everything that the keepers store fits several times over.
enum class Where : uint8_t { kMemory, kFile, kTwoFiles };
PoolWish large_pool(Where where) {
  PoolWish pool;
  pool.bytes = 32u << 20;
  pool.in_file = where == Where::kFile;
  pool.in_two_files = where == Where::kTwoFiles;
  return pool;
}

class Restart : public ::testing::TestWithParam<Where> {
 protected:
  Restart() : marud_({large_pool(GetParam())}), seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
    for (uint32_t i = 0; i < kKeepers; ++i)
      keepers_[i] = std::make_unique<ChildProcess>(
          std::vector<std::string>{own_program(), "--role", "keeper", marud_.socket_path(),
                                   std::to_string(random_.next()), std::to_string(board_.fd()), std::to_string(i),
                                   std::to_string(kKeysEach)},
          "", std::vector<int>{board_.fd()});
  }

  bool all_run() {
    for (auto& keeper : keepers_)
      if (!keeper->is_running()) return false;
    return true;
  }
  // Every keeper reads `hits` blocks more and, if asked, stores.
  void expect_progress(uint64_t hits, uint64_t stores, const char* when) {
    std::array<uint64_t, kKeepers> hits_before{}, stores_before{};
    for (uint32_t i = 0; i < kKeepers; ++i) {
      hits_before[i] = board_->worker[i].hits.load();
      stores_before[i] = board_->worker[i].stores.load();
    }
    const bool is_done = wait_until([&] {
      if (!all_run()) return true;
      for (uint32_t i = 0; i < kKeepers; ++i)
        if (board_->worker[i].hits.load() < hits_before[i] + hits ||
            board_->worker[i].stores.load() < stores_before[i] + stores)
          return false;
      return true;
    });
    EXPECT_TRUE(is_done) << "no progress " << when;
    EXPECT_TRUE(all_run()) << "a keeper ended " << when;
  }
  void wait_until_filled() {
    EXPECT_TRUE(wait_until([&] {
      for (uint32_t i = 0; i < kKeepers; ++i)
        if (board_->worker[i].kept.load() < kKeysEach) return !all_run();
      return true;
    })) << "the keepers did not store what they should";
  }
  void wait_until_adopted(uint64_t epoch) {
    EXPECT_TRUE(wait_until([&] {
      const auto status = marud_.pool_status();
      return status.at("condition") == "serving" && status.at("epoch") == epoch &&
             marud_.ask({{"command", "status"}}).at("connections") > kKeepers;
    })) << marud_.pool_status().dump(1);
    EXPECT_TRUE(wait_until([&] {
      for (uint32_t i = 0; i < kKeepers; ++i)
        if (board_->worker[i].epochs.load() != epoch) return !all_run();
      return true;
    })) << "a client does not see the new epoch";
  }
  void stop_keepers() {
    board_->stop.store(1);
    for (auto& keeper : keepers_) {
      const auto ended = keeper->wait();
      EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a keeper hangs");
    }
  }
  void expect_everything_kept() {
    TestClient reader(marud_.socket_path());
    for (uint32_t worker = 0; worker < kKeepers; ++worker)
      for (uint64_t i = 0; i < board_->worker[worker].kept.load(); ++i) {
        if (i % kKeeperChanging != 0) {
          EXPECT_EQ(reader.exists(keeper_key(worker, i)), 1) << keeper_key(worker, i);
        }
      }
  }

  MarudProcess marud_;
  uint64_t seed_;
  Random random_;
  Board board_;
  std::array<std::unique_ptr<ChildProcess>, kKeepers> keepers_;
};

TEST_P(Restart, ClientsMissNothingWhileMarudIsKilledAndStartedAgain) {
  const uint64_t restarts = number_from_environment("MARU_RESTARTS", 5);
  const auto before = marud_.pool_status();
  uint64_t epoch = before.at("epoch");
  for (uint64_t i = 0; i < restarts && !HasFailure(); ++i) {
    // The first kill comes while the keepers still rent memory.
    expect_progress(i == 0 ? 50 : random_.below(2000), 1, "before marud is killed");
    if (i == 1) wait_until_filled();
    marud_.kill();
    expect_progress(500, i > 1 ? 20 : 0, "while there is no marud");
    marud_.start();
    wait_until_adopted(++epoch);
    EXPECT_EQ(marud_.pool_status().at("uuid"), before.at("uuid")) << "the pool is another one";
  }
  stop_keepers();
  expect_everything_kept();
  const ControlMap map(marud_.socket_path());
  expect_baseline(marud_, map);
  EXPECT_GT(expect_intact_blocks(marud_, map), 0u);
  std::printf("marud restarted %llu times, %llu hits, %llu stores\n", static_cast<unsigned long long>(restarts),
              static_cast<unsigned long long>(board_.total(&BoardWords::Worker::hits)),
              static_cast<unsigned long long>(board_.total(&BoardWords::Worker::stores)));
}

TEST_P(Restart, ClientsMissNothingWhileMarudStandsStill) {
  wait_until_filled();
  for (int i = 0; i < 3 && !HasFailure(); ++i) {
    marud_.suspend();
    expect_progress(1000, 30, "while marud stands still");
    marud_.resume();
    expect_progress(100, 1, "after marud goes on");
  }
  EXPECT_EQ(marud_.pool_status().at("epoch"), 1u);
  stop_keepers();
  expect_everything_kept();
  const ControlMap map(marud_.socket_path());
  expect_baseline(marud_, map);
}

TEST_P(Restart, ClientsThatDieWhileMarudIsAwayAreReclaimed) {
  wait_until_filled();
  Puppet doomed(marud_.socket_path());
  ASSERT_EQ(doomed.store("theirs", std::string(100, 'x')), 0);
  ASSERT_EQ(doomed.retrieve("theirs").at("result"), 0);
  ASSERT_EQ(doomed.ask({{"do", "alloc"}, {"bytes", 9000}, {"buffers", 4}}).at("result"), 0);
  const uint64_t epoch = marud_.pool_status().at("epoch");
  marud_.kill();
  doomed.process().kill();
  marud_.start();
  wait_until_adopted(epoch + 1);
  stop_keepers();
  const ControlMap map(marud_.socket_path());
  expect_baseline(marud_, map);
  TestClient reader(marud_.socket_path());
  EXPECT_EQ(reader.text("theirs"), std::string(100, 'x'));
  expect_everything_kept();
}

INSTANTIATE_TEST_SUITE_P(Of, Restart, ::testing::Values(Where::kMemory, Where::kFile, Where::kTwoFiles),
                         [](const auto& which) {
                           return which.param == Where::kMemory ? "MemoryPool"
                                  : which.param == Where::kFile ? "FilePool"
                                                                : "PoolInTwoFiles";
                         });

TEST(RestartAlone, MemoryPoolWithoutClientsIsGoneAndSaysSo) {
  MarudProcess marud({PoolWish{}}, 100);
  {
    TestClient client(marud.socket_path());
    ASSERT_EQ(client.store("k", "text"), 0);
  }
  const auto before = marud.pool_status();
  marud.kill();
  marud.start();
  TestClient client(marud.socket_path());
  EXPECT_EQ(client.exists("k"), 0);
  EXPECT_TRUE(marud.has_logged("nobody handed its memory back, its blocks are lost")) << marud.log();
  EXPECT_NE(marud.pool_status().at("uuid"), before.at("uuid"));
  EXPECT_EQ(client.store("k", "a new pool"), 0);
  EXPECT_EQ(client.text("k"), "a new pool");
}

TEST(RestartAlone, ClientOfThePoolThatIsGoneIsTold) {
  MarudProcess marud({PoolWish{}}, 50);
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  ASSERT_EQ(client.store("k", "text"), 0);
  marud.kill();
  // Somebody else is first and waits out the grace; then the pool begins anew.
  marud.start();
  {
    TestClient another(marud.socket_path());
    EXPECT_EQ(another.exists("k"), 0);
  }
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == -ESTALE; }));
  EXPECT_EQ(client.text("k"), "text") << "what it has mapped stays readable";
}

// Whether the pool in a file of one host was left in order.
bool is_left_in_order(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  format::Header header;
  uint64_t clean = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  file.seekg(std::streamoff(header.sections[format::kSectionHosts].offset + offsetof(format::HostRecord, clean)));
  file.read(reinterpret_cast<char*>(&clean), sizeof(clean));
  return file && clean == 1;
}

// More processes end at once than marud looks at in the turn in which it is told to stop.
TEST(RestartAlone, WhatProcessesHeldThatEndedWithMarudIsTakenBackBeforeThePoolIsLeftInOrder) {
  constexpr size_t kClients = 48;
  PoolWish wish;
  wish.in_file = true;
  wish.lanes = 64;
  wish.region_bytes = 65536;  // one for each
  MarudProcess marud({wish});
  std::vector<std::unique_ptr<Puppet>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Puppet>(marud.socket_path()));
    ASSERT_EQ(clients.back()->store("key " + std::to_string(i), "payload"), 0);
  }
  EXPECT_FALSE(is_left_in_order(marud.pool_file("default")));
  marud.suspend();
  for (const auto& client : clients) client->process().kill();
  ASSERT_EQ(::kill(marud.pid(), SIGTERM), 0);
  marud.resume();
  marud.stop();
  EXPECT_TRUE(is_left_in_order(marud.pool_file("default")));
  marud.start();
  EXPECT_EQ(marud.log().find("ended while marud was away"), std::string::npos);
  TestClient reader(marud.socket_path());
  for (size_t i = 0; i < kClients; ++i) EXPECT_EQ(reader.text("key " + std::to_string(i)), "payload");
}

TEST(RestartAlone, APoolThatWaitsForItsMemoryCanBeGivenUp) {
  MarudProcess marud;
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  ASSERT_EQ(client.store("k", "text"), 0);
  marud.kill();
  marud.start();
  const auto ask = [&](const char* command, bool discard = false) {
    return marud.ask({{"command", command}, {"name", "default"}, {"discard", discard}});
  };
  ASSERT_EQ(marud.pool_status().value("condition", ""), "waiting");
  const auto drained = ask("device.drain");
  EXPECT_EQ(drained.value("refused", 0), EBUSY) << drained.dump();
  EXPECT_NE(drained.value("text", "").find("remove default --yes"), std::string::npos) << drained.dump();
  const auto unconfirmed = ask("device.remove");
  EXPECT_EQ(unconfirmed.value("refused", 0), ENOTEMPTY) << unconfirmed.dump();
  EXPECT_EQ(marud.pool_status().value("condition", ""), "waiting");
  const auto removed = ask("device.remove", true);
  EXPECT_EQ(removed.value("clients", 1), 0) << removed.dump();
  EXPECT_TRUE(wait_until([&] { return marud.ask({{"command", "device.list"}}).at("devices").empty(); }));
  // The kernel closes the connections of a killed marud some milliseconds later, with its io_uring.
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) != 0; }));
  EXPECT_EQ(client.text("k"), "text") << "what it has mapped stays readable";
  const auto added = ask("device.add");
  EXPECT_TRUE(added.contains("added")) << added.dump();
  TestClient another(marud.socket_path());
  EXPECT_EQ(another.exists("k"), 0);
  EXPECT_EQ(another.store("k", "a new pool"), 0);
}

TEST(RestartAlone, FilePoolWithoutClientsStays) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  {
    TestClient client(marud.socket_path());
    ASSERT_EQ(client.store("parent", "text"), 0);
    ASSERT_EQ(client.store("child", "text below", "parent"), 0);
  }
  const auto before = marud.pool_status();
  marud.kill();
  marud.start();
  EXPECT_EQ(marud.pool_status().at("uuid"), before.at("uuid"));
  EXPECT_EQ(marud.pool_status().at("epoch"), before.at("epoch").get<uint64_t>() + 1);
  TestClient client(marud.socket_path());
  EXPECT_EQ(client.text("child"), "text below");
  EXPECT_EQ(client.remove("parent"), -ENOTEMPTY);
  marud.stop();
  marud.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_EQ(client.text("parent"), "text");
}

// What stands in the pool is of another pid namespace, where the client's pid was another one, and may be anybody's here.
void expect_judgement_elsewhere(bool has_lock) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  const ControlMap map(marud.socket_path());
  auto puppet = std::make_unique<Puppet>(marud.socket_path());
  ASSERT_EQ(puppet->store("k", "text"), 0);
  ASSERT_EQ(puppet->retrieve("k").at("result"), 0);
  const pid_t pid = puppet->process().pid();
  uint32_t lane = 1;
  while (lane < map.region().lanes() && map.region().identity(lane).process.load_relaxed() != uint64_t(pid)) ++lane;
  ASSERT_LT(lane, map.region().lanes());
  format::LaneIdentity& identity = map.region().identity(lane);
  const uint64_t own = identity.pid_namespace.load_relaxed();
  EXPECT_NE(own, 0u);
  const auto take_away = [&] {
    identity.pid_namespace.store_relaxed(own + 1);
    identity.process.store_relaxed(1);
    const uint64_t state = identity.state.load_relaxed();
    EXPECT_NE(state & format::kLaneHasLock, 0u);
    if (!has_lock) identity.state.store_relaxed(state & ~format::kLaneHasLock);
  };
  const std::string said = "lane " + std::to_string(lane) + " of pool \"default\" counts as alive";

  // It stands still, so that it cannot attach again.
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  marud.kill();
  take_away();
  marud.start();
  EXPECT_TRUE(marud.has_logged(said));
  EXPECT_EQ(map.count_pins(lane), 1u);
  // Then it is known by when it started, and keeps its lane.
  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  EXPECT_TRUE(wait_until([&] { return identity.pid_namespace.load_relaxed() == own; }));
  EXPECT_EQ(identity.process.load_relaxed(), uint64_t(pid));
  EXPECT_EQ(map.count_pins(lane), 1u);
  EXPECT_EQ(puppet->release("k"), 0);

  // It ends while marud is away. Its lock tells, or marud sees all processes and none is left that started when it did.
  marud.kill();
  identity.state.store_relaxed(identity.state.load_relaxed() | format::kLaneHasLock);
  puppet.reset();
  take_away();
  identity.start_time.store_relaxed(uint64_t(1) << 40);  // another process may have started when it did
  marud.start();
  const bool has_proof = has_lock || own == 0xEFFF'FFFC;
  EXPECT_TRUE(marud.has_logged(has_proof ? "ended while marud was away: lane " + std::to_string(lane) : said));
  const auto state = has_proof ? format::LaneState::kFree : format::LaneState::kLive;
  EXPECT_TRUE(wait_until([&] { return (identity.state.load_acquire() & 0xFF) == uint64_t(state); }));
}

TEST(RestartAlone, AProcessOfAnotherPidNamespaceIsNotTakenForDead) { expect_judgement_elsewhere(false); }
TEST(RestartAlone, AProcessOfAnotherPidNamespaceIsDeadWhenItsLockIsGone) { expect_judgement_elsewhere(true); }

// What is chosen by the size of a pool is chosen when it is formatted, by the marud of that day.
TEST(RestartAlone, APoolKeepsLanesThatItsConfigurationDoesNotSay) {
  PoolWish pool;
  pool.in_file = true;
  pool.bytes = 128u << 20;
  pool.page_bytes = 64u << 10;
  pool.region_bytes = 8u << 20;
  pool.lanes = pool.pins = 0;
  MarudProcess chosen({pool});
  EXPECT_EQ(chosen.pool_status().at("lanes").at("max"), 63) << "besides marud's own";
  MarudProcess kept({pool}, 0, [&](const TemporaryDirectory& directory) {
    const std::string socket = directory.file("first.sock");
    ChildProcess first({marud_program(), "--file", directory.file("default.pool"), "--size", "128MiB", "--lanes", "256",
                        "--pins", "16384", "--socket", socket},
                       directory.file("first.log"));
    const auto is_up = [&] { return wire::connect_to(socket).has_value(); };
    ASSERT_TRUE(wait_until(is_up));
    first.signal(SIGTERM);
    ASSERT_TRUE(first.wait());
  });
  EXPECT_EQ(kept.pool_status().at("lanes").at("max"), 255);
  TestClient client(kept.socket_path());
  maru_geometry geometry = {};
  geometry.size = sizeof(geometry);
  ASSERT_EQ(maru_get_geometry(client, &geometry), 0);
  EXPECT_EQ(geometry.pins_max, 16384u);
  EXPECT_EQ(kept.log().find("keeps what it was formatted with"), std::string::npos) << kept.log();
}

TEST(RestartAlone, ImpatientClientAsksASlowMarudOnce) {
  MarudProcess marud({large_pool(Where::kFile)});
  TestClient client(marud.socket_path(), "default", 20, MARU_ATTACH_NO_SESSION_THREAD);
  marud.kill();
  marud.start();
  marud.suspend();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(maru_reattach(client), -ETIMEDOUT);
  marud.resume();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  const std::string back = "is back on lane";
  EXPECT_TRUE(marud.has_logged(back));
  const std::string log = marud.log();
  size_t times = 0;
  for (size_t at = log.find(back); at != std::string::npos; at = log.find(back, at + 1)) ++times;
  EXPECT_EQ(times, 1u) << log;
}

// The process lives on, so that nothing else would tell marud that the lane is free.
TEST(RestartAlone, ClientThatLeavesTellsAMarudItHasNotMet) {
  MarudProcess marud({large_pool(Where::kFile)});
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  marud.kill();
  marud.start();
  EXPECT_EQ(marud.pool_status().at("lanes").at("live"), 1);
  client.detach();
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; }));
}

TEST(RestartAlone, EpochTellsAboutAQuickRestart) {
  MarudProcess marud;
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  const uint64_t before = maru_daemon_epoch(client);
  marud.kill();
  // A killed marud's sockets go when the kernel has taken down its io_uring.
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == -ECONNREFUSED; }));
  marud.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_EQ(maru_daemon_epoch(client), before + 1);
  EXPECT_EQ(client.store("k", "text"), 0);
}

}  // namespace
}  // namespace maru::test
