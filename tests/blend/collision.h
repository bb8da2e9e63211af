// Two texts with the same name, made with the knowledge of the base.
#pragma once

#include "libmaru/blend/rolling_hash.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace maru::test {

// The names of two texts that differ in their last two tokens alone are the same if x B + y = 0 modulo the prime, for the
// differences x and y. These pairs are a lattice of the plane; its shortest vector, by Lagrange's reduction, has about half as
// many bits as the prime, so that both differences fit into a token.
inline std::pair<std::vector<uint32_t>, std::vector<uint32_t>> colliding_texts(const blend::RollingHash& hash) {
  __extension__ typedef __int128 int128;
  struct Vector {
    int128 x, y;
    int128 dot(const Vector& other) const { return x * other.x + y * other.y; }
  };
  const auto shorter = [](const Vector& a, const Vector& b) {
    const auto size = [](const Vector& v) { return (v.x < 0 ? -v.x : v.x) + (v.y < 0 ? -v.y : v.y); };
    return size(a) < size(b);
  };
  Vector a = {0, int128(blend::kPrime)}, b = {1, -int128(hash.base())};
  while (true) {
    if (shorter(a, b)) std::swap(a, b);
    // b is the shorter one; takes it from a as often as it makes a shorter.
    const long double times = static_cast<long double>(a.dot(b)) / static_cast<long double>(b.dot(b));
    const auto whole = int128(times < 0 ? times - 0.5L : times + 0.5L);
    if (whole == 0) break;
    a = {a.x - whole * b.x, a.y - whole * b.y};
  }
  std::vector<uint32_t> first(hash.window(), 7), second;
  first[first.size() - 2] = first[first.size() - 1] = 1u << 31;
  second = first;
  second[second.size() - 2] = uint32_t(int128(1u << 31) + b.x);
  second[second.size() - 1] = uint32_t(int128(1u << 31) + b.y);
  return {first, second};
}

}  // namespace maru::test
