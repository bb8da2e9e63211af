// Counts the accesses to shared words that one thread makes between two marks: the cache lines that it loads and writes, its
// atomic read-modify-writes and its flushes. The sources of libmaru are compiled with MARU_SIM here, so that each access to a
// shared word arrives at the functions that include/maru/format/atomic_word.h declares; these do the access at once.
//
// Accesses to private memory (counts of pins, caches of pages) arrive there, too: only those to the given ranges count. Bytes
// that are no shared words (keys, payloads, the header's secret) do not arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::ledger {

struct Count {
  uint64_t loaded = 0;       // lines
  uint64_t written = 0;      // lines, of those that belong to more than one process
  uint64_t own_written = 0;  // lines in the caller's own lane, which other processes only read
  uint64_t modified = 0;     // atomic read-modify-writes
  uint64_t flushed = 0;      // calls that write lines back and wait
};

// The memory whose lines count, and the part of it that is the caller's own lane.
void watch(std::span<const std::byte> memory, std::span<const std::byte> own_lane);

void begin();  // of the calling thread
Count end();

}  // namespace maru::ledger
