#include "libmaru/blend/roll_stretches.h"

#if defined(__x86_64__)
// Its intrinsics begin with vectors that are undefined on purpose, of which g++ 12 warns (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace maru::blend {
namespace {

// The rows of each stretch from `first` on.
void roll_from(size_t first, const RollingHash& hash, const uint32_t* tokens, size_t stretch, NameBytes* rows) {
  const size_t window = hash.window();
  const RollingHash::Move move = hash.move();
  uint64_t lane[kLanes];
  for (size_t k = 0; k < kLanes; ++k) lane[k] = rows[k * stretch + first - 1].tokens;
  for (size_t i = first; i < stretch; ++i)
    for (size_t k = 0; k < kLanes; ++k) {
      const uint32_t* const leaving = tokens + k * stretch + i - 1;
      rows[k * stretch + i].tokens = lane[k] = move(lane[k], leaving[0], leaving[window]);
    }
}

}  // namespace

void roll_stretches_plain(const RollingHash& hash, const uint32_t* tokens, size_t stretch, NameBytes* rows) {
  if (stretch > 1) roll_from(1, hash, tokens, stretch, rows);
}

#if defined(__x86_64__)
namespace {

#define MARU_ROLL __attribute__((target("avx512f")))

using Words __attribute__((vector_size(64))) = uint64_t;  // of each lane one

constexpr size_t kSteps = 8;
constexpr uint64_t kHalf = (uint64_t{1} << 31) - 1;  // the lower of the two halves that a number of 61 bits is cut into

MARU_ROLL inline Words all(uint64_t word) { return Words{} + word; }

// Of the lower 32 bits of each.
MARU_ROLL inline Words product(const Words& a, const Words& b) {
  return Words(_mm512_mul_epu32(__m512i(a), __m512i(b)));
}

// Two tokens of each lane in a word, four times: `kSteps` tokens from `tokens` on, where lanes are `stretch` tokens apart.
MARU_ROLL inline void load_pairs(const uint32_t* tokens, size_t stretch, Words (&ret_pairs)[kSteps / 2]) {
  // Four words of lanes k and k + 2 each: so the transposition leaves all lanes in their order.
  const auto load = [=](size_t k) MARU_ROLL {
    const auto* const low = reinterpret_cast<const __m256i*>(tokens + k * stretch);
    const auto* const high = reinterpret_cast<const __m256i*>(tokens + (k + 2) * stretch);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low)), _mm256_loadu_si256(high), 1);
  };
  const __m512i a = load(0), b = load(1), c = load(4), d = load(5);
  const __m512i even_ab = _mm512_unpacklo_epi64(a, b), odd_ab = _mm512_unpackhi_epi64(a, b);
  const __m512i even_cd = _mm512_unpacklo_epi64(c, d), odd_cd = _mm512_unpackhi_epi64(c, d);
  ret_pairs[0] = Words(_mm512_shuffle_i64x2(even_ab, even_cd, 0x88));
  ret_pairs[1] = Words(_mm512_shuffle_i64x2(odd_ab, odd_cd, 0x88));
  ret_pairs[2] = Words(_mm512_shuffle_i64x2(even_ab, even_cd, 0xDD));
  ret_pairs[3] = Words(_mm512_shuffle_i64x2(odd_ab, odd_cd, 0xDD));
}

// RollingHash::Move of all lanes. Numbers of 61 bits are cut at bit 31, so that 64 bits hold the sum of two products of lower
// halves. Products of a lower and an upper half count 2^31 times, and those of upper halves 2^62 times, which is 2 modulo the
// prime. Between steps a hash may exceed the prime by 7, the most that a sum of 64 bits has above its 61. Rows have it reduced.
MARU_ROLL void roll_avx512(const RollingHash& hash, const uint32_t* tokens, size_t stretch, NameBytes* rows) {
  const size_t window = hash.window();
  const RollingHash::Move move = hash.move();
  const Words base_low = all(move.base & kHalf), base_high = all(move.base >> 31),
              base_high_twice = all(move.base >> 31 << 1);
  const Words leaving_low = all(move.leaving & kHalf), leaving_high = all(move.leaving >> 31);
  const Words prime = all(kPrime);
  Words lane, places;  // `places`: of a row in each lane, in words
  for (size_t k = 0; k < kLanes; ++k) {
    lane[k] = rows[k * stretch].tokens;
    places[k] = k * stretch * (sizeof(NameBytes) / sizeof(uint64_t));
  }
  // The lower 32 bits of `leaves` count.
  const auto roll = [&](const Words& leaves, const Words& enters) MARU_ROLL {
    const Words low = lane & kHalf, high = lane >> 31;
    const Words once = product(low, base_low) + product(leaves, leaving_low);
    const Words middle = product(low, base_high) + product(high, base_low) + product(leaves, leaving_high);
    const Words sum = (once & prime) + (once >> 61) + (middle << 31 & prime) + (middle >> 30) +
                      product(high, base_high_twice) + enters;
    lane = (sum & prime) + (sum >> 61);
  };
  const auto store = [&](NameBytes* at) MARU_ROLL {
    const __m512i reduced = _mm512_min_epu64(__m512i(lane), __m512i(lane - prime));
    _mm512_i64scatter_epi64(&at->tokens, __m512i(places), reduced, sizeof(uint64_t));
  };
  size_t i = 1;
  for (; i + kSteps <= stretch; i += kSteps) {
    Words first[kSteps / 2], next[kSteps / 2];
    load_pairs(tokens + i - 1, stretch, first);
    load_pairs(tokens + i - 1 + window, stretch, next);
    for (size_t pair = 0; pair < kSteps / 2; ++pair) {
      roll(first[pair], next[pair] & 0xFFFF'FFFF);
      store(rows + i + 2 * pair);
      roll(first[pair] >> 32, next[pair] >> 32);
      store(rows + i + 2 * pair + 1);
    }
  }
  if (i < stretch) roll_from(i, hash, tokens, stretch, rows);
}

}  // namespace

RollStretches* roll_stretches_avx512() { return __builtin_cpu_supports("avx512f") ? roll_avx512 : nullptr; }
#else
RollStretches* roll_stretches_avx512() { return nullptr; }
#endif

RollStretches* best_roll_stretches() {
  RollStretches* const avx512 = roll_stretches_avx512();
  return avx512 != nullptr ? avx512 : roll_stretches_plain;
}

}  // namespace maru::blend
