#include "daemon/memory/file_device.h"

#include "daemon/base/plain_text.h"
#include "daemon/base/size_text.h"
#include "daemon/memory/file_room.h"
#include "daemon/memory/memory_trouble.h"
#include "daemon/system/control_group.h"
#include "libmaru/shm/region/format_claim.h"
#include "maru/format/control_region.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/magic.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <vector>

namespace maru::daemon {
namespace {

// A page that a client touches later, when the file system has no room for it, would end the client. marud cannot promise that
// others leave the room alone; it checks the present room. A file system without a limit says 0.
Result<void> check_room(int fd, const struct stat& status, const std::string& path) {
  struct statvfs room = {};
  if (::fstatvfs(fd, &room) != 0) return failure(errno, "inspect the file system of " + in_quotes(path));
  if (room.f_blocks == 0) return {};
  const uint64_t block = room.f_frsize != 0 ? room.f_frsize : room.f_bsize;
  // Root may use the room that is reserved for it.
  const uint64_t free_bytes = uint64_t(::geteuid() == 0 ? room.f_bfree : room.f_bavail) * block;
  const uint64_t has = uint64_t(status.st_blocks) * 512, size = uint64_t(status.st_size);
  const uint64_t lacking = size > has ? size - has : 0;
  if (lacking <= free_bytes) return {};
  return failure(ENOSPC, "give " + in_quotes(path) + " " + size_text(size) + ": found " + size_text(free_bytes) +
                             " free in its file system, expected " + size_text(lacking) +
                             "; make the pool smaller, or make room (a tmpfs grows with mount -o remount,size=)");
}

// Checks the owner of the file, and its writers.
Result<void> check_usable(const struct stat& status, const std::string& path, FileDevice::Part part) {
  if (!S_ISREG(status.st_mode))
    return failure(EINVAL, "use " + in_quotes(path) +
                               " as a pool: found something that is not a file, expected one; name another path, or "
                               "for a DAX device say backend = \"dax\"");
  if (status.st_uid != ::geteuid())
    return failure(EPERM, "use " + in_quotes(path) + " as a pool: found that it belongs to user " +
                              std::to_string(status.st_uid) + ", expected user " + std::to_string(::geteuid()) +
                              ", as whom marud runs; give it that owner, or name another file");
  if (part == FileDevice::Part::kPages && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return failure(EPERM,
                   "use " + in_quotes(path) +
                       " for the pages of a pool: found that others than its owner may write it, which would let "
                       "readers do so, expected the mode 0600; chmod 600 it");
  return {};
}

// Of a file that is there; `wanted` 0: any.
Result<void> check_size(uint64_t bytes, uint64_t wanted, uint64_t alignment, const std::string& path) {
  if (wanted != 0 && bytes != wanted)
    return failure(EINVAL, "use " + in_quotes(path) + " as a pool: found " + std::to_string(bytes) +
                               " bytes, expected " + std::to_string(wanted) +
                               " as configured; correct the size, or leave it out, or remove the file and marud "
                               "creates it");
  if (bytes % alignment != 0 || bytes < sizeof(format::Header))
    return failure(EINVAL, "use " + in_quotes(path) + " as a pool: found " + std::to_string(bytes) +
                               " bytes, expected a multiple of " + std::to_string(alignment) +
                               "; remove the file and marud creates it");
  return {};
}

// Takes the whole file for this open file description; another marud, or this one twice, is refused. The bytes behind it belong
// to the lanes of clients, which may outlive marud.
Result<void> lock_whole_file(int fd, const std::string& path) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_len = off_t(format::kLaneLocks);
  if (::fcntl(fd, F_OFD_SETLK, &range) == 0) return {};
  if (errno == EAGAIN || errno == EACCES)
    return failure(EBUSY, "lock " + in_quotes(path) +
                              ": found that another marud has it, expected it free; stop that one, or name another "
                              "file");
  return failure(errno, "lock " + in_quotes(path));
}

bool is_empty(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && status.st_size == 0;
}

// For a file that several hosts share: locks the whole file if no other marud has a lock, else the byte of this machine. A
// marud that has the whole file is about to format or to attach, which takes a moment. So is the creator of the file, which is
// the caller (`is_new`) or a marud that has not locked it yet. While it is empty its creator alone keeps a lock, on the whole.
Result<bool> lock_for_machine(int fd, const std::string& path, uint32_t machine, bool is_new) {
  constexpr int kTries = 100;
  for (int tries = 0;; ++tries) {
    const bool is_last = tries == kTries;
    const bool is_locked = lock_whole_file(fd, path).has_value();
    const bool is_unfinished = is_empty(fd);
    if (is_locked && (is_new || is_last || !is_unfinished)) return true;
    struct flock range = {};
    range.l_whence = SEEK_SET;
    range.l_type = F_UNLCK;
    if (is_locked) ::fcntl(fd, F_OFD_SETLK, &range);
    range.l_type = F_WRLCK;
    range.l_start = machine;
    range.l_len = 1;
    const bool may_share = !is_locked && !is_new && !is_unfinished;
    errno = EAGAIN;
    if (may_share && ::fcntl(fd, F_OFD_SETLK, &range) == 0) return false;
    if (!is_locked && ((errno != EAGAIN && errno != EACCES) || is_last))
      return failure(errno == EACCES ? EBUSY : errno,
                     "lock " + in_quotes(path) +
                         ": found that another marud of this machine has it, expected it free; stop that one");
    const timespec pause = {0, 50'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

// The first page through a mapping, because hugetlbfs has no write and a read may see holes only. `label` was read before.
Result<FileDevice::Content> look_at_content(int fd, const std::string& path, uint64_t map_bytes, uint32_t machine,
                                            const DeviceLabel& label) {
  auto mapped = Mapping::map_shared(fd, 0, map_bytes, PROT_READ);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + in_quotes(path));
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), map_bytes)) return failure(ENFILE, "guard " + in_quotes(path));
  std::byte first[sizeof(format::Header)];
  std::memcpy(first, mapped->data(), sizeof(first));
  if (const std::string why = memory_trouble(guard); !why.empty())
    return failure(memory_trouble_code(guard),
                   "read the beginning of " + in_quotes(path) + ": it cannot be read (" + why + ")");
  uint64_t magic = 0;
  std::memcpy(&magic, first, sizeof(magic));
  if (magic == format::kMagic) return FileDevice::Content::kPool;
  if (magic == format::kDataLabelMagic)
    return failure(EEXIST, "use " + in_quotes(path) +
                               " as a pool: found the pages of a pool in two files, expected its control region; name "
                               "this file with path = and the other one with control_path =");
  if (const shm::FormatClaim claim = shm::claim_in(first); claim.is_one()) {
    if (claim.machine() == machine) return FileDevice::Content::kBlank;  // ours, and the lock says that it was cut off
    return failure(EBUSY, "use " + in_quotes(path) +
                              " as a pool: found that another host formats it, or died over it, expected a pool or "
                              "zeros; try again when that host serves it, or remove the file");
  }
  for (std::byte value : first)
    if (value != std::byte{0})
      return failure(EEXIST, "use " + in_quotes(path) + " as a pool: found " +
                                 (label.found.empty() ? "content that is not marud's" : label.found) +
                                 ", expected a pool or nothing but zeros; remove it, or name another file");
  return FileDevice::Content::kBlank;
}

// The first byte that is not zero; nothing when there is none. Reads the written parts, and leaves holes alone. hugetlbfs calls
// all of a file written; reading it, without a mapping, gives no memory to its holes.
Result<std::optional<uint64_t>> find_bytes(int fd, const std::string& path) {
  std::vector<char> piece(1u << 20);
  const std::vector<char> zeros(piece.size());
  for (off_t at = 0;;) {
    at = ::lseek(fd, at, SEEK_DATA);
    if (at < 0 && errno == ENXIO) return std::nullopt;
    const off_t end = at < 0 ? -1 : ::lseek(fd, at, SEEK_HOLE);
    if (end < 0) return failure(errno, "look for what is in " + in_quotes(path));
    while (at < end) {
      const ssize_t got = ::pread(fd, piece.data(), std::min(piece.size(), size_t(end - at)), at);
      if (got <= 0) return failure(got == 0 ? EIO : errno, "read " + in_quotes(path));
      if (std::memcmp(piece.data(), zeros.data(), size_t(got)) != 0)
        return uint64_t(at) +
               uint64_t(std::find_if(piece.begin(), piece.end(), [](char c) { return c != 0; }) - piece.begin());
      at += got;
    }
  }
}

// For a file that begins with zeros: the bytes behind them would be lost.
Result<void> expect_blank(int fd, const std::string& path, const DeviceLabel& label) {
  const std::string use = "use " + in_quotes(path) + " as a pool: found ";
  const std::string expected = ", expected a pool or nothing but zeros; remove it, or name another file";
  if (label.kind != DeviceLabel::Kind::kNothing) return failure(EEXIST, use + label.found + expected);
  const auto found = find_bytes(fd, path);
  if (!found) return tl::unexpected(found.error());
  if (*found) return failure(EEXIST, use + "bytes at " + std::to_string(**found) + " that are not zero" + expected);
  return {};
}

// Whether a file system with DAX lets stores be made durable by flushing the processor's caches alone. Others refuse.
std::string try_map_sync(int fd, uint64_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
  if (address == MAP_FAILED)
    return errno == EOPNOTSUPP ? "not supported by the file system" : std::string("refused: ") + std::strerror(errno);
  ::munmap(address, bytes);
  return std::string(kMapSyncGranted);
}

}  // namespace

FileDevice::~FileDevice() {
  if (!created_path_.empty()) ::unlink(created_path_.c_str());
}

Result<void> FileDevice::allocate(uint64_t bytes) {
  const uint64_t rounded = (bytes + map_alignment() - 1) / map_alignment() * map_alignment();
  return take_room(lock_.get(), 0, std::min(rounded, identity_.bytes), name_);
}

Result<void> FileDevice::reserve(bool is_wanted, const Progress& progress) {
  unreserved_because_ = why_no_promise(lock_.get());
  const uint64_t lacking = lacking_room(lock_.get());
  if (!unreserved_because_.empty() || lacking == 0) return {};
  if (!is_wanted) {
    unreserved_because_ = "its configuration says reserve = false";
    return {};
  }
  const auto fits = check_memory_limit(lock_.get(), lacking, "room for all of " + in_quotes(name_));
  const auto taken = fits ? reserve_room(lock_.get(), 0, identity_.bytes, name_, progress) : fits;
  if (!taken && taken.error().code == ECANCELED) return taken;
  if (!taken && taken.error().code == ENOSPC && content_ == Content::kBlank) return taken;
  if (!taken)
    unreserved_because_ = taken.error().doing;
  else if (lacking_room(lock_.get()) != 0)
    unreserved_because_ = "its file system has taken the call for it (fallocate), and shows no room taken";
  return {};
}

Result<void> FileDevice::expect_room() const {
  struct stat status = {};
  if (::fstat(lock_.get(), &status) != 0) return failure(errno, "inspect " + in_quotes(name_));
  return check_room(lock_.get(), status, name_);
}

Result<void> FileDevice::write_out() const {
  if (::fdatasync(lock_.get()) == 0) return {};
  return failure(errno, "write " + in_quotes(name_) + " to its disk");
}

// The byte of this machine stays locked all the time.
void FileDevice::share() {
  if (machine_ == 0) return;
  struct flock range = {};
  range.l_type = F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_len = machine_;
  ::fcntl(lock_.get(), F_OFD_SETLK, &range);
  range.l_start = off_t(machine_) + 1;
  range.l_len = 0;
  ::fcntl(lock_.get(), F_OFD_SETLK, &range);
}

Result<uint64_t> FileDevice::unit_of(const std::string& path) {
  struct statfs file_system = {};
  const std::string folder = path.substr(0, path.find_last_of('/') + 1);
  if (::statfs(path.c_str(), &file_system) != 0 && ::statfs(folder.c_str(), &file_system) != 0)
    return failure(errno, "inspect the file system of " + in_quotes(folder));
  return file_system.f_type == HUGETLBFS_MAGIC ? uint64_t(file_system.f_bsize) : uint64_t(::sysconf(_SC_PAGESIZE));
}

Result<std::unique_ptr<FileDevice>> FileDevice::open(const std::string& path, uint64_t bytes, uint32_t machine,
                                                     Part part) {
  auto device = std::unique_ptr<FileDevice>(new FileDevice);
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  bool is_new = false;
  device->lock_.reset(::open(path.c_str(), kFlags));
  if (!device->lock_.is_open() && errno == ENOENT) {
    if (bytes == 0)
      return failure(EINVAL,
                     "create " + in_quotes(path) +
                         " without a size: found no such file, expected a pool there, or a size to create one; say "
                         "size =, or name the file that has the pool");
    device->lock_.reset(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
    is_new = device->lock_.is_open();
    if (is_new) device->created_path_ = path;  // and removed again unless it becomes a pool
    if (is_new) write_in_place(device->lock_.get());
    // Another marud was faster.
    if (!is_new && errno == EEXIST) device->lock_.reset(::open(path.c_str(), kFlags));
  }
  const int fd = device->lock_.get();
  if (fd < 0) return failure(errno, "open " + in_quotes(path) + " to read and write it, or create it there");

  struct stat status = {};
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect " + in_quotes(path));
  if (auto usable = check_usable(status, path, part); !usable) return tl::unexpected(usable.error());
  bool is_alone = true;
  if (machine == 0) {
    if (auto locked = lock_whole_file(fd, path); !locked) return tl::unexpected(locked.error());
  } else {
    auto locked = lock_for_machine(fd, path, machine, is_new);
    if (!locked) return tl::unexpected(locked.error());
    is_alone = *locked;
  }
  // Another marud that created it meanwhile gave it its size under the lock; or removed it again, since it became no pool.
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect " + in_quotes(path));
  if (status.st_nlink == 0)
    return failure(ESTALE, "use " + in_quotes(path) +
                               " as a pool: found that another marud created and removed it meanwhile, expected it to "
                               "stay; start marud again");
  device->machine_ = machine;

  struct statfs file_system = {};
  if (::fstatfs(fd, &file_system) != 0) return failure(errno, "inspect the file system of " + in_quotes(path));
  const bool huge = file_system.f_type == HUGETLBFS_MAGIC;
  const uint64_t os_page = uint64_t(::sysconf(_SC_PAGESIZE));
  const uint64_t alignment = huge ? uint64_t(file_system.f_bsize) : os_page;
  const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  // An empty file as well: its creator died before it had a size, or an administrator made a place for it.
  if (is_new || (status.st_size == 0 && is_alone)) {
    if (rounded == 0)
      return failure(EINVAL, "give " + in_quotes(path) + " a size: found it empty, expected a pool, or bytes =");
    if (::ftruncate(fd, off_t(rounded)) != 0)
      return failure(errno, "give " + in_quotes(path) + " " + size_text(rounded));
    status.st_size = off_t(rounded);
  } else if (auto fits = check_size(uint64_t(status.st_size), rounded, alignment, path); !fits) {
    return tl::unexpected(fits.error());
  }
  // Another open file description for the clients, of the very same file.
  const std::string again = "/proc/self/fd/" + std::to_string(fd);
  device->fd_.reset(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!device->fd_.is_open()) return failure(errno, "open " + in_quotes(path) + " again for clients");

  auto label = read_label({fd, uint64_t(status.st_size), alignment, path});
  if (!label) return tl::unexpected(label.error());
  device->label_ = std::move(*label);
  const bool is_blank = device->label_.kind == DeviceLabel::Kind::kNothing;
  auto content = part == Part::kPages ? Result<Content>(is_blank ? Content::kBlank : Content::kPool)
                                      : look_at_content(fd, path, alignment, machine, device->label_);
  if (!content) return tl::unexpected(content.error());
  const bool is_claimed = device->label_.kind == DeviceLabel::Kind::kClaimed;
  if (*content == Content::kBlank && !is_new && !is_claimed)
    if (auto blank = expect_blank(fd, path, device->label_); !blank) return tl::unexpected(blank.error());
  if (*content == Content::kBlank && !is_alone)
    return failure(EAGAIN, "use " + in_quotes(path) + " as a pool: another marud holds it and it is not formatted yet");
  if (*content == Content::kBlank)
    if (auto fits = check_room(fd, status, path); !fits) return tl::unexpected(fits.error());
  device->content_ = *content;
  device->map_sync_ = try_map_sync(fd, alignment);
  device->name_ = path;
  device->map_alignment_ = alignment;
  device->advise_huge_ = file_system.f_type == TMPFS_MAGIC;
  device->identity_ = {status.st_dev, status.st_ino, 0, uint64_t(status.st_size)};
  return device;
}

}  // namespace maru::daemon
