// The sum of tokens times powers, of which the name of a window is made: four tokens at a time where the processor has AVX2.
//
// A power of 61 bits is cut into limbs of 21 bits. The product of a limb and a token has 53 bits, so 64 bits hold the sum of
// 2^11 of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maru::blend {

__extension__ typedef unsigned __int128 uint128;

class WeightedSum {
 public:
  // Each power has less than 61 bits.
  explicit WeightedSum(const std::vector<uint64_t>& powers);
  // Of as many tokens as there are powers: the exact sum, which has 61 + 32 + 14 bits at most.
  uint128 of(const uint32_t* tokens) const;
  // The same without AVX2.
  uint128 plain(const uint32_t* tokens) const;
  static bool has_fast_way();

 private:
  static constexpr int kLimbs = 3, kLimbBits = 21;
  static constexpr size_t kTogether = 1 << 11;

  uint128 fast(const uint32_t* tokens) const;

  std::vector<uint64_t> powers_;
  std::vector<uint64_t> limbs_[kLimbs];
};

}  // namespace maru::blend
