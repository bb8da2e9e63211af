// Flushing: putting lines into memory that outlives the caches of this host.
//
// A host that loses power takes its dirty cache lines with it. In a pool that several hosts share, or that lies on persistent
// memory, a block may be found afterwards only if all its parts were in memory before. So publishers, deleters and processes
// that free write back their changes, in the order that docs/format.md gives under "What a host takes with it". A pool in
// ordinary memory has no such flag and pays one predictable branch.
//
// Thread safety: any thread. No system call; the processor is asked once which instruction it has.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstddef>

namespace maru {
#if defined(MARU_SIM)
namespace sim {
// The fibre's stores become visible, and its lines in [address, address + bytes) are in memory.
void on_flush(const void* address, size_t bytes);
}  // namespace sim
#endif

namespace shm {

// Writes back every line that holds one of these bytes, and waits: stores after it come after it in memory, too.
void flush_lines(const void* address, size_t bytes);

inline void flush(const ControlRegion& region, const void* address, size_t bytes) {
  if (__builtin_expect(region.is_durable(), 0)) flush_lines(address, bytes);
}
template <typename T>
void flush(const ControlRegion& region, const T& object) {
  flush(region, &object, sizeof(T));
}

// "clwb", "clflushopt", "clflush", or "none" where this build knows no instruction: then a fence is all there is.
const char* flush_instruction();

}  // namespace shm
}  // namespace maru
