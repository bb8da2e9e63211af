// Weights of 16 and 32 bits, and of 8 bits with a scale: conversions, and the search for infinities and NaN.
#pragma once

#include "libmaru/adapters/tensor_list.h"

#include <bit>
#include <cstring>

namespace maru::adapters {

inline float float_of_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) return std::bit_cast<float>(sign | 0x7F80'0000 | (magnitude & 0x3FF) << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x3800'0000));
  const float tiny = float(magnitude) * 0x1p-24f;  // a subnormal: exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}
inline float float_of_bfloat(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

// The weight at `at` of a row without scale.
inline float weight_at(const std::byte* row, Element element, uint64_t at) {
  if (element == Element::kFloat32) {
    float value;
    std::memcpy(&value, row + 4 * at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, row + 2 * at, 2);
  return element == Element::kFloat16 ? float_of_half(bits) : float_of_bfloat(bits);
}

// The first weight of the memory that is NaN or infinite; `count` when none is.
uint64_t find_no_number(const std::byte* weights, Element element, uint64_t count);

// Makes `columns` integers of a row, and the scale behind them (placement.h). An integer times the scale differs from the
// weight by at most half of the scale, and the scale is the largest magnitude of the row divided by 127.
void compress_row(const std::byte* row, Element element, uint64_t columns, std::vector<float>& scratch, std::byte* to);

// Rows turned over, as floats: to[column * rows + row].
void turn_to_floats(const std::byte* const* row, Element element, uint64_t rows, uint64_t columns, float* to);

// The weights of a row as floats; of INT8 integers times the row's scale.
void load_floats(const std::byte* row, Element element, uint64_t columns, float* to);

}  // namespace maru::adapters
