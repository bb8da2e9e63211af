// A file descriptor that is owned: closed once, by whoever holds it last.
#pragma once

#include <unistd.h>
#include <utility>

namespace maru {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    // A fork() of another thread in between copies one that is open, or none; never the number of one that is closed already.
    if (const int before = std::exchange(fd_, fd); before >= 0) ::close(before);
  }

 private:
  int fd_ = -1;
};

}  // namespace maru
