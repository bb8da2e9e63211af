#include "libmaru/adapters/bgmv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::adapters {

#if defined(__x86_64__)
namespace {

// Functions with these instructions; a lambda would have none of them.
#define MARU_TARGET __attribute__((target("avx512f,avx512bw")))

constexpr uint64_t kLanes = 16;

template <Element kElement>
MARU_TARGET inline __attribute__((always_inline)) __m512 load(const std::byte* row, uint64_t at) {
  if constexpr (kElement == Element::kFloat32) return _mm512_loadu_ps(row + 4 * at);
  if constexpr (kElement == Element::kInt8)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + at))));
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * at));
  if constexpr (kElement == Element::kFloat16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

MARU_TARGET inline __attribute__((always_inline)) float sum_of(__m512 vector) { return _mm512_reduce_add_ps(vector); }

template <Element kElement, unsigned kRequests>
MARU_TARGET void shrink_tile(const std::byte* const* rows, uint64_t columns, const float* const* inputs, float* sums) {
  __m512 totals[kRequests][kRowsAtOnce];
#pragma GCC unroll 4
  for (unsigned request = 0; request < kRequests; ++request)
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) totals[request][row] = _mm512_setzero_ps();
  uint64_t at = 0;
  for (; at + kLanes <= columns; at += kLanes) {
    __m512 weights[kRowsAtOnce];
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) weights[row] = load<kElement>(rows[row], at);
#pragma GCC unroll 4
    for (unsigned request = 0; request < kRequests; ++request) {
      const __m512 input = _mm512_loadu_ps(inputs[request] + at);
#pragma GCC unroll 4
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        totals[request][row] = _mm512_fmadd_ps(weights[row], input, totals[request][row]);
    }
  }
#pragma GCC unroll 4
  for (unsigned request = 0; request < kRequests; ++request)
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) {
      float sum = sum_of(totals[request][row]);
      for (uint64_t rest = at; rest < columns; ++rest)
        sum += weight_of(rows[row], kElement, rest) * inputs[request][rest];
      sums[request * kRowsAtOnce + row] = sum;
    }
}

template <Element kElement, unsigned kRequests>
MARU_TARGET void expand_tile(const std::byte* const* rows, uint64_t first, uint64_t count, const float* factors,
                             float* const* outputs) {
  const uint64_t end = first + count;
  uint64_t at = first;
  for (; at + kLanes <= end; at += kLanes) {
    __m512 weights[kRowsAtOnce];
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) weights[row] = load<kElement>(rows[row], at);
#pragma GCC unroll 4
    for (unsigned request = 0; request < kRequests; ++request) {
      __m512 output = _mm512_loadu_ps(outputs[request] + at);
#pragma GCC unroll 4
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        output = _mm512_fmadd_ps(_mm512_set1_ps(factors[request * kRowsAtOnce + row]), weights[row], output);
      _mm512_storeu_ps(outputs[request] + at, output);
    }
  }
  for (; at < end; ++at)
    for (unsigned request = 0; request < kRequests; ++request)
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        outputs[request][at] += factors[request * kRowsAtOnce + row] * weight_of(rows[row], kElement, at);
}

template <Element kElement>
void shrink_of(const std::byte* const* rows, uint64_t columns, const float* const* inputs, unsigned requests,
               float* sums) {
  switch (requests) {
    case 1: return shrink_tile<kElement, 1>(rows, columns, inputs, sums);
    case 2: return shrink_tile<kElement, 2>(rows, columns, inputs, sums);
    case 3: return shrink_tile<kElement, 3>(rows, columns, inputs, sums);
    case 4: return shrink_tile<kElement, 4>(rows, columns, inputs, sums);
  }
}
template <Element kElement>
void expand_of(const std::byte* const* rows, uint64_t first, uint64_t count, const float* factors,
               float* const* outputs, unsigned requests) {
  switch (requests) {
    case 1: return expand_tile<kElement, 1>(rows, first, count, factors, outputs);
    case 2: return expand_tile<kElement, 2>(rows, first, count, factors, outputs);
    case 3: return expand_tile<kElement, 3>(rows, first, count, factors, outputs);
    case 4: return expand_tile<kElement, 4>(rows, first, count, factors, outputs);
  }
}

void shrink(const std::byte* const* rows, Element element, uint64_t columns, const float* const* inputs,
            unsigned requests, float* sums) {
  switch (element) {
    case Element::kFloat32: return shrink_of<Element::kFloat32>(rows, columns, inputs, requests, sums);
    case Element::kFloat16: return shrink_of<Element::kFloat16>(rows, columns, inputs, requests, sums);
    case Element::kBfloat16: return shrink_of<Element::kBfloat16>(rows, columns, inputs, requests, sums);
    case Element::kInt8: return shrink_of<Element::kInt8>(rows, columns, inputs, requests, sums);
  }
}

void expand(const std::byte* const* rows, Element element, uint64_t first, uint64_t count, const float* factors,
            float* const* outputs, unsigned requests) {
  switch (element) {
    case Element::kFloat32: return expand_of<Element::kFloat32>(rows, first, count, factors, outputs, requests);
    case Element::kFloat16: return expand_of<Element::kFloat16>(rows, first, count, factors, outputs, requests);
    case Element::kBfloat16: return expand_of<Element::kBfloat16>(rows, first, count, factors, outputs, requests);
    case Element::kInt8: return expand_of<Element::kInt8>(rows, first, count, factors, outputs, requests);
  }
}

}  // namespace

const BgmvKernels* avx512_kernels() {
  static constexpr BgmvKernels kKernels = {4, shrink, expand};
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? &kKernels : nullptr;
}
#else
const BgmvKernels* avx512_kernels() { return nullptr; }
#endif

}  // namespace maru::adapters
