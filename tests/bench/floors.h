// The machine's own floors: what the same memory costs without any of our logic.
#pragma once

#include "tests/bench/keys.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace maru::bench {

// Pins the calling thread, or process `pid`, to one CPU of those this process may use (modulo their number).
void run_on_cpu(unsigned cpu, int pid = 0);
// Lets the calling thread use all of them again.
void run_on_all_cpus();
unsigned cpu_count();

// A memfd mapping with the pool's huge-page setting, every page of it touched.
class FloorMemory {
 public:
  FloorMemory(uint64_t bytes, bool huge);
  ~FloorMemory();
  FloorMemory(const FloorMemory&) = delete;
  FloorMemory& operator=(const FloorMemory&) = delete;
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* reservation_ = nullptr;
  uint64_t reservation_bytes_ = 0;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// True when a mapping of this process whose name contains `part` has huge pages in it.
bool huge_pages_mapped(const std::string& part);

// Loads over a footprint the size of the registry (its first lines) and of the block lines of a pool with `pages`
// pages.
class LoadFloor {
 public:
  LoadFloor(uint64_t pages, bool huge);

  // Each load's address needs the value of the load before: the latency of memory. Nanoseconds per load.
  double dependent(uint64_t loads);
  // The same, alternating between the registry and the block lines. Nanoseconds per pair.
  double dependent_pairs(uint64_t pairs);
  // 256 loads, each prefetched well ahead. Nanoseconds per load.
  double gathered(uint64_t batches);
  // What a 16-ary search of 256 keys cannot do without. Nanoseconds per search.
  double searches(uint64_t count);
  // `loads` dependent loads, `swaps` compare-and-swaps and `copy_bytes` (64 at most) copied. Nanoseconds per round.
  double update(uint64_t count, unsigned loads, unsigned swaps, size_t copy_bytes);

 private:
  void shuffle(std::vector<uint32_t>& indices, uint64_t bound, uint64_t count);

  static constexpr uint64_t kBucketBytes = 128;
  static constexpr uint64_t kLineBytes = 64;
  uint64_t buckets_;
  uint64_t lines_;
  FloorMemory registry_;
  FloorMemory blocks_;
  Random random_{42};
  std::vector<uint32_t> first_;
  std::vector<uint32_t> second_;
};

// Two exchanges on a line nobody else uses. Nanoseconds per two.
double exchange_floor(uint64_t count);
// Reading one word of each of `lines` lines. Nanoseconds per pass.
double line_read_floor(uint64_t passes, unsigned lines);
// A compare-and-swap and a store on each of `lines` lines. Nanoseconds per pass.
double line_update_floor(uint64_t passes, unsigned lines);

// Copies of 1 MiB into changing places: the ways this machine has, by name.
struct CopyWay {
  std::string name;
  void (*copy)(std::byte* to, const std::byte* from, size_t bytes);
};
std::vector<CopyWay> copy_ways();

}  // namespace maru::bench
