// Numbers of 16 bits, exactly: to double, and from double with one rounding to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace maru::blend {

inline double double_of_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline double double_of_float16(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude;
  if (exponent == 31)
    magnitude = fraction != 0 ? NAN : INFINITY;
  else if (exponent == 0)
    magnitude = std::ldexp(double(fraction), -24);
  else
    magnitude = std::ldexp(double(fraction | 1024), int(exponent) - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// Of a format with `kFraction` bits of fraction and the smallest exponent of a normal number.
template <int kFraction, int kExponentMin>
uint16_t rounded_to_16_bits(double value) {
  constexpr uint16_t kInfinity = uint16_t(((1 << (15 - kFraction)) - 1) << kFraction);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return uint16_t(sign | kInfinity | 1 << (kFraction - 1));
  if (std::isinf(value)) return uint16_t(sign | kInfinity);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude below 2^exponent
  const int unit = (exponent - 1 < kExponentMin ? kExponentMin : exponent - 1) - kFraction;  // of the last place
  const auto units = uint64_t(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A number of units that has one bit more than the fraction moves on to the next exponent by itself.
  const uint64_t biased = uint64_t(unit + kFraction - kExponentMin);
  const uint64_t bits = (biased << kFraction) + units;
  return uint16_t(sign | (bits >= kInfinity ? kInfinity : uint16_t(bits)));
}
inline uint16_t float16_of(double value) { return rounded_to_16_bits<10, -14>(value); }
inline uint16_t bfloat16_of(double value) { return rounded_to_16_bits<7, -126>(value); }

}  // namespace maru::blend
