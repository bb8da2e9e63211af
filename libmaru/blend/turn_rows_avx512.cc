#include "libmaru/blend/turn_rows_x86.h"
#include "maru/rope.h"

#include <cstring>

#if defined(__x86_64__)
// Its intrinsics begin with vectors that are undefined on purpose, of which g++ 12 warns (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

namespace maru::blend {
namespace {

#define MARU_TURN __attribute__((target("avx512f,avx512bw,avx512vl")))

using Vector = __m512;
constexpr size_t kWidth = 16;

MARU_TURN inline Vector load_floats(const float* at) { return _mm512_loadu_ps(at); }
MARU_TURN inline Vector multiplied(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
MARU_TURN inline Vector fused_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
MARU_TURN inline Vector fused_subtract(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
MARU_TURN inline Vector swapped_neighbours(Vector a) { return _mm512_permute_ps(a, 0b10'11'00'01); }

struct Float32 {
  static constexpr size_t kBytes = 4;
  MARU_TURN static Vector load(const std::byte* at) { return _mm512_loadu_ps(at); }
  MARU_TURN static void store(std::byte* at, Vector v) { _mm512_storeu_ps(at, v); }
};
struct Float16 {
  static constexpr size_t kBytes = 2;
  MARU_TURN static Vector load(const std::byte* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  MARU_TURN static void store(std::byte* at, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};
struct Bfloat16 {
  static constexpr size_t kBytes = 2;
  MARU_TURN static Vector load(const std::byte* at) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // Rounds to nearest, ties to even: adds just less than half of the last place, and one more where the last place is odd.
  MARU_TURN static void store(std::byte* at, Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40'0000));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
};

#include "libmaru/blend/vector_turn.h"
#undef MARU_TURN

}  // namespace

TurnWay avx512_turn_way(uint32_t dtype) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
    return nullptr;
  switch (dtype) {
    case MARU_ROPE_FLOAT16: return turn_rows<Float16>;
    case MARU_ROPE_BFLOAT16: return turn_rows<Bfloat16>;
    default: return turn_rows<Float32>;
  }
}

}  // namespace maru::blend
#else
namespace maru::blend {
TurnWay avx512_turn_way(uint32_t) { return nullptr; }
}  // namespace maru::blend
#endif
