// Reads memory of a pool's pages, which marud does not map. It reads a page to learn whether the page is bad, since a client's
// word is not enough to take a page out of use for ever. It reads the metadata of a block to show it to an administrator.
#pragma once

#include "daemon/memory/device.h"
#include "maru/format/atomic_word.h"

#include <functional>
#include <span>

namespace maru::daemon {

// Reads every cache line of [offset, offset + bytes) through a mapping of its own. Bad memory comes back with offsets from the
// start of the device. Errors: of mmap; EIO the device has lost that memory altogether.
Result<std::vector<BadMemory>> probe_memory(const Device& device, uint64_t offset, uint64_t bytes);

// Has `read` copy the words of [offset, offset + bytes). `offset` is a multiple of 8; the last word may reach beyond the end.
// The memory is mapped during the call alone. Errors: of mmap; EIO some of the memory is bad, and the copy means nothing.
Result<void> read_memory(const Device& device, uint64_t offset, uint64_t bytes,
                         const std::function<void(std::span<const AtomicU64>)>& read);

}  // namespace maru::daemon
