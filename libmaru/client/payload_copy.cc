#include "libmaru/client/payload_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <span>

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

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

// Which way is the fastest depends on the processor and the memory behind the pool, and no list of models stays true: 32-byte
// streaming stores are the best there is on one, twice as slow as memcpy on another. So a process's first large copies take
// turns and are timed; from then on the best way is the only one. The median of several times counts: others may have the
// core meanwhile, and a page that happens to lie in the cache favours the ways that go through it.
class FastestCopy {
 public:
  FastestCopy() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) add(copy_streaming_64);
    if (__builtin_cpu_supports("avx2")) add(copy_streaming_32);
    if (has_fast_string_move()) add(copy_by_string_move);
#endif
    add(copy_plain);
  }

  void run(void* to, const void* from, size_t bytes) {
    if (const Copy best = best_.load(std::memory_order_relaxed)) return best(to, from, bytes);
    const uint32_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
    Way& way = ways_[turn % count_];
    const uint64_t started_ns = now_ns();
    way.copy(to, from, bytes);
    const uint64_t ns_per_mib = ((now_ns() - started_ns) << 20) / bytes;
    if (turn < count_ * kTurnsEach) way.times[turn / count_].store(ns_per_mib, std::memory_order_relaxed);
    if (turn + 1 >= count_ * kTurnsEach) best_.store(fastest(), std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kTurnsEach = 7;
  struct Way {
    Copy copy = nullptr;
    std::array<std::atomic<uint64_t>, kTurnsEach> times = {};  // ns a MiB; 0 while another thread's turn is not over
    uint64_t median() const {
      std::array<uint64_t, kTurnsEach> sorted;
      for (uint32_t i = 0; i < kTurnsEach; ++i) sorted[i] = times[i].load(std::memory_order_relaxed);
      std::ranges::nth_element(sorted, sorted.begin() + kTurnsEach / 2);
      return sorted[kTurnsEach / 2];
    }
  };

  void add(Copy way) { ways_[count_++].copy = way; }
  // Of equals the first: streaming stores leave the caches to what the caller is working with.
  Copy fastest() const { return std::ranges::min_element(std::span(ways_).first(count_), {}, &Way::median)->copy; }

  std::array<Way, 4> ways_;
  uint32_t count_ = 0;
  std::atomic<uint32_t> turns_{0};
  std::atomic<Copy> best_{nullptr};
};

}  // namespace

void copy_payload(void* to, const void* from, size_t bytes) {
  static FastestCopy fastest;
  if (bytes < kLargeBytes || reinterpret_cast<uintptr_t>(to) % 64 != 0) return copy_plain(to, from, bytes);
  fastest.run(to, from, bytes);
}

}  // namespace maru::client
