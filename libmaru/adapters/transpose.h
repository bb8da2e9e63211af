// Matrices turned over: the rows of the source become the columns of the result. Rows are given by functions, since the rows of
// an adapter lie in parts.
//
// Blocks of 8 x 8, or 4 x 4, go through registers. Rows of a result lie kilobytes apart, often by a power of two, so that they
// compete for few places of the nearest cache. Therefore four blocks, one below the other, make 64 bytes of each row of the
// result, a whole line, before the next line of that row is touched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#include <xmmintrin.h>
#endif

namespace maru::adapters {

inline constexpr uint64_t kLineBytes = 64;

#if defined(__x86_64__)
// Eight rows of eight 16-bit elements, or four rows of four 32-bit elements; of every x86-64. `offset`: in each row. to(i) is
// where row i of the result goes.
template <typename Row>
inline void transpose_block_2(const std::byte* const* from, uint64_t offset, const Row& to) {
  __m128i a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + offset));
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int half = 0; half < 8; half += 4) {
    a[half] = _mm_unpacklo_epi32(b[half], b[half + 2]);
    a[half + 1] = _mm_unpackhi_epi32(b[half], b[half + 2]);
    a[half + 2] = _mm_unpacklo_epi32(b[half + 1], b[half + 3]);
    a[half + 3] = _mm_unpackhi_epi32(b[half + 1], b[half + 3]);
  }
  for (uint64_t i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to(2 * i)), _mm_unpacklo_epi64(a[i], a[i + 4]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to(2 * i + 1)), _mm_unpackhi_epi64(a[i], a[i + 4]));
  }
}
template <typename Row>
inline void transpose_block_4(const std::byte* const* from, uint64_t offset, const Row& to) {
  __m128 a[4];
  for (int i = 0; i < 4; ++i) a[i] = _mm_loadu_ps(reinterpret_cast<const float*>(from[i] + offset));
  _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
  for (uint64_t i = 0; i < 4; ++i) _mm_storeu_ps(reinterpret_cast<float*>(to(i)), a[i]);
}
// A whole line past the caches: the row is not read again soon, and the line need not be read before it is written.
inline void stream_line(std::byte* to, const std::byte* from) {
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_load_si128(reinterpret_cast<const __m128i*>(from) + i));
}
#endif

// `kBytes`: of an element, 2 or 4.
template <uint64_t kBytes, bool kStreams, typename FromRow, typename ToRow>
void transpose_elements(const FromRow& from_row, uint64_t rows, uint64_t columns, const ToRow& to_row) {
  uint64_t whole_rows = 0, whole_columns = 0;
#if defined(__x86_64__)
  constexpr uint64_t kSide = 16 / kBytes, kGroup = kLineBytes / kBytes;
  whole_rows = rows / kSide * kSide, whole_columns = columns / kSide * kSide;
  for (uint64_t row = 0; row < whole_rows; row += kGroup) {
    const uint64_t count = std::min(kGroup, whole_rows - row);
    const bool streams = kStreams && count == kGroup;
    const std::byte* from[kGroup];
    for (uint64_t i = 0; i < count; ++i) from[i] = from_row(row + i);
    for (uint64_t column = 0; column < whole_columns; column += kSide) {
      alignas(kLineBytes) std::byte lines[kSide * kLineBytes];
      for (uint64_t i = 0; i < count; i += kSide) {
        const auto to = [&](uint64_t j) {
          return (streams ? lines + j * kLineBytes : to_row(column + j) + row * kBytes) + i * kBytes;
        };
        if constexpr (kBytes == 2)
          transpose_block_2(from + i, column * kBytes, to);
        else
          transpose_block_4(from + i, column * kBytes, to);
      }
      if (streams)
        for (uint64_t j = 0; j < kSide; ++j) stream_line(to_row(column + j) + row * kBytes, lines + j * kLineBytes);
    }
  }
  if constexpr (kStreams) _mm_sfence();
#endif
  const auto copy = [&](uint64_t row, uint64_t column) {
    std::memcpy(to_row(column) + row * kBytes, from_row(row) + column * kBytes, kBytes);
  };
  for (uint64_t row = 0; row < whole_rows; ++row)
    for (uint64_t column = whole_columns; column < columns; ++column) copy(row, column);
  for (uint64_t row = whole_rows; row < rows; ++row)
    for (uint64_t column = 0; column < columns; ++column) copy(row, column);
}

// from_row(i): the address of a row of the source, of which there are `rows`; to_row(j): of the result, which has `columns`.
// kStreams: rows of the result are aligned to lines of the cache, and are written past it.
template <bool kStreams = false, typename FromRow, typename ToRow>
void transpose(uint64_t element_size, const FromRow& from_row, uint64_t rows, uint64_t columns, const ToRow& to_row) {
  if (element_size == 2)
    transpose_elements<2, kStreams>(from_row, rows, columns, to_row);
  else
    transpose_elements<4, kStreams>(from_row, rows, columns, to_row);
}

}  // namespace maru::adapters
