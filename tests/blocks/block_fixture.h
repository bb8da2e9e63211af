// A marud, a BlockPool on it, and a look at the pool's memory: after each test the pool is at its baseline.
#pragma once

#include "maru/blocks.hpp"
#include "tests/process/baseline.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <vector>

namespace maru::test {

inline constexpr uint32_t kPageSize = 4;
inline constexpr uint64_t kBlockBytes = 3 * 4096;
inline constexpr uint64_t kSalt = 1337;

inline BlockPoolOptions pool_options() {
  BlockPoolOptions options;
  options.page_size = kPageSize;
  options.block_bytes = kBlockBytes;
  return options;
}

inline BlockPool pool_of(const std::string& socket_path, const BlockPoolOptions& options = pool_options()) {
  maru_attach_options attach = attach_options(socket_path, "default");
  Outcome<Client> client = Client::attach(attach);
  if (!client) throw std::runtime_error("attach: " + std::to_string(client.error()));
  BlockOutcome<BlockPool> pool = BlockPool::create(*client, options);
  if (!pool) throw std::runtime_error(std::string("create: ") + pool.error().message().c_str());
  return std::move(*pool);
}

// Tokens first, first + 1, ...
inline std::vector<uint32_t> tokens_from(uint32_t first, size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<BlockHash> hashes_of(std::span<const uint32_t> tokens) {
  std::vector<BlockHash> hashes(tokens.size() / kPageSize);
  const BlockOutcome<size_t> count = hash_tokens(kSalt, kPageSize, tokens, hashes);
  if (!count || *count != hashes.size()) throw std::runtime_error("hash_tokens");
  return hashes;
}

inline MutableBlock one_block(const BlockPool& pool) {
  BlockOutcome<AllocatedBlocks> allocated = pool.allocate(1);
  if (!allocated) throw std::runtime_error(allocated.error().message().c_str());
  return std::move(allocated->blocks[0]);
}

inline MutableBlock filled_block(const BlockPool& pool, std::span<const uint32_t> tokens,
                                 const std::optional<BlockHash>& parent = std::nullopt) {
  MutableBlock block = one_block(pool);
  if (!block.init_sequence(kSalt, parent) || !block.add_tokens(tokens)) throw std::runtime_error("fill");
  std::memset(block.bytes().data(), int(tokens[0] & 0xFF), block.bytes().size());
  return block;
}

inline CompleteBlock complete_block(const BlockPool& pool, std::span<const uint32_t> tokens,
                                    const std::optional<BlockHash>& parent = std::nullopt) {
  BlockOutcome<CompleteBlock> block = filled_block(pool, tokens, parent).commit();
  if (!block) throw std::runtime_error(block.error().message().c_str());
  return std::move(*block);
}

inline ImmutableBlock registered_block(const BlockPool& pool, std::span<const uint32_t> tokens,
                                       const std::optional<BlockHash>& parent = std::nullopt) {
  BlockOutcome<ImmutableBlock> block = complete_block(pool, tokens, parent).register_block();
  if (!block) throw std::runtime_error(block.error().message().c_str());
  return std::move(*block);
}

// The blocks of a sequence, each under the one before.
inline BlockList<CompleteBlock> complete_chain(const BlockPool& pool, std::span<const uint32_t> tokens) {
  BlockList<CompleteBlock> chain;
  std::optional<BlockHash> parent;
  for (size_t at = 0; at + kPageSize <= tokens.size(); at += kPageSize) {
    chain.push(complete_block(pool, tokens.subspan(at, kPageSize), parent));
    parent = chain[chain.size() - 1].hash();
  }
  return chain;
}

inline BlockList<ImmutableBlock> registered_chain(const BlockPool& pool, std::span<const uint32_t> tokens) {
  RegisteredBlocks registered = pool.register_blocks(complete_chain(pool, tokens));
  if (!registered.ok()) throw std::runtime_error(registered.error.message().c_str());
  return std::move(registered.blocks);
}

template <typename T>
void expect_fault(const BlockOutcome<T>& outcome, BlockFault fault, const std::string& words) {
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().fault, fault) << outcome.error().message().c_str();
  EXPECT_NE(std::string(outcome.error().message().c_str()).find(words), std::string::npos)
      << "\"" << outcome.error().message().c_str() << "\" does not say \"" << words << "\"";
}

class Blocks : public ::testing::Test {
 protected:
  explicit Blocks(const PoolWish& wish = {}) : marud_({wish}) {}
  void TearDown() override {
    pool_ = {};
    expect_baseline(marud_, map_);
  }

  MarudProcess marud_;
  ControlMap map_{marud_.socket_path()};
  BlockPool pool_ = pool_of(marud_.socket_path());
};

}  // namespace maru::test
