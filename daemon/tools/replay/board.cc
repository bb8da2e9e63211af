#include "daemon/tools/replay/board.h"

#include <cerrno>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::replay {

Result<SharedBoard> SharedBoard::create() {
  FileDescriptor fd(::memfd_create("maru-replay-board", MFD_CLOEXEC));
  if (!fd.is_open()) return failure(errno, "create the board");
  if (::ftruncate(fd.get(), off_t(sizeof(Board))) != 0) return failure(errno, "size the board");
  Result<SharedBoard> shared = open(std::move(fd));
  if (shared) new (&shared->board()) Board();
  return shared;
}

Result<SharedBoard> SharedBoard::open(FileDescriptor fd) {
  Result<Mapping> mapping = Mapping::map_shared(fd.get(), 0, sizeof(Board), PROT_READ | PROT_WRITE);
  if (!mapping) return tl::unexpected<Error>(mapping.error());
  SharedBoard shared;
  shared.fd_ = std::move(fd);
  shared.mapping_ = std::move(*mapping);
  return shared;
}

}  // namespace maru::replay
