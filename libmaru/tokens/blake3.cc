// BLAKE3 cuts a message into chunks of 1024 bytes, each a chain of compressions of 64 bytes. It joins the chunks' chaining
// values as the leaves of a binary tree, whose left subtrees are as large as a power of two allows.
//
// A chain of blocks is worth no parallel code. The first 64 bytes of a message hold the hash of the message before, and 256
// tokens, the usual block, are one chunk and 32 bytes. So every compression waits for the compression before. One after the
// other, with the sixteen words in registers, is the fastest way.
#include "libmaru/tokens/blake3.h"

#include <array>
#include <bit>
#include <cstring>

namespace maru::tokens {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read from the message as they lie there");

constexpr size_t kBlockBytes = 64, kChunkBytes = 1024;
constexpr uint32_t kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8;

using Words = std::array<uint32_t, 8>;
constexpr Words kInitial = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                            0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

// Round r takes the words of the message in the order that the permutation, applied r times, gives.
constexpr std::array<std::array<uint8_t, 16>, 7> orders() {
  constexpr uint8_t permutation[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  std::array<std::array<uint8_t, 16>, 7> order{};
  for (uint8_t i = 0; i < 16; ++i) order[0][i] = i;
  for (size_t round = 1; round < 7; ++round)
    for (size_t i = 0; i < 16; ++i) order[round][i] = order[round - 1][permutation[i]];
  return order;
}
constexpr auto kOrders = orders();

[[gnu::always_inline]] inline void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 12);
  a += b + y;
  d = std::rotr(d ^ a, 8);
  c += d;
  b = std::rotr(b ^ c, 7);
}

Words compress(const Words& chaining, const uint8_t block[kBlockBytes], uint64_t counter, uint32_t block_bytes,
               uint32_t flags) {
  uint32_t m[16];
  std::memcpy(m, block, sizeof(m));
  uint32_t v[16] = {
      chaining[0], chaining[1], chaining[2], chaining[3], chaining[4], chaining[5],       chaining[6],
      chaining[7], kInitial[0], kInitial[1], kInitial[2], kInitial[3], uint32_t(counter), uint32_t(counter >> 32),
      block_bytes, flags};
#pragma GCC unroll 7
  for (size_t round = 0; round < 7; ++round) {
    const auto& s = kOrders[round];
    mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
    mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
    mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
    mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
    mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
    mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
    mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
    mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
  }
  Words result;
  for (size_t i = 0; i < 8; ++i) result[i] = v[i] ^ v[i + 8];
  return result;
}

// The chaining value of one chunk; flags are kRoot for a message with a single chunk.
Words compress_chunk(const uint8_t* chunk, size_t bytes, uint64_t index, uint32_t flags) {
  Words chaining = kInitial;
  flags |= kChunkStart;
  for (; bytes > kBlockBytes; chunk += kBlockBytes, bytes -= kBlockBytes) {
    chaining = compress(chaining, chunk, index, kBlockBytes, flags & ~kRoot);
    flags &= ~kChunkStart;
  }
  uint8_t last[kBlockBytes] = {};
  if (bytes > 0) std::memcpy(last, chunk, bytes);  // an empty message has no address to read from
  return compress(chaining, last, index, uint32_t(bytes), flags | kChunkEnd);
}

Words join(const Words& left, const Words& right, uint32_t flags) {
  uint8_t both[kBlockBytes];
  std::memcpy(both, left.data(), 32);
  std::memcpy(both + 32, right.data(), 32);
  return compress(kInitial, both, 0, kBlockBytes, flags | kParent);
}

}  // namespace

void blake3(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]) {
  const size_t chunks = bytes == 0 ? 1 : (bytes + kChunkBytes - 1) / kChunkBytes;
  // Finished subtrees, larger subtrees first: one for each bit that is set in the number of chunks so far.
  std::array<Words, 64> subtrees;
  size_t depth = 0;
  for (size_t i = 0; i + 1 < chunks; ++i) {
    Words value = compress_chunk(message + i * kChunkBytes, kChunkBytes, i, 0);
    for (size_t done = i + 1; (done & 1) == 0; done >>= 1) value = join(subtrees[--depth], value, 0);
    subtrees[depth++] = value;
  }
  const size_t last = (chunks - 1) * kChunkBytes;
  Words value = compress_chunk(message + last, bytes - last, chunks - 1, depth == 0 ? kRoot : 0);
  while (depth > 0) {
    --depth;
    value = join(subtrees[depth], value, depth == 0 ? kRoot : 0);
  }
  std::memcpy(ret_hash, value.data(), 32);
}

}  // namespace maru::tokens
