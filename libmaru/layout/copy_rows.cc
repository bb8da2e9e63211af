#include "libmaru/layout/copy_rows.h"

#include "libmaru/base/fastest_way.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace maru::layout {
namespace {

// Below this the copy is in the caches of the writer's core, and stays useful there.
constexpr uint64_t kLargeBytes = 1u << 20;
// A turn of a way: more than the caches closest to the core hold, and less than a process copies before it wants speed.
constexpr uint64_t kTurnBytes = 256u << 10;
constexpr uint64_t kLineBytes = 64;

// Calls copy(to, from) for each run.
template <typename Copy>
inline __attribute__((always_inline)) void for_each_run(const Rows& rows, const Copy& copy) {
  uint64_t to = 0, from = 0;
  for (uint64_t i = 0; i < rows.count; ++i, to += rows.to_stride, from += rows.from_stride)
    for (const Lane& lane : rows.lanes) copy(lane.to + to, lane.from + from);
}

template <uint64_t kBytes>
void copy_fixed(const Rows& rows) {
  for_each_run(rows, [](std::byte* to, const std::byte* from) { std::memcpy(to, from, kBytes); });
}

// Short rows of the lengths that heads have cost a few loads and stores, not a call.
void copy_plain(const Rows& rows) {
  switch (rows.run_bytes) {
    case 1: return copy_fixed<1>(rows);
    case 2: return copy_fixed<2>(rows);
    case 4: return copy_fixed<4>(rows);
    case 8: return copy_fixed<8>(rows);
    case 16: return copy_fixed<16>(rows);
    case 32: return copy_fixed<32>(rows);
    case 64: return copy_fixed<64>(rows);
    case 128: return copy_fixed<128>(rows);
    case 256: return copy_fixed<256>(rows);
  }
  for_each_run(rows, [&](std::byte* to, const std::byte* from) { std::memcpy(to, from, rows.run_bytes); });
}

#if defined(__x86_64__)
// Streaming stores of whole lines: the caller makes sure that every run begins at a line and has whole lines. Loops by hand, as
// a lambda has none of its function's instructions.
__attribute__((target("avx512f"))) void copy_streaming_64(const Rows& rows) {
  uint64_t to_row = 0, from_row = 0;
  for (uint64_t i = 0; i < rows.count; ++i, to_row += rows.to_stride, from_row += rows.from_stride)
    for (const Lane& lane : rows.lanes) {
      std::byte* const to = lane.to + to_row;
      const std::byte* const from = lane.from + from_row;
      uint64_t at = 0;
      for (; at + 256 <= rows.run_bytes; at += 256) {
        const __m512i a = _mm512_loadu_si512(from + at), b = _mm512_loadu_si512(from + at + 64);
        const __m512i c = _mm512_loadu_si512(from + at + 128), d = _mm512_loadu_si512(from + at + 192);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64), b);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 128), c);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 192), d);
      }
      for (; at < rows.run_bytes; at += 64)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
    }
}

__attribute__((target("avx2"))) void copy_streaming_32(const Rows& rows) {
  uint64_t to_row = 0, from_row = 0;
  for (uint64_t i = 0; i < rows.count; ++i, to_row += rows.to_stride, from_row += rows.from_stride)
    for (const Lane& lane : rows.lanes) {
      std::byte* const to = lane.to + to_row;
      const std::byte* const from = lane.from + from_row;
      for (uint64_t at = 0; at < rows.run_bytes; at += 64) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
      }
    }
}

void copy_by_string_move(const Rows& rows) {
  for_each_run(rows, [&](std::byte* to, const std::byte* from) {
    uint64_t bytes = rows.run_bytes;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  });
}

bool has_fast_string_move() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 9 & 1) != 0;  // ERMS
}

void order_stores() { _mm_sfence(); }
#else
void order_stores() {}
#endif

// The fastest ways for runs of a kilobyte, or of a line, differ from the fastest ways for runs of a page.
int length_of(uint64_t run_bytes) { return run_bytes < 512 ? 0 : run_bytes < 4096 ? 1 : 2; }

class Ways : public FastestWay<CopyWay, 4> {
 public:
  Ways() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) add(copy_streaming_64);
    if (__builtin_cpu_supports("avx2")) add(copy_streaming_32);
    if (has_fast_string_move()) add(copy_by_string_move);
#endif
    add(copy_plain);
  }
};

Ways& ways_of(int length) {
  static Ways ways[3];
  return ways[length];
}

bool has_whole_lines(const Rows& rows) {
  uintptr_t together = rows.run_bytes | (rows.count > 1 ? rows.to_stride : 0);
  for (const Lane& lane : rows.lanes) together |= reinterpret_cast<uintptr_t>(lane.to);
  return together % kLineBytes == 0;
}

}  // namespace

RowCopier::RowCopier(uint64_t total_bytes) : is_large_(total_bytes >= kLargeBytes) {
  for (int length = 0; length < kClasses; ++length) best_[length] = is_large_ ? ways_of(length).best() : copy_plain;
}

RowCopier::~RowCopier() { order_stores(); }

void RowCopier::copy(const Rows& rows) {
  if (!is_large_ || !has_whole_lines(rows)) return copy_plain(rows);
  const int length = length_of(rows.run_bytes);
  if (const CopyWay best = best_[length]) return best(rows);
  // In pieces of a turn, so that a single long run gives each way its turns.
  std::array<Lane, kLanesMax> moved;
  const std::span<Lane> lanes = std::span(moved).first(rows.lanes.size());
  const uint64_t run_step = std::min(rows.run_bytes, kTurnBytes);
  const uint64_t row_step = std::max<uint64_t>(1, kTurnBytes / (rows.run_bytes * lanes.size()));
  for (uint64_t row = 0; row < rows.count; row += row_step)
    for (uint64_t at = 0; at < rows.run_bytes; at += run_step) {
      for (size_t i = 0; i < lanes.size(); ++i)
        lanes[i] = {rows.lanes[i].to + row * rows.to_stride + at, rows.lanes[i].from + row * rows.from_stride + at};
      try_ways({lanes, std::min(run_step, rows.run_bytes - at), std::min(row_step, rows.count - row), rows.to_stride,
                rows.from_stride},
               length);
    }
}

void RowCopier::try_ways(const Rows& rows, int length) {
  if (const CopyWay best = best_[length]) return best(rows);
  Ways& ways = ways_of(length);
  Trial& trial = trials_[length];
  if (trial.way == nullptr) {
    const auto turn = ways.begin_turn();
    trial = {turn.number, turn.way};
  }
  const uint64_t began_ns = monotonic_ns();
  trial.way(rows);
  trial.ns += monotonic_ns() - began_ns;
  trial.bytes += rows.run_bytes * rows.count * rows.lanes.size();
  if (trial.bytes < kTurnBytes) return;
  ways.end_turn({trial.number, trial.way}, trial.ns, trial.bytes);
  trial.way = nullptr;
  best_[length] = ways.best();
}

}  // namespace maru::layout
