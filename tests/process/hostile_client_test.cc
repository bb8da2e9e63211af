// Clients that do their worst, beside others that mean well: those lose nothing and go on, marud stays, and what the hostile
// ones held comes back when they are gone. How long the others' operations take, alone and beside them, is printed and not
// asserted: on a machine with fewer processors than processes it is the kernel that says how long, and whose turn it is; so
// marud has the priority here that its unit gives it, where this may be set. What marud adds is counted
// elsewhere: a find makes no system call (HotPathTest), and whoever asks one thing is answered after a few of what another
// user has asked already (UserLimits.NobodyWaitsForAllThatAnotherUserAsks, FairQueue).
//
// MARU_HOSTILE_SECONDS says for how long (3 in the test command; scripts/hostile takes a minute), MARU_SEED repeats the
// choices.
#include "tests/process/baseline.h"
#include "tests/process/board.h"
#include "tests/process/keeper.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace maru::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kKeepers = 2, kVandals = 2;
constexpr uint64_t kKeysEach = 400;
constexpr uid_t kHostileUser = 54'321;
constexpr int kNiceOfUnit = -10;  // Nice= of systemd/marud.service

struct Latencies {
  std::vector<uint64_t> nanoseconds;
  template <typename F>
  void time(F&& act) {
    const auto begun = Clock::now();
    act();
    nanoseconds.push_back(uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count()));
  }
  double microseconds(double share) {
    if (nanoseconds.empty()) return 0;
    std::sort(nanoseconds.begin(), nanoseconds.end());
    return double(nanoseconds[size_t(share * double(nanoseconds.size() - 1))]) / 1000;
  }
};

// marud as its unit starts it, before all others in the queue for a processor, where that is permitted: else as any process.
class AsTheUnit {
 public:
  explicit AsTheUnit(std::vector<PoolWish> pools)
      : nice_before_(::getpriority(PRIO_PROCESS, 0)),
        is_preferred_(::setpriority(PRIO_PROCESS, 0, kNiceOfUnit) == 0),
        marud_(std::move(pools)) {
    if (is_preferred_) ::setpriority(PRIO_PROCESS, 0, nice_before_);
    std::printf("marud's nice value is %d%s\n", ::getpriority(PRIO_PROCESS, id_t(marud_.pid())),
                is_preferred_ ? ", as its unit says" : ": its unit's may not be set here");
  }
  MarudProcess& marud() { return marud_; }

 private:
  int nice_before_;
  bool is_preferred_;
  MarudProcess marud_;
};

class HostileClient : public ::testing::Test {
 protected:
  static std::vector<PoolWish> pools(bool as_another) {
    PoolWish sound, damaged;
    sound.bytes = 32u << 20;
    sound.checksums = true;
    damaged.name = "damaged";
    damaged.bytes = 4u << 20;
    damaged.region_bytes = 256u << 10;
    if (as_another) {
      const std::string user = std::to_string(kHostileUser);
      sound.more = "users = [" + user + "]\n";
      damaged.more = "\n[[limit]]\nuser = " + user + "\nregions = 2\nconnections = 8\n";
    }
    return {sound, damaged};
  }

  HostileClient() : seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
    if (!as_another_)
      std::printf("not root: the hostile clients are the same user as the others, and do not rent memory\n");
    marud_.directory().open_to_everybody();
  }

  std::unique_ptr<ChildProcess> start(const std::string& role, std::vector<std::string> more) {
    std::vector<std::string> command = {own_program(),
                                        "--role",
                                        role,
                                        marud_.socket_path(),
                                        std::to_string(random_.next()),
                                        std::to_string(board_.fd())};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(command, "", std::vector<int>{board_.fd()});
  }
  uint64_t hits() const { return board_->worker[0].hits.load() + board_->worker[1].hits.load(); }
  bool all_run() {
    return std::all_of(processes_.begin(), processes_.end(), [](auto& process) { return process->is_running(); });
  }

  // What one that means well does, over and over.
  void work(std::chrono::milliseconds time, Latencies& reads, Latencies& requests) {
    const auto until = Clock::now() + time;
    for (uint64_t i = 0; Clock::now() < until && !HasFailure(); ++i) {
      const std::string key = "mine " + std::to_string(i % 50);
      reads.time([&] { EXPECT_EQ(client_->text(key), "text of " + key); });
      if (i % 32 == 0) requests.time([&] { EXPECT_EQ(client_->remove_tree("nothing of this name"), -ENOENT); });
    }
  }

  const bool as_another_ = ::geteuid() == 0;
  AsTheUnit started_{pools(as_another_)};
  MarudProcess& marud_ = started_.marud();
  uint64_t seed_;
  Random random_;
  Board board_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  std::unique_ptr<TestClient> client_;
};

TEST_F(HostileClient, TheOthersKeepTheirDataAndMarudGoesOn) {
  const std::chrono::seconds seconds(number_from_environment("MARU_HOSTILE_SECONDS", 3));
  for (uint32_t i = 0; i < kKeepers; ++i)
    processes_.push_back(start("keeper", {std::to_string(i), std::to_string(kKeysEach)}));
  ASSERT_TRUE(wait_until([&] {
    return !all_run() || (board_->worker[0].kept.load() == kKeysEach && board_->worker[1].kept.load() == kKeysEach);
  }));
  client_ = std::make_unique<TestClient>(marud_.socket_path());
  for (int i = 0; i < 50; ++i) {
    const std::string key = "mine " + std::to_string(i);
    ASSERT_EQ(client_->store(key, "text of " + key), 0);
  }
  Latencies reads_alone, requests_alone, reads, requests;
  work(std::chrono::milliseconds(seconds) / 3, reads_alone, requests_alone);

  const std::string user = std::to_string(as_another_ ? kHostileUser : 0);
  for (uint32_t i = 0; i < kVandals; ++i) processes_.push_back(start("vandal", {std::to_string(kKeepers + i), user}));
  processes_.push_back(std::make_unique<ChildProcess>(
      std::vector<std::string>{own_program(), "--role", "scribbler", marud_.socket_path(),
                               std::to_string(random_.next()), std::to_string(board_.fd()),
                               std::to_string(format::kSectionCount)},  // in all of the pool "damaged"
      "", std::vector<int>{board_.fd()}));
  const auto is_attached = [&](uint32_t i) { return board_->worker[kKeepers + i].hits.load() == 1; };
  ASSERT_TRUE(wait_until([&] { return !all_run() || (is_attached(0) && is_attached(1)); }));
  for (uint32_t i = 0; i < kVandals; ++i) board_->worker[kKeepers + i].kept.store(1);
  const auto operations = [&](uint32_t i) { return board_->worker[kKeepers + i].operations.load(); };
  ASSERT_TRUE(wait_until([&] { return !all_run() || (operations(0) > 0 && operations(1) > 0); }));
  const uint64_t hits_before = hits();
  work(seconds, reads, requests);
  EXPECT_TRUE(wait_until([&] { return !all_run() || hits() > hits_before + 100; })) << "the keepers stand still";
  EXPECT_TRUE(all_run()) << "one of the processes ended";
  EXPECT_TRUE(marud_.is_running());
  EXPECT_TRUE(
      marud_.has_logged(" is dropped: "));  // while they are at it: on a slow machine they may have done little yet
  const uint64_t steps = operations(0) + operations(1);

  while (processes_.size() > kKeepers) {
    processes_.back()->kill();
    processes_.pop_back();
  }
  board_->stop.store(1);
  for (auto& keeper : processes_) {
    const auto ended = keeper->wait();
    EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a keeper hangs");
  }
  for (uint32_t worker = 0; worker < kKeepers; ++worker)
    for (uint64_t i = 0; i < kKeysEach; ++i) {
      if (i % kKeeperChanging == 0) continue;
      EXPECT_EQ(client_->exists(keeper_key(worker, i)), 1) << keeper_key(worker, i);
    }
  EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "status"}}).at("lanes") == 1; })) << "lanes of the dead";
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client_->remove("mine " + std::to_string(i)), 0);
  client_.reset();
  const ControlMap map(marud_.socket_path());
  expect_baseline(marud_, map);
  EXPECT_GT(expect_intact_blocks(marud_, map), 0u);
  std::printf("%llu steps of hostile clients\n", static_cast<unsigned long long>(steps));
  const auto print = [](const char* what, Latencies& alone, Latencies& beside) {
    std::printf("%-8s  alone p50 %.1f us, p99 %.1f us (%zu)   beside them p50 %.1f us, p99 %.1f us (%zu)\n", what,
                alone.microseconds(0.5), alone.microseconds(0.99), alone.nanoseconds.size(), beside.microseconds(0.5),
                beside.microseconds(0.99), beside.nanoseconds.size());
  };
  print("reads", reads_alone, reads);
  print("requests", requests_alone, requests);
}

}  // namespace
}  // namespace maru::test
