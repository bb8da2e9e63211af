// Shared mappings of files on a file system with DAX. A store there may leave the processor's caches and still be lost. It is
// durable only if the file system had written down the places of the file's blocks before it let a process write to them.
// MAP_SYNC asks it to. DAX devices grant it, too, since nothing lies between them and their memory. Other files refuse, and are
// mapped as ever.
#pragma once

#include "libmaru/base/mapping.h"

#include <cerrno>
#include <cstddef>
#include <string>
#include <sys/mman.h>

namespace maru {

// The flags for shared mappings of this descriptor: MAP_SHARED, or with MAP_SYNC where it is granted. This is tried with a
// mapping of the first `bytes` bytes, which the device has to allow.
inline int shared_map_flags(int fd, size_t bytes) {
  constexpr int kSynchronous = MAP_SHARED_VALIDATE | MAP_SYNC;
  void* address = ::mmap(nullptr, bytes, PROT_NONE, kSynchronous, fd, 0);
  if (address == MAP_FAILED) return MAP_SHARED;
  ::munmap(address, bytes);
  return kSynchronous;
}

// Mapping::map_shared_aligned() with these flags. A first mapping finds the place, and is replaced before any thread touched
// it.
inline Result<Mapping> map_shared_synchronously(int fd, size_t bytes, int protection, uint64_t alignment) {
  auto mapped = Mapping::map_shared_aligned(fd, bytes, protection, alignment);
  const int flags = shared_map_flags(fd, alignment);
  if (!mapped || flags == MAP_SHARED) return mapped;
  if (map_untouched(mapped->data(), bytes, protection, flags | MAP_FIXED, fd, 0) != MAP_FAILED) {
    leave_out_of_dumps(mapped->data(), bytes);
    return mapped;
  }
  const int code = errno;
  mapped->forget();  // the kernel may have unmapped the first mapping, and given the place to another thread
  return mapping_failure(code, "map " + std::to_string(bytes) + " bytes with MAP_SYNC");
}

}  // namespace maru
