#include "libmaru/adapters/bgmv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::adapters {

#if defined(__x86_64__)
namespace {

#define MARU_TARGET __attribute__((target("avx2,fma,f16c")))
#define MARU_INLINE MARU_TARGET inline __attribute__((always_inline))

using Vector = __m256;
constexpr uint64_t kLanes = 8;
constexpr unsigned kRequestsAtOnce = 2;

template <Element kElement>
MARU_INLINE Vector load(const std::byte* row, uint64_t at) {
  if constexpr (kElement == Element::kFloat32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * at));
  if constexpr (kElement == Element::kInt8)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + at))));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * at));
  if constexpr (kElement == Element::kFloat16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
MARU_INLINE Vector zeros() { return _mm256_setzero_ps(); }
MARU_INLINE Vector repeated(float value) { return _mm256_set1_ps(value); }
MARU_INLINE Vector load_floats(const float* at) { return _mm256_loadu_ps(at); }
MARU_INLINE void store_floats(float* at, Vector vector) { _mm256_storeu_ps(at, vector); }
MARU_INLINE Vector fused_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
MARU_INLINE float sum_of(Vector vector) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps(vector, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#include "libmaru/adapters/bgmv_tiles.h"

}  // namespace

const BgmvKernels* avx2_kernels() {
  static constexpr BgmvKernels kKernels = {kRequestsAtOnce, shrink, expand};
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? &kKernels
                                                                                                           : nullptr;
}
#else
const BgmvKernels* avx2_kernels() { return nullptr; }
#endif

}  // namespace maru::adapters
