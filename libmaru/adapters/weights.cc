#include "libmaru/adapters/weights.h"

#include "libmaru/adapters/placement.h"

#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::adapters {
namespace {

// All exponent bits set: NaN or infinite.
template <typename Bits>
uint64_t find_exponent(const std::byte* weights, uint64_t first, uint64_t count, Bits exponent) {
  for (uint64_t i = first; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, weights + i * sizeof(Bits), sizeof(Bits));
    if ((bits & exponent) == exponent) return i;
  }
  return count;
}

// Rounds to the nearest integer, ties to even, without a call: adding 1.5 * 2^23 leaves the integer in the low bits.
inline int8_t rounded(float value) {
  constexpr float kMagic = 12'582'912.0f;
  return int8_t(std::bit_cast<int32_t>(value + kMagic) - std::bit_cast<int32_t>(kMagic));
}

// The largest magnitude; and integers of weights times `inverse`. One pair of functions for each kind of processor, with
// the same results bit for bit.
struct Ways {
  float (*largest)(const float* weights, uint64_t count);
  void (*round)(const float* weights, uint64_t count, float inverse, int8_t* to);
  void (*load)(const std::byte* row, Element element, uint64_t columns, float* to);
  void (*turn)(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, float* to);
  // How many weights of 16 bits from the first on have some of these bits clear: a multiple of the weights of a step.
  uint64_t (*skip_numbers)(const std::byte* weights, uint64_t count, uint16_t exponent);
};

uint64_t skip_none(const std::byte*, uint64_t, uint16_t) { return 0; }

float largest_plain(const float* weights, uint64_t count) {
  float most = 0;
  for (uint64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(weights[i]));
  return most;
}
void round_plain(const float* weights, uint64_t count, float inverse, int8_t* to) {
  for (uint64_t i = 0; i < count; ++i) to[i] = rounded(std::clamp(weights[i] * inverse, -127.0f, 127.0f));
}
float scale_of(const std::byte* row, uint64_t columns) {
  float scale;
  std::memcpy(&scale, row + scale_offset(columns), sizeof(scale));
  return scale;
}
void load_plain_from(const std::byte* row, Element element, uint64_t first, uint64_t columns, float* to) {
  if (element == Element::kInt8) {
    const float scale = scale_of(row, columns);
    for (uint64_t i = first; i < columns; ++i) to[i] = float(int8_t(row[i])) * scale;
    return;
  }
  for (uint64_t i = first; i < columns; ++i) to[i] = weight_at(row, element, i);
}
void load_plain(const std::byte* row, Element element, uint64_t columns, float* to) {
  load_plain_from(row, element, 0, columns, to);
}

// Of a matrix of `rows` rows: the rows of [first, end), from first_column on.
void turn_part(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, uint64_t first,
               uint64_t end, uint64_t first_column, float* to) {
  for (uint64_t i = first; i < end; ++i) {
    const float scale = element == Element::kInt8 ? scale_of(row[i], columns) : 1.0f;
    for (uint64_t column = first_column; column < columns; ++column)
      to[column * rows + i] =
          element == Element::kInt8 ? float(int8_t(row[i][column])) * scale : weight_at(row[i], element, column);
  }
}
void turn_plain(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, float* to) {
  turn_part(row, element, rows, columns, 0, rows, 0, to);
}

#if defined(__x86_64__)
#define MARU_AVX2 __attribute__((target("avx2,f16c")))

MARU_AVX2 inline __attribute__((always_inline)) __m256 eight_floats(const std::byte* row, Element element,
                                                                    uint64_t at) {
  if (element == Element::kFloat32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * at));
  if (element == Element::kInt8)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + at))));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * at));
  if (element == Element::kFloat16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
// Eight by eight, in place.
MARU_AVX2 inline __attribute__((always_inline)) void turn_eight(__m256 (&a)[8]) {
  __m256 b[8];
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) a[i] = b[i];
}
// Column by column of the source, so that the result is written from its beginning to its end.
template <Element kElement>
MARU_AVX2 void turn_of(const std::byte* const* row, uint64_t rows, uint64_t columns, float* to) {
  const uint64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (uint64_t column = 0; column < whole_columns; column += 8)
    for (uint64_t first = 0; first < whole_rows; first += 8) {
      __m256 block[8];
      for (uint64_t i = 0; i < 8; ++i) {
        block[i] = eight_floats(row[first + i], kElement, column);
        if constexpr (kElement == Element::kInt8)
          block[i] = _mm256_mul_ps(block[i], _mm256_set1_ps(scale_of(row[first + i], columns)));
      }
      turn_eight(block);
      for (uint64_t i = 0; i < 8; ++i) _mm256_storeu_ps(to + (column + i) * rows + first, block[i]);
    }
  turn_part(row, kElement, rows, columns, 0, whole_rows, whole_columns, to);
  turn_part(row, kElement, rows, columns, whole_rows, rows, 0, to);
}
void turn_avx2(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, float* to) {
  switch (element) {
    case Element::kFloat32: return turn_of<Element::kFloat32>(row, rows, columns, to);
    case Element::kFloat16: return turn_of<Element::kFloat16>(row, rows, columns, to);
    case Element::kBfloat16: return turn_of<Element::kBfloat16>(row, rows, columns, to);
    case Element::kInt8: return turn_of<Element::kInt8>(row, rows, columns, to);
  }
}
__attribute__((target("avx2"))) float largest_avx2(const float* weights, uint64_t count) {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFF'FFFF));
  __m256 most = _mm256_setzero_ps();
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) most = _mm256_max_ps(most, _mm256_and_ps(no_sign, _mm256_loadu_ps(weights + i)));
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, most);
  float result = largest_plain(weights + i, count - i);
  for (const float lane : lanes) result = std::max(result, lane);
  return result;
}
__attribute__((target("avx2"))) void round_avx2(const float* weights, uint64_t count, float inverse, int8_t* to) {
  const __m256 factor = _mm256_set1_ps(inverse), low = _mm256_set1_ps(-127.0f), high = _mm256_set1_ps(127.0f);
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 scaled = _mm256_min_ps(high, _mm256_max_ps(low, _mm256_mul_ps(_mm256_loadu_ps(weights + i), factor)));
    const __m256i integers = _mm256_cvtps_epi32(scaled);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), _mm_packs_epi16(words, words));
  }
  round_plain(weights + i, count - i, inverse, to + i);
}
MARU_AVX2 void load_avx2(const std::byte* row, Element element, uint64_t columns, float* to) {
  if (element == Element::kFloat32) return std::memcpy(to, row, columns * sizeof(float)), void();
  const __m256 scale = _mm256_set1_ps(element == Element::kInt8 ? scale_of(row, columns) : 1.0f);
  uint64_t i = 0;
  if (element == Element::kInt8)
    for (; i + 8 <= columns; i += 8)
      _mm256_storeu_ps(to + i, _mm256_mul_ps(eight_floats(row, Element::kInt8, i), scale));
  else if (element == Element::kFloat16)
    for (; i + 8 <= columns; i += 8) _mm256_storeu_ps(to + i, eight_floats(row, Element::kFloat16, i));
  else
    for (; i + 8 <= columns; i += 8) _mm256_storeu_ps(to + i, eight_floats(row, Element::kBfloat16, i));
  load_plain_from(row, element, i, columns, to);
}
__attribute__((target("avx2"))) uint64_t skip_numbers_avx2(const std::byte* weights, uint64_t count,
                                                           uint16_t exponent) {
  constexpr uint64_t kStep = 64;
  const __m256i bits = _mm256_set1_epi16(int16_t(exponent));
  uint64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    __m256i found = _mm256_setzero_si256();
    for (uint64_t part = 0; part < kStep; part += 16) {
      const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 2 * (i + part)));
      found = _mm256_or_si256(found, _mm256_cmpeq_epi16(_mm256_and_si256(row, bits), bits));
    }
    if (!_mm256_testz_si256(found, found)) break;
  }
  return i;
}
#endif

Ways choose_ways() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    return {largest_avx2, round_avx2, load_avx2, turn_avx2, skip_numbers_avx2};
#endif
  return {largest_plain, round_plain, load_plain, turn_plain, skip_none};
}
const Ways& ways() {
  static const Ways chosen = choose_ways();
  return chosen;
}

}  // namespace

uint64_t find_no_number(const std::byte* weights, Element element, uint64_t count) {
  if (element == Element::kFloat32) return find_exponent<uint32_t>(weights, 0, count, 0x7F80'0000u);
  const uint16_t exponent = element == Element::kFloat16 ? 0x7C00 : 0x7F80;
  return find_exponent<uint16_t>(weights, ways().skip_numbers(weights, count, exponent), count, exponent);
}

void turn_to_floats(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, float* to) {
  ways().turn(row, element, rows, columns, to);
}

void load_floats(const std::byte* row, Element element, uint64_t columns, float* to) {
  ways().load(row, element, columns, to);
}

void compress_row(const std::byte* row, Element element, uint64_t columns, std::vector<float>& scratch, std::byte* to) {
  scratch.resize(columns);
  load_floats(row, element, columns, scratch.data());
  const float scale = ways().largest(scratch.data(), columns) / 127.0f;
  // A row of zeros, or of weights too small for a scale, becomes zeros.
  const float inverse = scale > 0x1p-120f ? 1.0f / scale : 0.0f;
  ways().round(scratch.data(), columns, inverse, reinterpret_cast<int8_t*>(to));
  const float stored = inverse == 0.0f ? 0.0f : scale;
  std::memcpy(to + scale_offset(columns), &stored, sizeof(stored));
}

}  // namespace maru::adapters
