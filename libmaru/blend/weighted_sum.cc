#include "libmaru/blend/weighted_sum.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::blend {

WeightedSum::WeightedSum(const std::vector<uint64_t>& powers) : powers_(powers) {
  if (!has_fast_way()) return;
  for (int limb = 0; limb < kLimbs; ++limb)
    for (const uint64_t power : powers)
      limbs_[limb].push_back(power >> (limb * kLimbBits) & ((uint64_t{1} << kLimbBits) - 1));
}

uint128 WeightedSum::of(const uint32_t* tokens) const { return has_fast_way() ? fast(tokens) : plain(tokens); }

uint128 WeightedSum::plain(const uint32_t* tokens) const {
  uint128 sum = 0;
  for (size_t i = 0; i < powers_.size(); ++i) sum += uint128{powers_[i]} * tokens[i];
  return sum;
}

#if defined(__x86_64__)

bool WeightedSum::has_fast_way() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

__attribute__((target("avx2"))) uint128 WeightedSum::fast(const uint32_t* tokens) const {
  const size_t n = powers_.size(), whole = n / 4 * 4;
  uint128 sum = 0;
  for (size_t begin = 0; begin < whole; begin += kTogether) {
    const size_t end = std::min(begin + kTogether, whole);
    __m256i sums[kLimbs] = {};
    for (size_t i = begin; i < end; i += 4) {
      const __m256i four = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens + i)));
      for (int limb = 0; limb < kLimbs; ++limb) {
        const auto* const at = reinterpret_cast<const __m256i*>(limbs_[limb].data() + i);
        sums[limb] = _mm256_add_epi64(sums[limb], _mm256_mul_epu32(four, _mm256_loadu_si256(at)));
      }
    }
    for (int limb = 0; limb < kLimbs; ++limb) {
      alignas(32) uint64_t lanes[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[limb]);
      for (const uint64_t lane : lanes) sum += uint128{lane} << (limb * kLimbBits);
    }
  }
  for (size_t i = whole; i < n; ++i) sum += uint128{powers_[i]} * tokens[i];
  return sum;
}

#else

bool WeightedSum::has_fast_way() { return false; }
uint128 WeightedSum::fast(const uint32_t* tokens) const { return plain(tokens); }

#endif

}  // namespace maru::blend
