// A descriptor that a library keeps in a process whose descriptors are the program's.
//
// A program may close every number that it does not know, closefrom(3), and may do so in a child of fork(). Later the kernel
// gives the number to a file of the program. So a kept descriptor remembers its file, by device and inode, and asks the kernel
// before each use whether the number still stands for this file. If not, the number is neither closed nor read nor written.
//
// This needs a file with an inode of its own. Files, devices, memory and sockets have one. Eventfds, pidfds and descriptors of
// epoll share an inode among all of their kind, so a library keeps none of those.
//
// Several descriptors of one file have the same inode, and one process may attach to one pool twice. So each number has a note
// of the last kept descriptor that got it. By this note an earlier descriptor knows that it has lost the number.
//
// Thread safety: get() any, as long as nothing changes the object; also in a signal handler.
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <sys/stat.h>
#include <utility>

namespace maru {

class KeptDescriptor {
 public:
  KeptDescriptor() = default;
  explicit KeptDescriptor(FileDescriptor descriptor) {
    struct stat file = {};
    if (!descriptor.is_open() || ::fstat(descriptor.get(), &file) != 0) return;
    fd_ = descriptor.release();
    device_ = file.st_dev;
    inode_ = file.st_ino;
    static std::atomic<uint32_t> last{0};
    serial_ = last.fetch_add(1, std::memory_order_relaxed) + 1;  // any order will do
    // Relaxed: the kernel has given the number out after its last holder, if any, lost it.
    latest(fd_).store(noted(), std::memory_order_relaxed);
  }
  KeptDescriptor(KeptDescriptor&& other) noexcept { *this = std::move(other); }
  KeptDescriptor& operator=(KeptDescriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::exchange(other.fd_, -1);
    device_ = other.device_;
    inode_ = other.inode_;
    serial_ = other.serial_;
    return *this;
  }
  ~KeptDescriptor() { reset(); }

  // Whether there is one, or was one until the program took the number.
  bool was_opened() const { return fd_ >= 0; }
  // The number, or -1 if there is none, or none any more. Leaves errno alone.
  int get() const {
    if (fd_ < 0) return -1;
    const uint64_t note = latest(fd_).load(std::memory_order_relaxed);  // as above
    if (note != noted() && note >> 32 == uint64_t(fd_)) return -1;
    const int code = errno;
    struct stat file = {};
    const bool is_ours = ::fstat(fd_, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
    errno = code;
    return is_ours ? fd_ : -1;
  }
  void reset() {
    // As in FileDescriptor: never the number of a closed descriptor.
    const int fd = get();
    fd_ = -1;
    if (fd >= 0) ::close(fd);
  }

 private:
  // By number. Some numbers share a place; a note about another number proves nothing.
  static std::atomic<uint64_t>& latest(int fd) {
    static constexpr size_t kPlaces = 256;
    static std::atomic<uint64_t> places[kPlaces];
    return places[size_t(fd) % kPlaces];
  }
  uint64_t noted() const { return uint64_t(fd_) << 32 | serial_; }

  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint32_t serial_ = 0;  // of all that this process has kept
};

}  // namespace maru
