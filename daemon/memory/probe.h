// Reads memory of a pool to learn whether it can be read: a client's word that a page is bad is not enough to take it out of
// use for ever.
#pragma once

#include "daemon/memory/device.h"

namespace maru::daemon {

// Reads every cache line of [offset, offset + bytes) through a mapping of its own. What is bad comes back with offsets from the
// start of the device. Errors: those of mmap; EIO the device has lost that memory altogether.
Result<std::vector<BadMemory>> probe_memory(const Device& device, uint64_t offset, uint64_t bytes);

}  // namespace maru::daemon
