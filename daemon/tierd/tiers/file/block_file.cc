#include "daemon/tierd/tiers/file/block_file.h"

#include "daemon/tierd/tiers/file/aligned_bytes.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace maru::tierd {

namespace {

constexpr const char* kLogName = "maru-tier.log";
constexpr std::chrono::milliseconds kLockPatience{3000};

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

std::string in_mebibytes(uint64_t bytes) {
  return bytes % (1u << 20) == 0 ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes) + " bytes";
}

// How many regions the capacity has room for.
Result<uint64_t> regions_within(const BlockFileWish& wish) {
  const uint64_t regions =
      wish.capacity_bytes > kLogFirstRegion ? (wish.capacity_bytes - kLogFirstRegion) / wish.region_bytes : 0;
  if (regions >= kLogRegionsMin) return regions;
  return failure(EINVAL, "use the tier " + wish.path + ": found a capacity of " + in_mebibytes(wish.capacity_bytes) +
                             ", expected at least " +
                             in_mebibytes(kLogFirstRegion + kLogRegionsMin * wish.region_bytes) + ", which is " +
                             std::to_string(kLogRegionsMin) + " regions of " + in_mebibytes(wish.region_bytes) +
                             " and their beginning; raise capacity, or lower region_bytes");
}

// The kernel holds the lock of a process that died until its last transfer is over; so a late write never meets a log that
// another process has read already.
int lock(int file) {
  const auto until = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > until) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return 0;
}

}  // namespace

Result<void> BlockFile::read(void* data, uint64_t bytes, uint64_t offset) const {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.get(), at, bytes, off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return failure(got < 0 ? errno : EIO, "read " + path_ + " at " + std::to_string(offset));
    at += got, bytes -= uint64_t(got), offset += uint64_t(got);
  }
  return {};
}

Result<void> BlockFile::write(const void* data, uint64_t bytes, uint64_t offset) const {
  auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(file_.get(), at, bytes, off_t(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return failure(put < 0 ? errno : EIO, "write " + path_ + " at " + std::to_string(offset));
    at += put, bytes -= uint64_t(put), offset += uint64_t(put);
  }
  return {};
}

uint64_t BlockFile::physical_bytes() const {
  struct stat found = {};
  if (is_device_ || ::fstat(file_.get(), &found) != 0) return kLogFirstRegion + regions_ * region_bytes_;
  return uint64_t(found.st_blocks) * 512;
}

Result<BlockFile> BlockFile::open(const BlockFileWish& wish) {
  auto regions = regions_within(wish);
  if (!regions) return tl::unexpected(regions.error());
  BlockFile log;
  log.path_ = wish.path;
  struct stat found = {};
  if (::stat(wish.path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) log.path_ += std::string("/") + kLogName;

  log.file_.reset(::open(log.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.file_.is_open() || ::fstat(log.file_.get(), &found) != 0)
    return failure(errno, "open the log " + log.path_ +
                              " (expected a path whose folder is there, and which this user may read and write)");
  log.is_device_ = S_ISBLK(found.st_mode);
  if (!log.is_device_ && !S_ISREG(found.st_mode))
    return failure(EINVAL, "use the log " + log.path_ + ": found neither a file nor a block device; name one of these");
  if (const int code = lock(log.file_.get()); code != 0)
    return failure(code,
                   "lock the log " + log.path_ +
                       (code == EWOULDBLOCK ? ": another process uses it; give each maru-tierd a log of its own" : ""));
  uint64_t bytes = uint64_t(found.st_size);
  if (log.is_device_ && ::ioctl(log.file_.get(), BLKGETSIZE64, &bytes) != 0)
    return failure(errno, "ask for the size of the device " + log.path_);
  const uint64_t needed = kLogFirstRegion + *regions * wish.region_bytes;
  if (log.is_device_ && bytes < needed)
    return failure(EINVAL, "use the device " + log.path_ + ": found " + in_mebibytes(bytes) +
                               ", expected the capacity of " + in_mebibytes(wish.capacity_bytes) + "; lower capacity");

  log.regions_ = *regions;
  if (auto known = log.recognise(wish, bytes); !known) return tl::unexpected(known.error());
  // From here on it is a log, and ours. A new id is on the device before regions of an old log are cut off or written.
  AlignedBytes block(kLogBlock);
  write_superblock(block.all(), log.region_bytes_, log.regions_, log.id_);
  if (auto written = log.write(block.data(), block.size(), 0); !written) return tl::unexpected(written.error());
  if (log.was_made_now_ && ::fdatasync(log.file_.get()) != 0)
    return failure(errno, "write " + log.path_ + " to its device");
  // Room is taken as it is written, and never past the capacity.
  if (!log.is_device_ && ::ftruncate(log.file_.get(), off_t(needed)) != 0)
    return failure(errno, "give the log " + log.path_ + " its size of " + in_mebibytes(needed));
  log.try_direct(wish);
  if (wish.direct == DirectWish::kYes && !log.is_direct())
    return failure(EINVAL, "use the log " + log.path_ + " with direct = \"yes\": " + log.direct_trouble_ +
                               "; choose another file system, or direct = \"auto\"");
  return log;
}

// Recognises an existing log, or room for a log that holds nothing.
Result<void> BlockFile::recognise(const BlockFileWish& wish, uint64_t bytes) {
  AlignedBytes begin(kLogFirstRegion);
  const uint64_t there = std::min<uint64_t>(bytes, kLogFirstRegion);
  if (there == kLogFirstRegion)
    if (auto got = read(begin.data(), there, 0); !got) return got;
  if (bytes > 0 && there < kLogFirstRegion && ::pread(file_.get(), begin.data(), there, 0) != ssize_t(there))
    return failure(EIO, "read the beginning of " + path_);

  region_bytes_ = wish.region_bytes;
  const auto block = read_superblock(begin.all());
  const bool is_log = block && block->version == kLogVersion;
  if (is_log && (block->region_bytes == wish.region_bytes || !wish.force)) {
    if (block->region_bytes != wish.region_bytes)
      return failure(EINVAL, "use the log " + path_ + ": found regions of " + in_mebibytes(block->region_bytes) +
                                 ", expected region_bytes of " + in_mebibytes(wish.region_bytes) +
                                 "; set region_bytes to " + in_mebibytes(block->region_bytes) +
                                 ", or set force = true for one start, "
                                 "which empties the log");
    // With fewer regions it begins anew: the lost ones may have had the tombstones and replacements of records in the others.
    if (block->regions <= regions_) {
      id_ = block->id;
      return {};
    }
  }
  if (!is_log && !is_zero(begin.all()) && !wish.force)
    return failure(EEXIST, "use " + path_ +
                               (block ? ": found a log of version " + std::to_string(block->version) +
                                            ", expected version " + std::to_string(kLogVersion)
                                      : std::string(": found data of another kind, expected a log of "
                                                    "maru-tierd, or nothing")) +
                               "; name another path, or set force = true for one start, which overwrites it");
  was_made_now_ = true;
  // A new id: records from before prove nothing any more.
  if (::getrandom(id_.data(), id_.size(), 0) != ssize_t(id_.size())) return failure(errno, "draw a random id");
  return {};
}

// A file system may take the flag and refuse the first write, so this is decided by a write, read back.
void BlockFile::try_direct(const BlockFileWish& wish) {
  if (wish.direct == DirectWish::kNo) {
    direct_trouble_ = "direct = \"no\" is configured";
    return;
  }
  FileDescriptor direct(
      ::open(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  AlignedBytes written(kLogBlock), read_back(kLogBlock);
  (void)::getrandom(written.data(), written.size(), 0);
  const char* step = "open";
  if (direct.is_open()) {
    step = "write";
    if (::pwrite(direct.get(), written.data(), kLogBlock, off_t(kLogProbeOffset)) == ssize_t(kLogBlock)) {
      step = "read";
      if (::pread(direct.get(), read_back.data(), kLogBlock, off_t(kLogProbeOffset)) == ssize_t(kLogBlock))
        step = std::equal(written.all().begin(), written.all().end(), read_back.all().begin()) ? nullptr : "compare";
    }
  }
  if (step == nullptr) {
    // The lock belongs to the open file, and the new one is another.
    if (const int flags = ::fcntl(file_.get(), F_GETFL); ::fcntl(file_.get(), F_SETFL, flags | O_DIRECT) == 0) return;
    step = "switch to";
  }
  direct_trouble_ = std::string("the file system of ") + path_ + " does not " + step + " with O_DIRECT (" +
                    std::generic_category().message(errno) + ")";
}

}  // namespace maru::tierd
