#include "daemon/memory/file_room.h"

#include "daemon/base/plain_text.h"
#include "daemon/base/size_text.h"
#include "daemon/memory/fault_guard.h"
#include "libmaru/base/mapping.h"
#include "maru/format/atomic_word.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr long kZfsMagic = 0x2fc12fc1, kBcachefsMagic = 0xca451a4e;
constexpr uint64_t kOsPageBytes = 4096;
// In one call: a signal ends the call, and a tmpfs then gives back all that the call has taken.
constexpr uint64_t kStepBytes = 256ull << 20;

bool is_on_btrfs(int fd) {
  struct statfs file_system = {};
  return ::fstatfs(fd, &file_system) == 0 && file_system.f_type == BTRFS_SUPER_MAGIC;
}

Error no_room(int fd, int code, uint64_t bytes, const std::string& name) {
  struct statvfs room = {};
  const bool is_known = ::fstatvfs(fd, &room) == 0;
  const uint64_t free_bytes = uint64_t(::geteuid() == 0 ? room.f_bfree : room.f_bavail) * room.f_frsize;
  return {ENOSPC, "take room for " + size_text(bytes) + " of " + in_quotes(name) + ": found " +
                      (is_known ? size_text(free_bytes) + " free in its file system (" + std::strerror(code) + ")"
                                : std::string(std::strerror(code))) +
                      ", expected room; remove something there, or make the file system larger (a tmpfs with mount -o "
                      "remount,size=)"};
}

// The guard notes an access to a page without room, and puts private memory in the place of the window.
Result<void> touch(int fd, uint64_t offset, uint64_t bytes, const std::string& name) {
  constexpr uint64_t kWindowBytes = 64ull << 20;
  for (uint64_t at = offset; at < offset + bytes; at += kWindowBytes) {
    const uint64_t window = std::min(kWindowBytes, offset + bytes - at);
    auto mapped = Mapping::map_shared(fd, at, window, PROT_READ | PROT_WRITE);
    if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + in_quotes(name));
    FaultGuard guard;
    if (!guard.begin(mapped->data(), mapped->size(), kOsPageBytes)) return failure(ENFILE, "guard " + in_quotes(name));
    for (uint64_t page = 0; page < window && !guard.has_fired(); page += kOsPageBytes)
      reinterpret_cast<AtomicU64*>(mapped->data() + page)->fetch_add_relaxed(0);  // clients may write here meanwhile
    if (guard.has_fired()) return tl::unexpected(no_room(fd, ENOSPC, bytes, name));
  }
  return {};
}

}  // namespace

std::string why_no_promise(int fd) {
  struct statfs file_system = {};
  if (::fstatfs(fd, &file_system) != 0) return std::string("its file system is not known: ") + std::strerror(errno);
  const char* const why = " writes each change to another place, and needs room for that once more";
  if (file_system.f_type == kZfsMagic) return std::string("its file system, ZFS,") + why;
  if (file_system.f_type == kBcachefsMagic) return std::string("its file system, bcachefs,") + why;
  if (!is_on_btrfs(fd)) return {};
  int flags = 0;
  if (::ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) != 0) return {};
  return std::string("its file system, btrfs,") + why + " (chattr +C on a new file's folder changes that)";
}

void write_in_place(int fd) {
  int flags = 0;
  if (!is_on_btrfs(fd) || ::ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  ::ioctl(fd, FS_IOC_SETFLAGS, &flags);  // where it is refused why_no_promise() says so
}

uint64_t lacking_room(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return UINT64_MAX;
  const uint64_t has = uint64_t(status.st_blocks) * 512, size = uint64_t(status.st_size);
  return size > has ? size - has : 0;
}

Result<std::vector<FileRange>> bare_ranges(int fd, uint64_t offset, uint64_t bytes) {
  std::vector<FileRange> ranges;
  const uint64_t end = offset + bytes;
  for (uint64_t at = offset; at < end;) {
    const off_t hole = ::lseek(fd, off_t(at), SEEK_HOLE);
    if (hole < 0) return failure(errno, "look for parts without room");
    if (uint64_t(hole) >= end) break;
    const off_t data = ::lseek(fd, hole, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return failure(errno, "look for parts without room");
    at = data < 0 ? end : std::min(end, uint64_t(data));
    ranges.push_back({uint64_t(hole), at - uint64_t(hole)});
  }
  return ranges;
}

Result<void> reserve_room(int fd, uint64_t offset, uint64_t bytes, const std::string& name, const Progress& progress) {
  for (uint64_t at = offset; at < offset + bytes;) {
    if (progress && at != offset && !progress(at - offset, bytes))
      return failure(ECANCELED, "take room for " + in_quotes(name));
    const uint64_t step = std::min(kStepBytes, offset + bytes - at);
    if (::fallocate(fd, 0, off_t(at), off_t(step)) == 0)
      at += step;
    else if (errno == ENOSPC || errno == EDQUOT)
      return tl::unexpected(no_room(fd, errno, bytes, name));
    else if (errno == EOPNOTSUPP || errno == ENOSYS)
      return failure(EOPNOTSUPP,
                     "reserve room for " + in_quotes(name) + ": its file system has no call for it (fallocate)");
    else if (errno != EINTR)
      return failure(errno, "take room for " + size_text(bytes) + " of " + in_quotes(name));
  }
  if (progress && bytes > kStepBytes) progress(bytes, bytes);
  return {};
}

Result<void> take_room(int fd, uint64_t offset, uint64_t bytes, const std::string& name) {
  const auto taken = reserve_room(fd, offset, bytes, name);
  if (taken || taken.error().code != EOPNOTSUPP) return taken;
  return touch(fd, offset, bytes, name);
}

}  // namespace maru::daemon
