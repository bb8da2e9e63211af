// What the memory of a pool is made of.
#pragma once

#include "daemon/dax/device.h"

namespace maru::daemon {

// "memory", "hugetlb"; of files "tmpfs", "hugetlbfs", "fsdax", or "file" for any other file system; "devdax".
const char* medium_of(const Device& device);

}  // namespace maru::daemon
