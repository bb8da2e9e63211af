// Survives SIGBUS in a mapping, and reports it.
//
// A memory error (BUS_MCEERR_AR: an access met memory that the machine can no longer read) takes away the pages around it and
// nothing else. The handler puts zeroed private memory in their place, so that the access goes on with zeros, and notes them.
// An early notice (BUS_MCEERR_AO: no access has met it yet) is noted. Any other SIGBUS means that the mapping has lost its
// memory, as when a file was truncated: the whole of it is replaced, and a flag raised.
//
// Thread safety: a guard belongs to one thread at a time. The handler runs on the faulting thread, only reads the table
// of guarded ranges, and writes the notes of one range. A fault outside every guarded range is not ours: the default
// action is restored and the process dies with it. An early notice about memory outside of them changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maru::daemon {

// The memory that an error took away.
struct BadMemory {
  uint64_t offset;  // bytes from the start of the guarded range
  uint64_t bytes;
  friend bool operator==(const BadMemory&, const BadMemory&) = default;
};

class FaultGuard {
 public:
  // Memory errors that are noted for one range; with one more the whole mapping counts as lost.
  static constexpr int kBadMax = 16;

  FaultGuard() = default;
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  ~FaultGuard() { end(); }

  // Installs the handler, once per process.
  static bool install();

  // Guards [address, address + bytes), a whole mapping, of which parts that are a multiple of `alignment` may be replaced.
  // Returns false when every place of the table is taken.
  bool begin(std::byte* address, size_t bytes, size_t alignment = 4096);
  void end();
  // The mapping has lost its memory.
  bool has_fired() const;
  // Memory errors so far, in the order in which they came, each place once.
  std::vector<BadMemory> bad_memory() const;

 private:
  int place_ = -1;
  bool fired_ = false;  // this and the next are kept after end()
  std::vector<BadMemory> bad_;
};

}  // namespace maru::daemon
