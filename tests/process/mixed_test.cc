// Everything at once: clients that keep their blocks, clients that churn, and at random moments a client is killed, or marud,
// or marud reads its configuration again, evicts, clears, answers HTTP, drains a pool and takes it back. At the end nothing is
// lost: every block that was kept is there and whole, no invariant is broken, and both pools are at their baseline.
//
// MARU_MIXED_SECONDS says for how long (10 in the test command, half an hour in scripts/soak --mixed), MARU_SEED repeats what
// is done in which order. The instants are not repeatable.
#include "tests/process/baseline.h"
#include "tests/process/board.h"
#include "tests/process/churner.h"
#include "tests/process/keeper.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint32_t kKeepers = 2, kChurners = 3, kWorkers = kKeepers + kChurners;
constexpr uint64_t kKeysEach = 500;

// Where blocks are kept there is room for all of them; where there is churn there is not.
std::vector<PoolWish> pools() {
  PoolWish kept, churned;
  kept.bytes = 32u << 20;
  kept.checksums = true;
  churned.name = "churned";
  churned.bytes = 4u << 20;
  churned.region_bytes = 256u << 10;
  churned.checksums = true;
  churned.in_file = true;
  churned.high_watermark = 0.9;
  churned.more = "\n[http]\n";
  return {kept, churned};
}

class Mixed : public ::testing::Test {
 protected:
  Mixed() : seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
    for (uint32_t i = 0; i < kWorkers; ++i) start(i);
  }

  void start(uint32_t i) {
    std::vector<std::string> command = {own_program(),
                                        "--role",
                                        i < kKeepers ? "keeper" : "churner",
                                        marud_.socket_path(),
                                        std::to_string(random_.next()),
                                        std::to_string(board_.fd()),
                                        std::to_string(i)};
    if (i < kKeepers)
      command.push_back(std::to_string(kKeysEach));
    else
      command.insert(command.end(), {std::to_string(1 + i % 2), "churned"});
    workers_[i] = std::make_unique<ChildProcess>(command, "", std::vector<int>{board_.fd()});
  }
  bool is_broken() {
    for (auto& worker : workers_)
      if (!worker->is_running()) return true;
    return false;
  }
  bool has_kept_all(uint32_t keeper) const { return board_->worker[keeper].kept.load() == kKeysEach; }
  uint64_t operations() const { return board_.total(&BoardWords::Worker::operations); }
  void expect_operations(uint64_t more) {
    const uint64_t until = operations() + more;
    EXPECT_TRUE(wait_until([&] { return operations() >= until || is_broken(); })) << "the workers stand still";
    for (auto& worker : workers_) {
      if (!worker->is_running()) ADD_FAILURE() << "a worker " << worker->wait()->text();
    }
  }
  bool serve_both() {
    const json status = marud_.ask({{"command", "status"}});
    for (const json& pool : status.at("pools"))
      if (pool.at("condition") == "waiting") return false;
    return true;
  }

  // -- what happens ---------------------------------------------------------------------------------------------------

  void kill_a_client() {
    const auto victim = uint32_t(random_.below(kWorkers));
    // One that is killed between a block and its note of it would store the block again.
    if (victim < kKeepers && !has_kept_all(victim)) return;
    // A pool in memory lives on in its clients while marud is away, and one of them hands it back.
    workers_[victim]->kill();
    const uint64_t before = board_->worker[victim].operations.load();
    start(victim);
    // A keeper does not come to a marud that is away; afterwards it does not mind.
    if (victim < kKeepers) {
      EXPECT_TRUE(wait_until([&] { return board_->worker[victim].operations.load() > before || is_broken(); }));
    }
    ++counts_["clients killed"];
  }
  void kill_marud() {
    marud_.kill();
    expect_operations(random_.below(300));
    marud_.start();
    EXPECT_TRUE(wait_until([&] { return serve_both(); })) << marud_.log().substr(marud_.log().size() / 2);
    ++counts_["marud killed"];
  }
  void reload() {
    ::kill(marud_.pid(), SIGHUP);
    ++counts_["reloads"];
  }
  void evict() {
    const json reply = marud_.ask({{"command", "evict"}, {"pool", "churned"}, {"pages", 1 + random_.below(200)}});
    EXPECT_FALSE(reply.contains("refused")) << reply.dump();
    ++counts_["evictions"];
  }
  void clear() {
    const json reply = marud_.ask({{"command", "clear"}, {"pool", "churned"}});
    EXPECT_FALSE(reply.contains("refused")) << reply.dump();
    ++counts_["clears"];
  }
  void drain_and_take_back() {
    const json drained = marud_.ask({{"command", "device.drain"}, {"name", "churned"}});
    EXPECT_FALSE(drained.contains("refused")) << drained.dump();
    expect_operations(random_.below(500));
    if (random_.one_in(3)) kill_marud();
    take_back();
    ++counts_["drains"];
  }
  void take_back() {
    const json taken_back = marud_.ask({{"command", "device.cancel"}, {"name", "churned"}});
    EXPECT_FALSE(taken_back.contains("refused")) << taken_back.dump();
  }
  void ask_by_http() {
    static constexpr const char* kPaths[] = {"/status", "/metrics", "/healthcheck", "/conf", "/quota", "/nothing"};
    const std::string path = kPaths[random_.below(std::size(kPaths))];
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, marud_.directory().file("http.sock").c_str());
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: marud\r\nConnection: close\r\n\r\n";
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), ssize_t(request.size()));
    std::string reply(1u << 16, 0);
    size_t size = 0;
    for (ssize_t got; size < reply.size() && (got = ::read(socket.get(), &reply[size], reply.size() - size)) > 0;)
      size += size_t(got);
    EXPECT_EQ(reply.substr(0, 9), "HTTP/1.1 ") << path;
    ++counts_["HTTP requests"];
  }

  void one_thing() {
    switch (random_.below(16)) {
      case 0: return kill_marud();
      case 1: return drain_and_take_back();
      case 2: return clear();
      case 3:
      case 4: return evict();
      case 5: return reload();
      case 6:
      case 7:
      case 8: return ask_by_http();
      default: return kill_a_client();
    }
  }

  // -- and what must be so in the end ---------------------------------------------------------------------------------

  void stop_workers() {
    board_->stop.store(1);
    for (auto& worker : workers_) {
      const auto ended = worker->wait();
      EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a worker hangs");
    }
  }
  void expect_nothing_lost() {
    {
      TestClient reader(marud_.socket_path());
      for (uint32_t worker = 0; worker < kKeepers; ++worker)
        for (uint64_t i = 0; i < board_->worker[worker].kept.load(); ++i) {
          if (i % kKeeperChanging == 0) continue;
          EXPECT_EQ(reader.exists(keeper_key(worker, i)), 1) << keeper_key(worker, i);
        }
    }
    for (const char* pool : {"default", "churned"}) {
      const ControlMap map(marud_.socket_path(), pool);
      expect_baseline(marud_, map, pool);
      const uint64_t blocks = expect_intact_blocks(marud_, map, pool);
      std::printf("pool %s: %llu blocks read back\n", pool, static_cast<unsigned long long>(blocks));
    }
  }

  MarudProcess marud_{pools()};
  uint64_t seed_;
  Random random_;
  Board board_;
  std::array<std::unique_ptr<ChildProcess>, kWorkers> workers_;
  std::map<std::string, uint64_t> counts_;
};

TEST_F(Mixed, NothingIsLostWhateverIsKilledAndAsked) {
  const std::chrono::seconds seconds(number_from_environment("MARU_MIXED_SECONDS", 10));
  const auto until = std::chrono::steady_clock::now() + seconds;
  ASSERT_TRUE(wait_until([&] { return has_kept_all(0) || is_broken(); })) << "the keepers do not store";
  while (std::chrono::steady_clock::now() < until && !HasFailure()) {
    expect_operations(random_.below(400));
    if (!HasFailure()) one_thing();
  }
  stop_workers();
  if (!HasFailure()) expect_nothing_lost();
  std::string text;
  for (const auto& [what, count] : counts_) text += (text.empty() ? "" : ", ") + what + " " + std::to_string(count);
  std::printf("mixed: %s; %llu operations\n", text.c_str(), static_cast<unsigned long long>(operations()));
}

}  // namespace
}  // namespace maru::test
