// The name of a window of tokens: a polynomial of them modulo 2^61 - 1, which moves by one token with one dependent
// multiplication.
//
//   name(t_0 ... t_(w-1)) = t_0 B^(w-1) + t_1 B^(w-2) + ... + t_(w-1)
//
// Two windows of w tokens have the same name under at most w - 1 of the 2^61 bases B. Modulo 2^64, as others have it, some
// pairs of texts have the same name under every base (Thue and Morse), so that a secret base protects nothing.
#pragma once

#include "libmaru/blend/weighted_sum.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maru::blend {

inline constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

// Of x below 2^122.
inline uint64_t reduced(uint128 x) {
  const uint64_t folded = (uint64_t(x) & kPrime) + uint64_t(x >> 61);
  return folded >= kPrime ? folded - kPrime : folded;
}

class RollingHash {
 public:
  // `secret`: 64 secret bits. `window`: tokens, at least 1.
  RollingHash(uint64_t secret, uint32_t window)
      // A base of few bits would leave the names of small tokens without a reduction.
      : base_((secret % (kPrime - (uint64_t{1} << 32))) + (uint64_t{1} << 32)),
        window_(window),
        leaving_(kPrime - reduced(uint128{powers(base_, window).front()} * base_)),
        sum_(powers(base_, window)) {}

  uint32_t window() const { return window_; }
  uint64_t base() const { return base_; }

  // Without a chain of dependent multiplications.
  uint64_t of(const uint32_t* tokens) const { return reduced(sum_.of(tokens)); }
  // Moves the window by a token: `first` leaves it, `next` enters it. A value of its own, which a loop keeps in registers.
  struct Move {
    uint64_t base, leaving;
    uint64_t operator()(uint64_t hash, uint32_t first, uint32_t next) const {
      const uint128 others = uint128{leaving} * first + next;
      return reduced(uint128{hash} * base + others);
    }
  };
  Move move() const { return {base_, leaving_}; }

 private:
  // base^(window - 1) to base^0.
  static std::vector<uint64_t> powers(uint64_t base, uint32_t window) {
    std::vector<uint64_t> all(window);
    uint64_t power = 1;
    for (size_t i = window; i-- > 0; power = reduced(uint128{power} * base)) all[i] = power;
    return all;
  }

  uint64_t base_;
  uint32_t window_;
  uint64_t leaving_;  // -base^window
  WeightedSum sum_;
};

}  // namespace maru::blend
