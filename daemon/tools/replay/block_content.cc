#include "daemon/tools/replay/block_content.h"

#include <algorithm>
#include <cstring>

namespace maru::replay {
namespace {

// A bijection of 64 bits in which every input bit reaches every output bit.
uint64_t scramble(uint64_t value) {
  value ^= value >> 31;
  value *= 0xA24BAED4963EE407ull;
  value ^= value >> 27;
  value *= 0x9FB21C651E98DF25ull;
  value ^= value >> 33;
  return value;
}

// A word of a block from its position in the block's own sequence. Only shifts and exclusive-ors, so that compilers make
// vectors of it and checking runs at the speed of memory.
uint64_t content_word(uint64_t position) { return position ^ (position >> 23) ^ (position << 17); }

struct Stream {
  explicit Stream(const BlockDigest& digest)
      : seed(scramble(digest[0] ^ 0x6D61727565706C61ull)), step(scramble(digest[1]) | 1) {}
  uint64_t seed;
  uint64_t step;  // odd: no two words of a block start from the same position
};

// Words are made in an array of their own and then copied or compared, so that blocks need no alignment.
constexpr size_t kBatchWords = 64;
constexpr size_t kBatchBytes = kBatchWords * sizeof(uint64_t);

void make_batch(const Stream& stream, uint64_t first_word, uint64_t (&ret_words)[kBatchWords]) {
  uint64_t position = stream.seed + stream.step * first_word;
  for (uint64_t& word : ret_words) {
    word = position;
    position += stream.step;
  }
  for (uint64_t& word : ret_words) word = content_word(word);
}

}  // namespace

void prefix_digests(const trace::Request& request, uint64_t payload_bytes, std::vector<BlockDigest>& ret_digests) {
  ret_digests.clear();
  BlockDigest digest = {scramble(0x243F6A8885A308D3ull + payload_bytes), 0x13198A2E03707344ull};
  for (const uint64_t id : request.hash_ids) {
    digest = {scramble(digest[0] + scramble(id + 1)), scramble(digest[1] ^ scramble(~id)) + digest[0]};
    ret_digests.push_back(digest);
  }
}

void fill_block(const BlockDigest& digest, std::span<std::byte> block) {
  const Stream stream(digest);
  uint64_t words[kBatchWords];
  for (size_t offset = 0; offset < block.size(); offset += kBatchBytes) {
    make_batch(stream, offset / sizeof(uint64_t), words);
    std::memcpy(block.data() + offset, words, std::min(kBatchBytes, block.size() - offset));
  }
}

uint64_t count_wrong_bytes(const BlockDigest& digest, std::span<const std::byte> block) {
  const Stream stream(digest);
  uint64_t words[kBatchWords];
  uint64_t wrong_bytes = 0;
  for (size_t offset = 0; offset < block.size(); offset += kBatchBytes) {
    make_batch(stream, offset / sizeof(uint64_t), words);
    const size_t bytes = std::min(kBatchBytes, block.size() - offset);
    if (std::memcmp(block.data() + offset, words, bytes) == 0) continue;
    const auto* expected = reinterpret_cast<const std::byte*>(words);
    for (size_t i = 0; i < bytes; ++i) wrong_bytes += block[offset + i] != expected[i];
  }
  return wrong_bytes;
}

}  // namespace maru::replay
