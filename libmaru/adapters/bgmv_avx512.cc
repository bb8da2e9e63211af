#include "libmaru/adapters/bgmv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
// Its intrinsics begin with vectors that are undefined on purpose, of which g++ 12 warns (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#endif

namespace maru::adapters {

#if defined(__x86_64__)
namespace {

#define MARU_TARGET __attribute__((target("avx512f,avx512bw")))
#define MARU_INLINE MARU_TARGET inline __attribute__((always_inline))

using Vector = __m512;
constexpr uint64_t kLanes = 16;
constexpr unsigned kRequestsAtOnce = 4;

template <Element kElement>
MARU_INLINE Vector load(const std::byte* row, uint64_t at) {
  if constexpr (kElement == Element::kFloat32) return _mm512_loadu_ps(row + 4 * at);
  if constexpr (kElement == Element::kInt8)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + at))));
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * at));
  if constexpr (kElement == Element::kFloat16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
MARU_INLINE Vector zeros() { return _mm512_setzero_ps(); }
MARU_INLINE Vector repeated(float value) { return _mm512_set1_ps(value); }
MARU_INLINE Vector load_floats(const float* at) { return _mm512_loadu_ps(at); }
MARU_INLINE void store_floats(float* at, Vector vector) { _mm512_storeu_ps(at, vector); }
MARU_INLINE Vector fused_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
MARU_INLINE float sum_of(Vector vector) { return _mm512_reduce_add_ps(vector); }

#include "libmaru/adapters/bgmv_tiles.h"

}  // namespace

const BgmvKernels* avx512_kernels() {
  static constexpr BgmvKernels kKernels = {kRequestsAtOnce, shrink, expand};
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? &kKernels : nullptr;
}
#else
const BgmvKernels* avx512_kernels() { return nullptr; }
#endif

}  // namespace maru::adapters
