// The ways this machine has to copy 1 MiB; the floor of store_copy_1mib is the best of them.
#include "tests/bench/floors.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::bench {

namespace {

void copy_by_library(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

#if defined(__x86_64__)
void copy_by_string_move(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

// Non-temporal stores leave the caches alone; both ends are aligned to a line and the size is a multiple of 256.
__attribute__((target("avx2"))) void copy_avx2_streaming(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from + offset);
    auto* target = reinterpret_cast<__m256i*>(to + offset);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
}

__attribute__((target("avx512f"))) void copy_avx512_streaming(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 256) {
    const std::byte* source = from + offset;
    std::byte* target = to + offset;
    const __m512i a = _mm512_loadu_si512(source), b = _mm512_loadu_si512(source + 64);
    const __m512i c = _mm512_loadu_si512(source + 128), d = _mm512_loadu_si512(source + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + 192), d);
  }
  _mm_sfence();
}
#endif

}  // namespace

std::vector<CopyWay> copy_ways() {
  std::vector<CopyWay> ways = {{"memcpy", copy_by_library}};
#if defined(__x86_64__)
  ways.push_back({"rep_movsb", copy_by_string_move});
  if (__builtin_cpu_supports("avx2")) ways.push_back({"avx2_streaming", copy_avx2_streaming});
  if (__builtin_cpu_supports("avx512f")) ways.push_back({"avx512_streaming", copy_avx512_streaming});
#endif
  return ways;
}

}  // namespace maru::bench
