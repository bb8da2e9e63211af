// The names of blocks: part of maru/blocks.hpp, which programs include.
#ifndef MARU_BLOCKS_HASHES_HPP
#define MARU_BLOCKS_HASHES_HPP

#include <maru/blocks/faults.hpp>
#include <maru/tokens.h>

#include <algorithm>
#include <span>

namespace maru {
inline namespace api_0 {

// The name of a block, and with it of all tokens before: Dynamo's sequence hash, bit for bit, and a second hash of the same
// tokens. Two prompts may collide in the sequence hash; then the second hash differs, so the wrong block is a miss and never a
// hit. An array of BlockHash is an array of keys.
struct BlockHash {
  uint64_t sequence = 0;
  uint64_t check = 0;  // 0 in pools with BlockPoolOptions::sequence_hash_only
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};
static_assert(sizeof(BlockHash) == 16 && std::has_unique_object_representations_v<BlockHash>,
              "a BlockHash is a key of kind MARU_KEY_DIGEST128");

// A full block of tokens and its place in the sequence.
struct TokenBlock {
  BlockHash hash;
  uint64_t block_hash = 0;  // Dynamo's hash of these tokens alone
  uint64_t salt_hash = 0;
  std::optional<BlockHash> parent;   // nothing at the beginning of a sequence
  std::span<const uint32_t> tokens;  // of the caller, or of the handle that it came from
};

namespace blocks_detail {

// Makes the second hash independent of the first.
inline constexpr uint64_t kCheckSalt = 0x6d61'7275'2d63'6865;

}  // namespace blocks_detail

// The hashes of the whole blocks of a prompt; tokens behind the last whole block are ignored. Writes at most ret_hashes.size()
// of them, and returns how many. Any thread; allocates while it runs. Errors: kBadOptions page_size is not 1 to
// MARU_TOKENS_BLOCK_MAX; kOther ENOMEM.
inline BlockOutcome<size_t> hash_tokens(uint64_t salt_hash, uint32_t page_size, std::span<const uint32_t> tokens,
                                        std::span<BlockHash> ret_hashes,
                                        const std::optional<BlockHash>& parent = std::nullopt) {
  using namespace blocks_detail;
  if (page_size == 0 || page_size > MARU_TOKENS_BLOCK_MAX)
    return fault(BlockFault::kBadOptions, EINVAL, page_size, MARU_TOKENS_BLOCK_MAX);
  const size_t count = std::min(tokens.size() / page_size, ret_hashes.size());
  constexpr size_t kAtOnce = 32;
  uint64_t sequence[kAtOnce], check[kAtOnce];
  uint64_t sequence_before = parent ? parent->sequence : 0, check_before = parent ? parent->check : 0;
  bool has_parent = parent.has_value();
  for (size_t done = 0; done < count;) {
    const size_t now = std::min(kAtOnce, count - done);
    const uint32_t* const first = tokens.data() + done * page_size;
    int result = maru_tokens_dynamo(salt_hash, has_parent ? &sequence_before : nullptr, page_size, first,
                                    now * page_size, nullptr, sequence);
    if (result == 0)
      result = maru_tokens_dynamo(salt_hash ^ kCheckSalt, has_parent ? &check_before : nullptr, page_size, first,
                                  now * page_size, nullptr, check);
    if (result < 0) return failed(result);
    for (size_t i = 0; i < now; ++i) ret_hashes[done + i] = {sequence[i], check[i]};
    sequence_before = sequence[now - 1];
    check_before = check[now - 1];
    has_parent = true;
    done += now;
  }
  return count;
}

// The same for one block. Errors: kSizeMismatch tokens.size() is not page_size; the errors of hash_tokens.
inline BlockOutcome<TokenBlock> make_token_block(uint64_t salt_hash, uint32_t page_size,
                                                 std::span<const uint32_t> tokens,
                                                 const std::optional<BlockHash>& parent = std::nullopt) {
  using namespace blocks_detail;
  if (tokens.size() != page_size) return fault(BlockFault::kSizeMismatch, EINVAL, tokens.size(), page_size);
  TokenBlock block;
  const BlockOutcome<size_t> hashed = hash_tokens(salt_hash, page_size, tokens, {&block.hash, 1}, parent);
  if (!hashed) return hashed.error();
  if (const int result =
          maru_tokens_dynamo(salt_hash, nullptr, page_size, tokens.data(), page_size, &block.block_hash, nullptr);
      result < 0)
    return failed(result);
  block.salt_hash = salt_hash;
  block.parent = parent;
  block.tokens = tokens;
  return block;
}

}  // namespace api_0
}  // namespace maru

#endif
