#include "daemon/server/socket_files.h"

#include "daemon/base/path_of_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

std::string lock_path_of(const std::string& path) { return path + ".lock"; }

// Why `path` does not lead to this open file; empty: it does.
std::string why_another(const std::string& path, const FileDescriptor& file) {
  switch (const int code = why_another_file(path, file)) {
    case 0: return {};
    case ENOENT:
    case ENOTDIR: return path + " is gone";
    case ESTALE: return path + " is another file, perhaps of another marud";
    default: return Error{code, "look at " + path}.text();
  }
}

}  // namespace

Result<SocketFiles> SocketFiles::lock(const std::string& path, const SocketFiles* before) {
  SocketFiles files;
  files.path_ = path;
  const std::string lock_path = lock_path_of(path);
  if (before && why_another(lock_path, before->lock_).empty()) {
    files.lock_.reset(::fcntl(before->lock_.get(), F_DUPFD_CLOEXEC, 3));  // the same lock
    if (!files.lock_.is_open()) return failure(errno, "keep " + lock_path);
    return files;
  }
  files.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!files.lock_.is_open()) return failure(errno, "open " + lock_path);
  if (::flock(files.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return failure(errno == EWOULDBLOCK ? EADDRINUSE : errno, "listen on " + path + " (another marud does)");
  return files;
}

void SocketFiles::note_socket() { socket_.reset(::open(path_.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW)); }

// A folder that is removed or renamed says so itself, and each folder above it.
void SocketFiles::watch() {
  changes_.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!changes_.is_open()) return;
  // A file that is open is not deleted yet, but the count of its names is one less.
  constexpr uint32_t kFile = IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF | IN_DONT_FOLLOW;
  constexpr uint32_t kFolder = IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR;
  ::inotify_add_watch(changes_.get(), path_.c_str(), kFile);
  ::inotify_add_watch(changes_.get(), lock_path_of(path_).c_str(), kFile);
  for (size_t slash = path_.rfind('/'); slash != std::string::npos && slash > 0; slash = path_.rfind('/', slash - 1))
    ::inotify_add_watch(changes_.get(), path_.substr(0, slash).c_str(), kFolder);
}

std::string SocketFiles::why_lost() const {
  if (!socket_.is_open()) return {};  // there was no descriptor for it: nothing is known
  const std::string lost = why_another(path_, socket_);
  return lost.empty() ? why_another(lock_path_of(path_), lock_) : lost;
}

void SocketFiles::remove_socket() const {
  if (socket_.is_open() && why_lost().empty()) ::unlink(path_.c_str());
}

void SocketFiles::clear_changes() const {
  char events[4096];
  while (::read(changes_.get(), events, sizeof(events)) > 0) continue;
}

}  // namespace maru::daemon
