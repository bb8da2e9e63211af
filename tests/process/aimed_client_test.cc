// Clients that aim at marud's walks: they write what would make a walk long, and marud's turns stay short. They have a pool of
// small pages and a pool of large pages. A client of a third pool means well, and marud answers its requests meanwhile. The
// test asserts how many lines a turn reads, and prints how long turns and requests last.
//
// MARU_AIMED_SECONDS says for how long, and MARU_AIMED_BYTES how large the two pools are; scripts/hostile --aimed says a minute
// and 4 GiB. MARU_SEED repeats the choices.
#include "tests/process/board.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <gtest/gtest.h>
#include <stop_token>
#include <thread>

namespace maru::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kPools[] = {"small_pages", "large_pages"};
// What a pool's turn and the requests before it read at most: the budgets, and some regions, which are units of some walks.
constexpr uint64_t kMostLines = 1u << 20, kMostRegions = 24;

std::vector<PoolWish> pools() {
  const uint64_t bytes = number_from_environment("MARU_AIMED_BYTES", 128ull << 20);
  PoolWish sound, small, large;
  sound.bytes = 32u << 20;
  small.name = kPools[0];
  large.name = kPools[1];
  small.bytes = large.bytes = bytes;
  large.page_bytes = 64u << 10;
  small.region_bytes = large.region_bytes = bytes / 16;
  small.lanes = large.lanes = 32;
  small.pins = large.pins = 4096;
  small.high_watermark = large.high_watermark = 0.9;
  return {sound, small, large};
}

class AimedClient : public ::testing::Test {
 protected:
  AimedClient() : seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }
  void start(uint32_t worker) {
    processes_[worker] = std::make_unique<ChildProcess>(
        std::vector<std::string>{own_program(), "--role", "aimer", marud_.socket_path(), std::to_string(random_.next()),
                                 std::to_string(board_.fd()), std::to_string(worker), kPools[worker % 2]},
        "", std::vector<int>{board_.fd()});
  }
  uint64_t shots() const { return board_.total(&BoardWords::Worker::operations); }
  // Requests of a client that means well, and how long each took, in microseconds. Beside the others until one of them at least
  // has done what it came for.
  std::vector<double> work(std::chrono::milliseconds time, bool beside_them) {
    std::vector<double> lasted;
    const auto until = Clock::now() + time, at_most = Clock::now() + far_too_long();
    const auto is_over = [&] {
      return Clock::now() > until && (!beside_them || shots() > 0 || Clock::now() > at_most);
    };
    while (!is_over() && !HasFailure()) {
      for (uint32_t worker = 0; beside_them && worker < std::size(processes_); ++worker)
        if (!processes_[worker] || !processes_[worker]->is_running()) start(worker);
      const auto begun = Clock::now();
      EXPECT_EQ(client_->remove_tree("nothing of this name"), -ENOENT);
      lasted.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
      EXPECT_EQ(client_->text("mine"), "text");
    }
    std::sort(lasted.begin(), lasted.end());
    return lasted;
  }
  // The same beside as many threads that compute and ask nothing: so much of the time is the processors'.
  std::vector<double> work_on_busy_processors(std::chrono::milliseconds time) {
    std::vector<std::jthread> busy;
    for (size_t i = 0; i < std::size(processes_); ++i)
      busy.emplace_back([](const std::stop_token& stop) {
        for (volatile uint64_t n = 0; !stop.stop_requested();) n = n + 1;
      });
    return work(time, false);
  }
  static double share(const std::vector<double>& sorted, double part) {
    return sorted.empty() ? 0 : sorted[size_t(part * double(sorted.size() - 1))];
  }
  MarudProcess marud_{pools()};
  uint64_t seed_;
  Random random_;
  Board board_;
  std::unique_ptr<ChildProcess> processes_[4];
  std::unique_ptr<TestClient> client_;
};

TEST_F(AimedClient, MakesNoTurnLong) {
  const std::chrono::seconds seconds(number_from_environment("MARU_AIMED_SECONDS", 3));
  client_ = std::make_unique<TestClient>(marud_.socket_path());
  ASSERT_EQ(client_->store("mine", "text"), 0);
  const std::vector<double> alone = work(std::chrono::milliseconds(seconds) / 3, false);
  const std::vector<double> busy = work_on_busy_processors(std::chrono::milliseconds(seconds) / 3);
  const std::vector<double> beside = work(seconds, true);
  for (auto& process : processes_) {
    if (process) process->kill();
    process.reset();
  }
  EXPECT_TRUE(marud_.is_running());
  EXPECT_GT(shots(), 0u) << "nothing was aimed";
  EXPECT_EQ(client_->text("mine"), "text");
  for (const char* pool : kPools) {
    const auto status = marud_.pool_status(pool);
    const auto lines = status.at("longest_turn_lines").get<uint64_t>();
    const uint64_t region_pages = status.at("region_bytes").get<uint64_t>() / status.at("page_bytes").get<uint64_t>();
    EXPECT_LE(lines, kMostLines + kMostRegions * region_pages) << pool;
    std::printf("%-12s longest turn: %llu lines\n", pool, static_cast<unsigned long long>(lines));
  }
  std::printf("longest turn: %.1f ms of marud's own processor time; %llu shots\n",
              marud_.ask({{"command", "status"}}).at("longest_turn_cpu_us").get<double>() / 1000,
              static_cast<unsigned long long>(shots()));
  std::printf("requests of another pool\n");
  const auto print = [](const char* when, const std::vector<double>& lasted) {
    std::printf("  %-42s p50 %8.1f us  p99 %8.1f us  (%zu)\n", when, share(lasted, 0.5), share(lasted, 0.99),
                lasted.size());
  };
  print("alone", alone);
  print("beside as many threads that only compute", busy);
  print("beside the aimers", beside);
}

}  // namespace
}  // namespace maru::test
