#include "libmaru/blend/turn_rows_x86.h"
#include "maru/rope.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

namespace maru::blend {
namespace {

#define MARU_TURN __attribute__((target("avx2,fma,f16c")))

using Vector = __m256;
constexpr size_t kWidth = 8;

MARU_TURN inline Vector load_floats(const float* at) { return _mm256_loadu_ps(at); }
MARU_TURN inline Vector multiplied(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
MARU_TURN inline Vector fused_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
MARU_TURN inline Vector fused_subtract(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }
MARU_TURN inline Vector swapped_neighbours(Vector a) { return _mm256_permute_ps(a, 0b10'11'00'01); }

struct Float32 {
  static constexpr size_t kBytes = 4;
  MARU_TURN static Vector load(const std::byte* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
  MARU_TURN static void store(std::byte* at, Vector v) { _mm256_storeu_ps(reinterpret_cast<float*>(at), v); }
};
struct Float16 {
  static constexpr size_t kBytes = 2;
  MARU_TURN static Vector load(const std::byte* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  MARU_TURN static void store(std::byte* at, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};
struct Bfloat16 {
  static constexpr size_t kBytes = 2;
  MARU_TURN static Vector load(const std::byte* at) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // Rounds to nearest, ties to even: adds just less than half of the last place, and one more where the last place is odd.
  MARU_TURN static void store(std::byte* at, Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40'0000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0b11'01'10'00);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(packed));
  }
};

#include "libmaru/blend/vector_turn.h"
#undef MARU_TURN

// Which not every compiler knows by name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

}  // namespace

TurnWay avx2_turn_way(uint32_t dtype) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return nullptr;
  switch (dtype) {
    case MARU_ROPE_FLOAT16: return turn_rows<Float16>;
    case MARU_ROPE_BFLOAT16: return turn_rows<Bfloat16>;
    default: return turn_rows<Float32>;
  }
}

}  // namespace maru::blend
#else
namespace maru::blend {
TurnWay avx2_turn_way(uint32_t) { return nullptr; }
}  // namespace maru::blend
#endif
