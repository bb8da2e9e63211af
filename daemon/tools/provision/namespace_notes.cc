#include "daemon/tools/provision/namespace_notes.h"

#include "libmaru/base/file_descriptor.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>

namespace maru::daemon::provision {
namespace {

constexpr size_t kNotesBytes = 8192, kAlign = 4096;  // O_DIRECT wants whole pages

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer make_buffer() { return Buffer(static_cast<char*>(std::aligned_alloc(kAlign, kNotesBytes))); }

FileDescriptor open_block(const std::string& device) {
  return FileDescriptor(::open(("/dev/" + device).c_str(), O_RDWR | O_DIRECT | O_EXCL | O_CLOEXEC));
}

int write_all(const FileDescriptor& fd, const char* from) {
  errno = 0;
  if (::pwrite(fd.get(), from, kNotesBytes, 0) == ssize_t(kNotesBytes)) return 0;
  return errno ? -errno : -EIO;
}

}  // namespace

int exchange_notes(const std::string& block_device, NamespaceNotes& ret_notes) {
  const FileDescriptor fd = open_block(block_device);
  if (!fd.is_open()) return -errno;
  const Buffer buffer = make_buffer();
  if (!buffer) return -ENOMEM;
  errno = 0;
  if (::pread(fd.get(), buffer.get(), kNotesBytes, 0) != ssize_t(kNotesBytes)) return errno ? -errno : -EIO;
  ret_notes.assign(buffer.get(), buffer.get() + kNotesBytes);
  std::memset(buffer.get(), 0, kNotesBytes);
  return write_all(fd, buffer.get());
}

int write_notes(const std::string& block_device, const NamespaceNotes& notes) {
  const FileDescriptor fd = open_block(block_device);
  if (!fd.is_open()) return -errno;
  const Buffer buffer = make_buffer();
  if (!buffer || notes.size() != kNotesBytes) return -ENOMEM;
  std::memcpy(buffer.get(), notes.data(), kNotesBytes);
  return write_all(fd, buffer.get());
}

}  // namespace maru::daemon::provision
