// Survives SIGBUS in a mapping: the handler replaces the whole mapping by zeroed private memory and raises a flag.
//
// Thread safety: guards are made and ended by one thread. The handler runs on the faulting thread and only reads the
// table of guarded ranges and writes the flag of one. A fault outside every guarded range is not ours: the default action
// is restored and the process dies with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::daemon {

class FaultGuard {
 public:
  FaultGuard() = default;
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  ~FaultGuard() { end(); }

  // Installs the handler, once per process.
  static bool install();

  // Guards [address, address + bytes), a whole mapping. Returns false when every place of the table is taken.
  bool begin(std::byte* address, size_t bytes);
  void end();
  bool has_fired() const;

 private:
  int place_ = -1;
  bool fired_ = false;  // kept after end()
};

}  // namespace maru::daemon
