// The caches of hosts, line by line, for scenarios with several hosts (engine.h, play_hosts). One rule makes it simple: two
// hosts share nothing but the memory, so what another host has seen of a line was written back before. A line is clean, or
// dirty in the caches of exactly one host; beside each tracked line stands what it was when it was last written back.
#include "engine_state.h"
#include "libmaru/shm/region/flush.h"

#include <cstdio>
#include <cstring>

namespace maru::sim {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kLinesMax = 4096;
constexpr unsigned kRanges = 2;
constexpr uint8_t kClean = 0xFF;

struct Range {
  std::byte* begin;
  size_t lines;
  std::byte in_memory[kLinesMax * kLineBytes];
  uint8_t dirty_at[kLinesMax];  // host, or kClean
};
Range ranges[kRanges];
unsigned range_count;
bool loses_plain_stores;

Range* range_of(const void* address, size_t* ret_line) {
  for (unsigned i = 0; i < range_count; ++i) {
    const auto* place = static_cast<const std::byte*>(address);
    if (place < ranges[i].begin || place >= ranges[i].begin + ranges[i].lines * kLineBytes) continue;
    *ret_line = size_t(place - ranges[i].begin) / kLineBytes;
    return &ranges[i];
  }
  return nullptr;
}

void write_back(Range& range, size_t line) {
  std::memcpy(range.in_memory + line * kLineBytes, range.begin + line * kLineBytes, kLineBytes);
  range.dirty_at[line] = kClean;
}

unsigned running_host() { return engine.host_of_process(engine.fibres[engine.current].process); }

}  // namespace

void forget_lines() {
  range_count = 0;
  loses_plain_stores = false;
}

void lose_plain_stores() { loses_plain_stores = true; }

void note_plain_stores() {
  if (!loses_plain_stores || engine.host_of_process == nullptr || engine.current == kNobody) return;
  for (unsigned i = 0; i < range_count; ++i) {
    Range& range = ranges[i];
    const size_t bytes = range.lines * kLineBytes;
    if (std::memcmp(range.begin, range.in_memory, bytes) == 0) continue;
    for (size_t line = 0; line < range.lines; ++line) {
      const size_t at = line * kLineBytes;
      if (range.dirty_at[line] == kClean && std::memcmp(range.begin + at, range.in_memory + at, kLineBytes) != 0)
        range.dirty_at[line] = uint8_t(running_host());
    }
  }
}

void track_lines(void* begin, size_t bytes) {
  if (range_count == kRanges || bytes % kLineBytes != 0 || bytes / kLineBytes > kLinesMax)
    fail("these %zu bytes cannot be tracked", bytes);
  ranges[range_count].begin = static_cast<std::byte*>(begin);
  ranges[range_count++].lines = bytes / kLineBytes;
}

void play_hosts(unsigned (*host_of_process)(unsigned process), void (*lost)(unsigned host)) {
  engine.host_of_process = host_of_process;
  engine.lines_lost = lost;
  for (unsigned i = 0; i < range_count; ++i) {
    std::memcpy(ranges[i].in_memory, ranges[i].begin, ranges[i].lines * kLineBytes);
    std::memset(ranges[i].dirty_at, kClean, ranges[i].lines);
  }
}

bool host_died(unsigned host) { return (engine.dead_hosts >> host & 1) != 0; }

void line_written(const void* address, unsigned process) {
  size_t line;
  Range* range = range_of(address, &line);
  if (range == nullptr) return;
  const unsigned host = engine.host_of_process(process);
  // Another host's caches give it up to the memory; its own may have written it back at any time.
  if (range->dirty_at[line] != kClean && (range->dirty_at[line] != host || engine.random.chance(8)))
    write_back(*range, line);
  range->dirty_at[line] = uint8_t(host);
}

void line_read(const void* address) {
  size_t line;
  Range* range = range_of(address, &line);
  if (range != nullptr && range->dirty_at[line] != kClean && range->dirty_at[line] != running_host())
    write_back(*range, line);
}

void on_flush(const void* address, size_t bytes) {
  if (direct() || engine.host_of_process == nullptr || bytes == 0) return;
  point();
  make_all_visible(engine.current);
  if (engine.settings.trace) trace_access("flush", engine.fibres[engine.current], address, bytes, "");
  const auto first = reinterpret_cast<uintptr_t>(address) / kLineBytes * kLineBytes;
  for (uintptr_t at = first; at < reinterpret_cast<uintptr_t>(address) + bytes; at += kLineBytes) {
    size_t line;
    Range* range = range_of(reinterpret_cast<const void*>(at), &line);
    if (range != nullptr && range->dirty_at[line] == running_host()) write_back(*range, line);
  }
}

void lose_lines(unsigned host) {
  for (unsigned i = 0; i < range_count; ++i) {
    Range& range = ranges[i];
    for (size_t line = 0; line < range.lines; ++line) {
      if (range.dirty_at[line] != host) continue;
      std::byte* now = range.begin + line * kLineBytes;
      const std::byte* before = range.in_memory + line * kLineBytes;
      if (engine.random.chance(2)) {
        write_back(range, line);
        continue;
      }
      for (size_t at = 0; engine.settings.trace && at < kLineBytes; at += 8) {
        uint64_t value;
        std::memcpy(&value, before + at, 8);
        if (std::memcmp(now + at, before + at, 8) != 0)
          trace_access("reverts", engine.fibres[engine.current], now + at, value, "(its host lost the line)");
      }
      std::memcpy(now, before, kLineBytes);
      range.dirty_at[line] = kClean;
    }
  }
}

}  // namespace maru::sim
