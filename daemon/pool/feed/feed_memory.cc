#include "daemon/pool/feed/feed_memory.h"

#include <cerrno>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace maru::daemon {

Result<FeedMemory> FeedMemory::make(uint64_t bytes) {
  FeedMemory memory;
  memory.fd = FileDescriptor(::memfd_create("marud feed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd.is_open() || ::fchmod(memory.fd.get(), 0600) != 0 || ::ftruncate(memory.fd.get(), off_t(bytes)) != 0)
    return failure(errno, "take " + std::to_string(bytes) + " bytes of memory for a feed");
  auto mapping = Mapping::map_shared(memory.fd.get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return tl::unexpected(mapping.error());
  // After our own mapping, which goes on to be written.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(memory.fd.get(), F_ADD_SEALS, kSeals) != 0)
    return failure(errno == EINVAL ? EOPNOTSUPP : errno, "seal the memory of a feed against writers (Linux 5.1 can)");
  memory.mapping = std::move(*mapping);
  return memory;
}

}  // namespace maru::daemon
