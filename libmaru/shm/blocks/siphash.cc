#include "libmaru/shm/blocks/siphash.h"

#include <bit>
#include <cstring>

#ifndef __clang__  // which does not know it; g++ 12 has it of vectors, which it sets piece by piece
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace maru::shm {
namespace {

static_assert(std::endian::native == std::endian::little);  // as every machine is that this builds for

// The code below is compiled once for each set of instructions, so it has to be a part of its callers.
#define MARU_INLINED inline __attribute__((always_inline))

using Words4 __attribute__((vector_size(32))) = uint64_t;
using Words8 __attribute__((vector_size(64))) = uint64_t;
using Halves8 __attribute__((vector_size(32))) = uint32_t;
using Bytes32 __attribute__((vector_size(32))) = uint8_t;

template <int bits, typename Words>
MARU_INLINED void rotate(Words& word) {
  word = word << bits | word >> (64 - bits);
}

// AVX2 has no rotations, but moves within words: one for three operations.
template <int bits>
  requires(bits % 8 == 0)
MARU_INLINED void rotate(Words4& word) {
  if constexpr (bits == 32) {
    const auto halves = Halves8(word);
    word = Words4(__builtin_shufflevector(halves, halves, 1, 0, 3, 2, 5, 4, 7, 6));
  } else {
    static_assert(bits == 16);
    const auto bytes = Bytes32(word);
    word = Words4(__builtin_shufflevector(bytes, bytes, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13,  //
                                          22, 23, 16, 17, 18, 19, 20, 21, 30, 31, 24, 25, 26, 27, 28, 29));
  }
}

// Eight words for AVX2, each operation twice: with four words alone each operation would wait for the operation before.
struct TwiceWords4 {
  Words4 low, high;

  MARU_INLINED uint64_t operator[](size_t lane) const { return lane < 4 ? low[lane] : high[lane - 4]; }
  MARU_INLINED void operator+=(const TwiceWords4& other) {
    low += other.low;
    high += other.high;
  }
  MARU_INLINED void operator^=(const TwiceWords4& other) {
    low ^= other.low;
    high ^= other.high;
  }
  MARU_INLINED void operator^=(uint64_t other) {
    low ^= other;
    high ^= other;
  }
  MARU_INLINED TwiceWords4 operator^(const TwiceWords4& other) const { return {low ^ other.low, high ^ other.high}; }
  MARU_INLINED TwiceWords4 operator+(uint64_t other) const { return {low + other, high + other}; }
};

template <int bits>
MARU_INLINED void rotate(TwiceWords4& word) {
  rotate<bits>(word.low);
  rotate<bits>(word.high);
}

// The word of each lane is of(lane). All are given at once, for which g++ has fewer moves than for one by one.
template <typename WordOf>
MARU_INLINED void set(Words8& words, WordOf&& of) {
  words = Words8{of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)};
}
template <typename WordOf>
MARU_INLINED void set(TwiceWords4& words, WordOf&& of) {
  words.low = Words4{of(0), of(1), of(2), of(3)};
  words.high = Words4{of(4), of(5), of(6), of(7)};
}

MARU_INLINED uint64_t load_word(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return word;
}

// The last word that is hashed: the bytes that are no whole word, and the size above them.
MARU_INLINED uint64_t last_word(const std::byte* data, size_t size) {
  const size_t rest = size % 8;
  uint64_t word = 0;
  if (size >= 8)
    word = rest == 0 ? 0 : load_word(data + size - 8) >> (64 - 8 * rest);
  else
    for (size_t i = 0; i < rest; ++i) word |= uint64_t(data[i]) << (8 * i);
  return word | uint64_t(size) << 56;
}

// Words: uint64_t, or several of them.
template <typename Words>
struct SipState {
  Words v0, v1, v2, v3;

  MARU_INLINED SipState(uint64_t key0, uint64_t key1) {
    v0 = Words{} + (0x736f6d6570736575 ^ key0);
    v1 = Words{} + (0x646f72616e646f6d ^ key1 ^ 0xee);
    v2 = Words{} + (0x6c7967656e657261 ^ key0);
    v3 = Words{} + (0x7465646279746573 ^ key1);
  }
  MARU_INLINED void round() {
    v0 += v1;
    rotate<13>(v1);
    v1 ^= v0;
    rotate<32>(v0);
    v2 += v3;
    rotate<16>(v3);
    v3 ^= v2;
    v0 += v3;
    rotate<21>(v3);
    v3 ^= v0;
    v2 += v1;
    rotate<17>(v1);
    v1 ^= v2;
    rotate<32>(v2);
  }
  MARU_INLINED void take(const Words& word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
  MARU_INLINED void end(Words& ret_lo, Words& ret_hi) {
    v2 ^= 0xee;
    for (int i = 0; i < 4; ++i) round();
    ret_lo = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 4; ++i) round();
    ret_hi = v0 ^ v1 ^ v2 ^ v3;
  }
};

template <typename Words>
MARU_INLINED void hash_lanes(uint64_t key0, uint64_t key1, const SipInputs& inputs, SipHash (&ret_hashes)[kSipLanes]) {
  const size_t whole = inputs.size[0] / 8;
  const std::byte* data[kSipLanes];
  size_t size[kSipLanes];
  for (size_t lane = 0; lane < kSipLanes; ++lane) {
    const size_t i = lane < inputs.count ? lane : 0;  // lanes without a string of their own hash the first once more
    data[lane] = inputs.data[i];
    size[lane] = inputs.size[i];
  }
  SipState<Words> state(key0, key1);
  Words words;
  for (size_t i = 0; i < whole; ++i) {
    set(words, [&](size_t lane) { return load_word(data[lane] + 8 * i); });
    state.take(words);
  }
  set(words, [&](size_t lane) { return last_word(data[lane], size[lane]); });
  state.take(words);
  Words lo, hi;
  state.end(lo, hi);
  for (size_t lane = 0; lane < kSipLanes; ++lane) ret_hashes[lane] = {lo[lane], hi[lane]};
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl"))) void hash_avx512(uint64_t key0, uint64_t key1, const SipInputs& inputs,
                                                             SipHash (&ret_hashes)[kSipLanes]) {
  hash_lanes<Words8>(key0, key1, inputs, ret_hashes);
}

__attribute__((target("avx2"))) void hash_avx2(uint64_t key0, uint64_t key1, const SipInputs& inputs,
                                               SipHash (&ret_hashes)[kSipLanes]) {
  hash_lanes<TwiceWords4>(key0, key1, inputs, ret_hashes);
}
#endif

void hash_one_by_one(uint64_t key0, uint64_t key1, const SipInputs& inputs, SipHash (&ret_hashes)[kSipLanes]) {
  for (size_t i = 0; i < inputs.count; ++i) ret_hashes[i] = siphash128(key0, key1, {inputs.data[i], inputs.size[i]});
}

struct Ways {
  SipWay all[3];
  size_t count = 0;
  void add(const char* instructions, SipSideBySide hash) { all[count++] = {instructions, hash}; }
  Ways() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) add("avx512", hash_avx512);
    if (__builtin_cpu_supports("avx2")) add("avx2", hash_avx2);
#endif
    add("any", hash_one_by_one);
  }
};

}  // namespace

SipHash siphash128(uint64_t key0, uint64_t key1, std::span<const std::byte> input) {
  SipState<uint64_t> state(key0, key1);
  for (size_t i = 0; i + 8 <= input.size(); i += 8) state.take(load_word(input.data() + i));
  state.take(last_word(input.data(), input.size()));
  SipHash hash;
  state.end(hash.lo, hash.hi);
  return hash;
}

std::span<const SipWay> siphash128_ways() {
  static const Ways ways;
  return {ways.all, ways.count};
}

}  // namespace maru::shm
