// A file descriptor that is owned: closed once, by its last owner.
//
// It is never 0, 1 or 2. The kernel gives out the lowest free number, and a program that was started without standard streams
// has these free. A message that the program prints would then go into the memory of a pool, or into a socket. So this class
// exchanges each number below 3 for a higher number at once, before anything is mapped or sent.
#pragma once

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace maru {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes over `fd`; a negative number is none. None either, and errno says why, when the process has no higher number left.
  explicit FileDescriptor(int fd) : fd_(above_standard_streams(fd)) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  // As the constructor.
  void reset(int fd = -1) {
    // A fork() of another thread in between copies an open descriptor, or none; never the number of a closed descriptor.
    if (const int before = std::exchange(fd_, fd); before >= 0) ::close(before);
    fd_ = above_standard_streams(fd_);
  }

 private:
  static constexpr int kFirst = STDERR_FILENO + 1;

  static int above_standard_streams(int fd) {
    if (fd < 0 || fd >= kFirst) return fd;
    const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirst);
    const int code = errno;
    ::close(fd);
    errno = code;
    return above;
  }

  int fd_ = -1;
};

}  // namespace maru
