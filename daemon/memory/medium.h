// The kind of memory that a pool lies in.
#pragma once

#include "daemon/memory/device.h"

namespace maru::daemon {

// "memory", "hugetlb"; of files "tmpfs", "hugetlbfs", "fsdax", or "file" for any other file system; "devdax".
const char* medium_of(const Device& device);

// Its content outlives the machine's power, as far as it left the processor's caches: a DAX device on persistent memory, or a
// file for which MAP_SYNC was granted.
bool is_persistent(const Device& device);

}  // namespace maru::daemon
