// The memory of a feed: a memfd that marud alone can write.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"

#include <cstdint>

namespace maru::daemon {

struct FeedMemory {
  FileDescriptor fd;  // for followers: the kernel lets no process write through it, nor map it to write
  Mapping mapping;    // marud's, which can be written

  // Zeros. They take memory when they are written first. Errors: ENOMEM and the errors of memfd_create(2); EOPNOTSUPP the
  // kernel has no F_SEAL_FUTURE_WRITE (Linux 5.1).
  static Result<FeedMemory> make(uint64_t bytes);
};

}  // namespace maru::daemon
