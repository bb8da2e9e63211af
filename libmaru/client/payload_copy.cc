#include "libmaru/client/payload_copy.h"

#include "libmaru/base/fastest_way.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace maru::client {
namespace {

using Copy = void (*)(void* to, const void* from, size_t bytes);

// Below this the copy is in the caches of the writer's core, and stays useful there for the next reader.
constexpr size_t kLargeBytes = 256u << 10;

void copy_plain(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#if defined(__x86_64__)
// Streaming stores, whole lines at a time. They are ordered with nothing else, hence the fences.
__attribute__((target("avx512f"))) void copy_streaming_64(void* to, const void* from, size_t bytes) {
  constexpr size_t kStep = 256;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t whole = bytes / kStep * kStep;
  for (size_t at = 0; at < whole; at += kStep) {
    const __m512i a = _mm512_loadu_si512(source + at), b = _mm512_loadu_si512(source + at + 64);
    const __m512i c = _mm512_loadu_si512(source + at + 128), d = _mm512_loadu_si512(source + at + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 192), d);
  }
  std::memcpy(target + whole, source + whole, bytes - whole);
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_streaming_32(void* to, const void* from, size_t bytes) {
  constexpr size_t kStep = 128;
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  const size_t whole = bytes / kStep * kStep;
  for (size_t at = 0; at < whole; at += kStep) {
    const auto* in = reinterpret_cast<const __m256i*>(source + at);
    auto* out = reinterpret_cast<__m256i*>(target + at);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
    _mm256_stream_si256(out + 2, c);
    _mm256_stream_si256(out + 3, d);
  }
  std::memcpy(target + whole, source + whole, bytes - whole);
  _mm_sfence();
}

void copy_by_string_move(void* to, const void* from, size_t bytes) {
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

bool has_fast_string_move() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 9 & 1) != 0;  // ERMS
}
#endif

// A process's first large copies take turns (libmaru/base/fastest_way.h). Among equally fast ways the first is the best:
// streaming stores leave the caches to the caller's own data.
class FastestCopy {
 public:
  FastestCopy() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) ways_.add(copy_streaming_64);
    if (__builtin_cpu_supports("avx2")) ways_.add(copy_streaming_32);
    if (has_fast_string_move()) ways_.add(copy_by_string_move);
#endif
    ways_.add(copy_plain);
  }

  void run(void* to, const void* from, size_t bytes) {
    if (const Copy best = ways_.best()) return best(to, from, bytes);
    const auto turn = ways_.begin_turn();
    const uint64_t started_ns = monotonic_ns();
    turn.way(to, from, bytes);
    ways_.end_turn(turn, monotonic_ns() - started_ns, bytes);
  }

 private:
  FastestWay<Copy, 4> ways_;
};

}  // namespace

void copy_payload(void* to, const void* from, size_t bytes) {
  static FastestCopy fastest;
  if (bytes < kLargeBytes || reinterpret_cast<uintptr_t>(to) % 64 != 0) return copy_plain(to, from, bytes);
  fastest.run(to, from, bytes);
}

}  // namespace maru::client
