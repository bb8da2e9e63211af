// Clients are killed at random instants, over and over, and the pool is at its baseline afterwards.
//
// MARU_KILLS says how often (200 in the test command; scripts/soak kills a thousand and more), MARU_SEED repeats the workers'
// choices. The instants themselves are not repeatable: processes are real here, the simulator replays.
#include "tests/process/baseline.h"
#include "tests/process/board.h"
#include "tests/process/churner.h"
#include "tests/support/random.h"
#include "tests/support/wait_until.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <gtest/gtest.h>

namespace maru::test {
namespace {

constexpr uint32_t kWorkers = 4;
constexpr uint64_t kKillsPerRound = 20;
constexpr uint64_t kOperationsBetweenKillsMax = 1500;

class Kill : public ::testing::Test {
 protected:
  Kill() : marud_({pool()}), map_(marud_.socket_path()), seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }
  // About half of what the workers' keys need, so that there is eviction all the time.
  static PoolWish pool() {
    PoolWish pool;
    pool.bytes = 4u << 20;
    pool.region_bytes = 256u << 10;
    pool.lanes = 12;
    return pool;
  }

  void start_worker(uint32_t i) {
    workers_[i] = std::make_unique<ChildProcess>(
        std::vector<std::string>{own_program(), "--role", "churner", marud_.socket_path(),
                                 std::to_string(random_.next()), std::to_string(board_.fd()), std::to_string(i),
                                 std::to_string(1 + i % 3)},  // some use their client from several threads
        "", std::vector<int>{board_.fd()});
  }

  // False: a worker found something wrong, and said what.
  bool kill_one_at_a_random_instant() {
    const uint64_t until = board_.total(&BoardWords::Worker::operations) + random_.below(kOperationsBetweenKillsMax);
    const auto is_broken = [&] {
      for (auto& worker : workers_)
        if (!worker->is_running()) return true;
      return false;
    };
    EXPECT_TRUE(wait_until([&] { return board_.total(&BoardWords::Worker::operations) >= until || is_broken(); }))
        << "the workers stand still";
    for (uint64_t spin = random_.below(20'000); spin > 0; --spin) asm volatile("");
    const auto victim = uint32_t(random_.below(kWorkers));
    for (auto& worker : workers_) {
      if (worker->is_running()) continue;
      ADD_FAILURE() << "a worker " << worker->wait()->text();
      return false;
    }
    workers_[victim]->kill();
    start_worker(victim);
    return !HasFailure();
  }

  void stop_workers() {
    board_->stop.store(1);
    for (auto& worker : workers_) {
      const auto ended = worker->wait();
      EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a worker hangs");
      worker.reset();
    }
    board_->stop.store(0);
  }

  MarudProcess marud_;
  ControlMap map_;
  uint64_t seed_;
  Random random_;
  Board board_;
  std::array<std::unique_ptr<ChildProcess>, kWorkers> workers_;
};

TEST_F(Kill, PoolIsAtItsBaselineAfterClientsWereKilled) {
  const uint64_t kills = number_from_environment("MARU_KILLS", 200);
  uint64_t killed = 0, blocks = 0, rounds = 0;
  while (killed < kills && !HasFailure()) {
    for (uint32_t i = 0; i < kWorkers; ++i) start_worker(i);
    for (uint64_t i = 0; i < kKillsPerRound && killed < kills; ++i, ++killed)
      if (!kill_one_at_a_random_instant()) break;
    // In turns: everybody leaves in order, or everybody is killed.
    if (++rounds % 2 == 0) {
      for (auto& worker : workers_) worker->kill();
      killed += kWorkers;
    } else {
      stop_workers();
    }
    expect_baseline(marud_, map_);
    blocks += expect_intact_blocks(marud_, map_);
    ASSERT_TRUE(marud_.is_running());
  }
  std::printf("%llu clients killed in %llu rounds, %llu operations, %llu blocks read back\n",
              static_cast<unsigned long long>(killed), static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(board_.total(&BoardWords::Worker::operations)),
              static_cast<unsigned long long>(blocks));
  EXPECT_GT(blocks, 0u);
}

}  // namespace
}  // namespace maru::test
