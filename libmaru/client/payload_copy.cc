#include "libmaru/client/payload_copy.h"

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
// Whole lines at a time: 32-byte streaming stores are slower than memcpy on some machines, 64-byte ones faster on all.
__attribute__((target("avx512f"))) void copy_streaming(void* to, const void* from, size_t bytes) {
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
  _mm_sfence();  // streaming stores are ordered with nothing else
}

void copy_by_string_move(void* to, const void* from, size_t bytes) {
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

bool has_fast_string_move() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 9 & 1) != 0;  // ERMS
}
#endif

Copy best_copy() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return copy_streaming;
  if (has_fast_string_move()) return copy_by_string_move;
#endif
  return copy_plain;
}

}  // namespace

void copy_payload(void* to, const void* from, size_t bytes) {
  static const Copy large = best_copy();
  (bytes >= kLargeBytes && reinterpret_cast<uintptr_t>(to) % 64 == 0 ? large : copy_plain)(to, from, bytes);
}

}  // namespace maru::client
