#include "daemon/pool/lanes/lane_locks.h"

#include "daemon/memory/device.h"
#include "libmaru/base/mapping.h"
#include "maru/format/control_region.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace maru::daemon {
namespace {

// File systems of this machine alone: the kernel keeps their locks by itself. Others get no trust.
constexpr uint32_t kZfsMagic = 0x2FC12FC1, kBcachefsMagic = 0xCA451A4E;  // linux/magic.h has neither
constexpr uint32_t kLocalFileSystems[] = {
    TMPFS_MAGIC,           RAMFS_MAGIC,      HUGETLBFS_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,
    BTRFS_SUPER_MAGIC,     F2FS_SUPER_MAGIC, kZfsMagic,       kBcachefsMagic,
    OVERLAYFS_SUPER_MAGIC,  // which maps another file than was opened, on most kernels: try_out()
};

struct flock range_of(uint64_t begin) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = off_t(begin);
  range.l_len = 1;
  return range;
}

// O_NONBLOCK: a lease on the file is no reason to wait.
FileDescriptor open_anew(int control) {
  return FileDescriptor(::open(("/proc/self/fd/" + std::to_string(control)).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
}

bool is_local(int control) {
  struct stat status = {};
  struct statfs file_system = {};
  if (::fstat(control, &status) != 0 || ::fstatfs(control, &file_system) != 0) return false;
  return S_ISCHR(status.st_mode) ||  // a device; the node's file system has nothing to do with its locks
         std::find(std::begin(kLocalFileSystems), std::end(kLocalFileSystems), uint32_t(file_system.f_type)) !=
             std::end(kLocalFileSystems);
}

}  // namespace

void LaneLocks::begin(const Device& device, uint32_t own_lane) {
  asker_ = open_anew(device.control_fd());
  why_none_.clear();
  if (!asker_.is_open())
    why_none_ = std::string("the control region cannot be opened anew through /proc: ") + std::strerror(errno);
  else if (!is_local(asker_.get()))
    why_none_ = "the file system of the control region is none whose locks are known to last";
  else
    why_none_ = try_out(device.control_alignment(), own_lane);
}

// With a lock of no lane's life: generations of lanes are never 0.
std::string LaneLocks::try_out(uint64_t map_bytes, uint32_t own_lane) const {
  FileDescriptor control = open_anew(asker_.get());
  if (!control.is_open() || !lock(control.get(), own_lane, 0))
    return std::string("a byte of the control region cannot be locked: ") + std::strerror(errno);
  auto mapped = Mapping::map_shared(control.get(), 0, map_bytes, PROT_READ);
  if (!mapped) return mapped.error().text();
  control.reset();
  if (ask(own_lane, 0) != LaneLock::kHeld) return "a mapping of the control region does not keep a lock of its file";
  mapped->reset();
  if (ask(own_lane, 0) != LaneLock::kFree) return "a lock of the control region outlives its mapping";
  return {};
}

Result<FileDescriptor> LaneLocks::open() const {
  if (!why_none_.empty()) return FileDescriptor();
  FileDescriptor control = open_anew(asker_.get());
  if (!control.is_open() && (errno == EMFILE || errno == ENFILE))
    return failure(errno, "open the control region for a client");
  return control;
}

bool LaneLocks::lock(int control, uint32_t lane, uint32_t generation) {
  const struct flock range = range_of(format::lane_lock(lane, generation));
  return ::fcntl(control, F_OFD_SETLK, &range) == 0;
}

LaneLock LaneLocks::ask(uint32_t lane, uint32_t generation) const {
  struct flock range = range_of(format::lane_lock(lane, generation));
  if (::fcntl(asker_.get(), F_OFD_GETLK, &range) != 0) return LaneLock::kUnknown;
  return range.l_type == F_UNLCK ? LaneLock::kFree : LaneLock::kHeld;
}

}  // namespace maru::daemon
