// Threads that register, match, hold and let go at once, in orders that a seed picks. Meant for the thread sanitizer, too.
#include "tests/blocks/block_fixture.h"
#include "tests/support/random.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

namespace maru::test {
namespace {

using Threads = Blocks;

constexpr size_t kChain = 6;
constexpr int kRounds = 300;

TEST_F(Threads, HandlesGoInEveryOrderWhileAnotherThreadMatches) {
  const std::vector<uint32_t> tokens = tokens_from(1, kChain * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  const uint64_t seed = number_from_environment("MARU_SEED", std::random_device()());
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  std::atomic<bool> ends{false};
  std::atomic<uint64_t> wrong{0}, matched_blocks{0};

  std::thread matcher([&, pool = pool_] {
    while (!ends) {
      const BlockOutcome<ImmutableBlocks> matched = pool.match_blocks(hashes);
      if (!matched.ok()) {
        ++wrong;
        continue;
      }
      for (size_t i = 0; i < matched->size(); ++i)
        wrong += matched->bytes(i)[kBlockBytes - 1] != std::byte(1 + i * kPageSize);
      matched_blocks += matched->size();
      if (matched->empty()) continue;
      // It may have been unregistered meanwhile: then it can be read, and not be held anew.
      const BlockOutcome<ImmutableBlock> last = matched->hold(matched->size() - 1);
      wrong += !last.ok() && last.error().fault != BlockFault::kGone;
    }
  });
  std::thread resetter([&, pool = pool_] {
    while (!ends) wrong += !pool.reset_blocks(hashes).ok();
  });

  int chains = 0, rounds = 0;
  std::mt19937_64 random(seed);
  // On a busy machine the matcher may come late.
  const auto deadline = std::chrono::steady_clock::now() + far_too_long();
  for (; rounds < kRounds || (matched_blocks == 0 && std::chrono::steady_clock::now() < deadline); ++rounds) {
    RegisteredBlocks registered = pool_.register_blocks(complete_chain(pool_, tokens));
    // A reset that looked for pins before a duplicate was held may take that one away: then its child has no parent.
    if (!registered.ok()) {
      EXPECT_EQ(registered.error.fault, BlockFault::kParentGone) << registered.error.message().c_str();
      continue;
    }
    ++chains;
    std::vector<std::function<void()>> endings;
    ImmutableBlocks matched = std::move(*pool_.match_blocks(hashes));
    endings.push_back([&] { matched.release(); });
    endings.push_back([&] { matched.truncate(matched.size() / 2).ok(); });
    for (ImmutableBlock& block : registered.blocks) endings.push_back([&block] { block.release(); });
    endings.push_back([&] { (void)std::move(registered.blocks[kChain - 1]).unregister(); });
    BlockOutcome<ImmutableBlock> clone = registered.blocks[2].clone();
    KeepAlive kept;
    if (clone) kept = KeepAlive(std::move(*clone));
    endings.push_back([&] { kept.release(); });
    std::shuffle(endings.begin(), endings.end(), random);
    for (const auto& end : endings) end();
  }
  ends = true;
  matcher.join();
  resetter.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(matched_blocks, 0u);
  EXPECT_GT(chains, rounds / 2);
  EXPECT_EQ(map_.count_pins(), 0u);
}

class CountingListener : public BlockListener {
 public:
  // The balance of each hash is 0 or 1 at any time: register precedes remove, and no life is removed twice.
  void on_register(const BlockEvent&) noexcept override { wrong_ += ++balance_ != 1; }
  void on_remove(const BlockEvent&) noexcept override { wrong_ += --balance_ != 0; }
  int balance() const { return balance_; }
  int wrong() const { return wrong_; }

 private:
  int balance_ = 0, wrong_ = 0;  // calls come one at a time
};

TEST_F(Threads, RegisterPrecedesRemoveWhicheverThreadDoesIt) {
  CountingListener listener;
  BlockPoolOptions options = pool_options();
  options.listener = &listener;
  {
    const BlockPool heard = pool_of(marud_.socket_path(), options);
    const std::vector<uint32_t> tokens = tokens_from(1, kPageSize);
    const std::vector<BlockHash> hashes = hashes_of(tokens);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) {
          ImmutableBlock block = registered_block(heard, tokens);
          if (round % 2 == 0) (void)std::move(block).unregister();
          block.release();
          (void)heard.reset_blocks(hashes);
          if (round % 16 == 0) heard.reconcile();
        }
      });
    for (std::thread& thread : threads) thread.join();
    (void)heard.reset_blocks(hashes);
    heard.reconcile();
  }
  EXPECT_EQ(listener.wrong(), 0);
  EXPECT_EQ(listener.balance(), 0);
}

}  // namespace
}  // namespace maru::test
