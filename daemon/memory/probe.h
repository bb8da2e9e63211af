// Reads memory of a pool's pages, which marud does not map: to learn whether it can be read, since a client's word that a page is
// bad is not enough to take it out of use for ever; and to show what a block says of itself.
#pragma once

#include "daemon/memory/device.h"
#include "maru/format/atomic_word.h"

#include <functional>
#include <span>

namespace maru::daemon {

// Reads every cache line of [offset, offset + bytes) through a mapping of its own. What is bad comes back with offsets from the
// start of the device. Errors: those of mmap; EIO the device has lost that memory altogether.
Result<std::vector<BadMemory>> probe_memory(const Device& device, uint64_t offset, uint64_t bytes);

// Has `read` copy the words of [offset, offset + bytes), where `offset` is a multiple of 8; the last may reach beyond the end. They
// are mapped during the call alone. Errors: those of mmap; EIO some of it cannot be read, and what `read` got means nothing.
Result<void> read_memory(const Device& device, uint64_t offset, uint64_t bytes,
                         const std::function<void(std::span<const AtomicU64>)>& read);

}  // namespace maru::daemon
