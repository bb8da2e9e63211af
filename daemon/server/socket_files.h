// The two files of a Unix socket on which marud listens: the socket's own, and the lock beside it, which says which marud has
// the path. Both may be taken away while marud runs: a session manager removes the folder when its user logs out, or an
// administrator removes a file. Another marud may listen at the same path by then. So marud knows its files by device and
// inode, and holds them open: no other file has their numbers meanwhile. It removes no other file.
//
// Thread safety: after watch() everything is constant; any thread may ask why_lost(), which may wait for a disk.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <string>

namespace maru::daemon {

class SocketFiles {
 public:
  // Takes the lock beside `path`, or goes on with the lock of `before` when the path still leads to it. Errors: EADDRINUSE
  // another marud has it.
  static Result<SocketFiles> lock(const std::string& path, const SocketFiles* before = nullptr);

  const std::string& path() const { return path_; }
  // Called once the socket is bound at the path.
  void note_socket();
  // From here on the kernel tells of changes, also of the mode of a file.
  void watch();
  // Which of the two files the path no longer leads to; empty: it leads to both.
  std::string why_lost() const;
  // Of the socket, if it is there still, and the lock, which keeps other maruds away from the path meanwhile, is, too.
  void remove_socket() const;

  // Readable when a file may have been taken away. Negative: the kernel tells nothing of it, so look now and then.
  int changes_fd() const { return changes_.get(); }
  void clear_changes() const;

 private:
  std::string path_;
  FileDescriptor lock_;
  FileDescriptor socket_;  // its file, not the socket itself (O_PATH)
  FileDescriptor changes_;
};

}  // namespace maru::daemon
