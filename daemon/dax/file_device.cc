#include "daemon/dax/file_device.h"

#include "maru/format/control_region.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace maru::daemon {
namespace {

std::string quoted(const std::string& path) { return "\"" + path + "\""; }

// Takes the whole file for this open file description; another marud, or this one twice, is refused.
Result<void> lock_whole_file(int fd, const std::string& path) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &range) == 0) return {};
  if (errno == EAGAIN || errno == EACCES) return failure(EBUSY, "lock " + quoted(path) + " (another marud has it)");
  return failure(errno, "lock " + quoted(path));
}

// The first page through a mapping, because hugetlbfs has no write and a read may see holes only.
Result<FileDevice::Content> look_at_content(int fd, const std::string& path, uint64_t map_bytes) {
  auto mapped = Mapping::map_shared(fd, 0, map_bytes, PROT_READ);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + quoted(path));
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size())) return failure(ENFILE, "guard " + quoted(path));
  std::byte first[sizeof(format::Header)];
  std::memcpy(first, mapped->data(), sizeof(first));
  if (guard.has_fired()) return failure(EIO, "read the beginning of " + quoted(path));
  uint64_t magic = 0;
  std::memcpy(&magic, first, sizeof(magic));
  if (magic == format::kMagic) return FileDevice::Content::kPool;
  for (std::byte value : first)
    if (value != std::byte{0})
      return failure(EEXIST, "use " + quoted(path) +
                                 " as a pool: it holds something else (it begins neither with zeros nor as a control "
                                 "region); remove it, or name another file");
  return FileDevice::Content::kBlank;
}

}  // namespace

Result<std::unique_ptr<FileDevice>> FileDevice::open(const std::string& path, uint64_t bytes) {
  auto device = std::unique_ptr<FileDevice>(new FileDevice);
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  bool created = false;
  device->lock_.reset(::open(path.c_str(), kFlags));
  if (!device->lock_.is_open() && errno == ENOENT) {
    if (bytes == 0) return failure(EINVAL, "create " + quoted(path) + " without a size");
    device->lock_.reset(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
    created = device->lock_.is_open();
  }
  const int fd = device->lock_.get();
  if (fd < 0) return failure(errno, "open " + quoted(path));

  struct stat status = {};
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect " + quoted(path));
  if (!S_ISREG(status.st_mode)) return failure(EINVAL, "use " + quoted(path) + " as a pool: it is not a file");
  if (status.st_uid != ::geteuid())
    return failure(EPERM, "use " + quoted(path) + " as a pool: it belongs to user " + std::to_string(status.st_uid) +
                              ", marud runs as " + std::to_string(::geteuid()));
  auto locked = lock_whole_file(fd, path);
  if (!locked) return tl::unexpected(locked.error());

  struct statfs file_system = {};
  if (::fstatfs(fd, &file_system) != 0) return failure(errno, "inspect the file system of " + quoted(path));
  const bool huge = file_system.f_type == HUGETLBFS_MAGIC;
  const uint64_t os_page = uint64_t(::sysconf(_SC_PAGESIZE));
  const uint64_t alignment = huge ? uint64_t(file_system.f_bsize) : os_page;
  if (created) {
    const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    if (::ftruncate(fd, off_t(rounded)) != 0) {
      const int code = errno;
      ::unlink(path.c_str());
      return failure(code, "give " + quoted(path) + " " + std::to_string(rounded) + " bytes");
    }
    status.st_size = off_t(rounded);
  } else {
    if (status.st_size == 0)
      return failure(EINVAL, "use " + quoted(path) + " as a pool: it is empty; remove it and marud creates it");
    const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    if (bytes != 0 && uint64_t(status.st_size) != rounded)
      return failure(EINVAL, "use " + quoted(path) + " as a pool: it has " + std::to_string(status.st_size) +
                                 " bytes, configured are " + std::to_string(bytes));
    if (uint64_t(status.st_size) % alignment != 0 || uint64_t(status.st_size) < sizeof(format::Header))
      return failure(EINVAL, "use " + quoted(path) + " as a pool: its size of " + std::to_string(status.st_size) +
                                 " bytes is not a multiple of " + std::to_string(alignment));
  }
  // Another open file description for the clients, of the very same file.
  const std::string again = "/proc/self/fd/" + std::to_string(fd);
  device->fd_.reset(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!device->fd_.is_open()) return failure(errno, "open " + quoted(path) + " again for clients");

  auto content = look_at_content(fd, path, alignment);
  if (!content) return tl::unexpected(content.error());
  device->content_ = *content;
  device->name_ = path;
  device->map_alignment_ = alignment;
  device->advise_huge_ = file_system.f_type == TMPFS_MAGIC;
  device->identity_ = {status.st_dev, status.st_ino, 0, uint64_t(status.st_size)};
  return device;
}

}  // namespace maru::daemon
