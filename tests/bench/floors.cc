#include "tests/bench/floors.h"

#include "tests/bench/clock.h"

#include <cstring>
#include <fstream>
#include <sched.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::bench {

#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // Linux 6.1, newer than Debian 12's C library
#endif

namespace {

constexpr uint64_t kHugePageBytes = 2ull << 20;

// The CPUs this process was started with: later calls narrow its own mask.
const std::vector<int>& allowed_cpus() {
  static const std::vector<int> cpus = [] {
    std::vector<int> found;
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    }
    return found;
  }();
  return cpus;
}

uint64_t load_word(const std::byte* base, uint64_t offset) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(base + offset), __ATOMIC_RELAXED);
}

}  // namespace

unsigned cpu_count() { return unsigned(allowed_cpus().size()); }

void run_on_cpu(unsigned cpu, int pid) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(allowed_cpus()[cpu % cpu_count()], &set);
  sched_setaffinity(pid, sizeof set, &set);  // a refusal only makes the numbers noisier
}

void run_on_all_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : allowed_cpus()) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

FloorMemory::FloorMemory(uint64_t bytes, bool huge) : bytes_((bytes + kHugePageBytes - 1) & ~(kHugePageBytes - 1)) {
  const int fd = memfd_create("bench-floor", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(bytes_)) != 0) throw std::runtime_error("memfd for the floors");
  reservation_bytes_ = bytes_ + kHugePageBytes;
  void* reserved = mmap(nullptr, reservation_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::runtime_error("address space for the floors");
  reservation_ = static_cast<std::byte*>(reserved);
  const uintptr_t aligned = (uintptr_t(reserved) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  void* mapped = mmap(reinterpret_cast<void*>(aligned), bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) throw std::runtime_error("mapping for the floors");
  data_ = static_cast<std::byte*>(mapped);
  madvise(data_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  if (huge) {
    // Collapsing works where the system does not give shared memory huge pages by itself, but not on holes.
    for (uint64_t offset = 0; offset < bytes_; offset += kHugePageBytes) data_[offset] = std::byte{0};
    madvise(data_, bytes_, MADV_COLLAPSE);
  }
  for (uint64_t offset = 0; offset < bytes_; offset += 4096) data_[offset] = std::byte{0};
}

FloorMemory::~FloorMemory() { munmap(reservation_, reservation_bytes_); }

bool huge_pages_mapped(const std::string& part) {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    const bool heading = space != std::string::npos && line.find('-') < space;
    if (heading) inside = line.find(part) != std::string::npos;
    if (!inside || heading) continue;
    for (const char* field : {"ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"}) {
      if (line.starts_with(field) && std::stoull(line.substr(std::strlen(field))) > 0) return true;
    }
  }
  return false;
}

// A registry has 7 slots a bucket and is at most half full.
LoadFloor::LoadFloor(uint64_t pages, bool huge)
    : buckets_(pages * 2 / 7 + 1),
      lines_(pages),
      registry_(buckets_ * kBucketBytes, huge),
      blocks_(lines_ * kLineBytes, huge) {}

void LoadFloor::shuffle(std::vector<uint32_t>& indices, uint64_t bound, uint64_t count) {
  indices.resize(count);
  for (uint32_t& index : indices) index = uint32_t(random_.below(bound));
}

// Every word of the floor memory is zero, which the processor cannot know: adding what was loaded to the next index
// makes the next load wait for it, and the indices themselves stream in from an array.
double LoadFloor::dependent(uint64_t loads) {
  shuffle(first_, buckets_, loads);
  uint64_t value = 0;
  return typical_ns(loads, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) value = load_word(registry_.data(), (first_[i] + value) * kBucketBytes);
    keep(value);
  });
}

double LoadFloor::dependent_pairs(uint64_t pairs) {
  shuffle(first_, buckets_, pairs);
  shuffle(second_, lines_, pairs);
  uint64_t value = 0;
  return typical_ns(pairs, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      value = load_word(registry_.data(), (first_[i] + value) * kBucketBytes);
      value = load_word(blocks_.data(), (second_[i] + value) * kLineBytes);
    }
    keep(value);
  });
}

double LoadFloor::gathered(uint64_t batches) {
  constexpr uint64_t kAhead = 24;  // more than the processor has buffers for, less than its first-level cache holds
  shuffle(first_, buckets_, batches * 256);
  uint64_t sum = 0;
  return typical_ns(batches,
                    [&](uint64_t begin, uint64_t end) {
                      for (uint64_t batch = begin; batch < end; ++batch) {
                        const uint32_t* indices = &first_[batch * 256];
                        for (uint64_t i = 0; i < kAhead; ++i)
                          __builtin_prefetch(registry_.data() + indices[i] * kBucketBytes);
                        for (uint64_t i = 0; i < 256; ++i) {
                          if (i + kAhead < 256)
                            __builtin_prefetch(registry_.data() + indices[i + kAhead] * kBucketBytes);
                          sum += load_word(registry_.data(), indices[i] * kBucketBytes);
                        }
                      }
                      keep(sum);
                    }) /
         256;
}

double LoadFloor::searches(uint64_t count) {
  shuffle(first_, buckets_, count * 32);
  shuffle(second_, lines_, count);
  uint64_t value = 0;
  return typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t search = begin; search < end; ++search) {
      for (uint64_t round = 0; round < 2; ++round) {
        const uint32_t* indices = &first_[search * 32 + round * 16];
        uint64_t sum = 0;
        for (int i = 0; i < 16; ++i) sum += load_word(registry_.data(), (indices[i] + value) * kBucketBytes);
        value = sum;
      }
      value = load_word(blocks_.data(), (second_[search] + value) * kLineBytes);
    }
    keep(value);
  });
}

double LoadFloor::update(uint64_t count, unsigned loads, unsigned swaps, size_t copy_bytes) {
  shuffle(first_, buckets_, count * loads);
  alignas(64) static uint64_t lines[8][8];
  alignas(64) static std::byte from[64], to[64];
  uint64_t value = 0;
  return typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      for (unsigned load = 0; load < loads; ++load) {
        value = load_word(registry_.data(), (first_[i * loads + load] + value) * kBucketBytes);
      }
      for (unsigned swap = 0; swap < swaps; ++swap) {
        uint64_t expected = lines[swap % 8][0];
        __atomic_compare_exchange_n(&lines[swap % 8][0], &expected, expected + 1, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
      }
      std::memcpy(to, from, copy_bytes < sizeof to ? copy_bytes : sizeof to);
      keep(to);
    }
    keep(value);
  });
}

double exchange_floor(uint64_t count) {
  alignas(64) static uint64_t word = 0;
  return typical_ns(count, [](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      keep(__atomic_exchange_n(&word, i, __ATOMIC_SEQ_CST));
      keep(__atomic_exchange_n(&word, 0, __ATOMIC_SEQ_CST));
    }
  });
}

double line_read_floor(uint64_t passes, unsigned lines) {
  std::vector<uint64_t> words(lines * 8ull);
  Stopwatch watch;
  watch.start();
  for (uint64_t pass = 0; pass < passes; ++pass) {
    uint64_t sum = 0;
    for (unsigned line = 0; line < lines; ++line) sum += __atomic_load_n(&words[line * 8ull], __ATOMIC_RELAXED);
    keep(sum);
  }
  watch.stop();
  return watch.per(passes);
}

double line_update_floor(uint64_t passes, unsigned lines) {
  std::vector<uint64_t> words(lines * 8ull);
  Stopwatch watch;
  watch.start();
  for (uint64_t pass = 0; pass < passes; ++pass) {
    for (unsigned line = 0; line < lines; ++line) {
      uint64_t expected = pass;
      __atomic_compare_exchange_n(&words[line * 8ull], &expected, pass + 7, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    for (unsigned line = 0; line < lines; ++line) __atomic_store_n(&words[line * 8ull], pass + 1, __ATOMIC_RELEASE);
  }
  watch.stop();
  return watch.per(passes);
}

}  // namespace maru::bench
