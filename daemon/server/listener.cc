#include "daemon/server/listener.h"

#include "daemon/base/log.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::daemon {

Result<bool> make_directory(const std::string& path, bool for_everybody) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return false;
    return failure(ENOTDIR, "use " + path);
  }
  const size_t slash = path.find_last_of('/');
  if (slash != std::string::npos && slash > 0) {
    auto parent = make_directory(path.substr(0, slash), for_everybody);
    if (!parent) return parent;
  }
  if (::mkdir(path.c_str(), 0700) != 0) {
    if (errno == EEXIST) return false;
    return failure(errno, "create the directory " + path);
  }
  if (for_everybody && ::chmod(path.c_str(), 0755) != 0) return failure(errno, "change the mode of " + path);
  return true;
}

Result<Listener> Listener::open(const std::string& path, bool for_everybody, FileDescriptor passed, int type,
                                const SocketFiles* before) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.size() >= sizeof(address.sun_path))
    return failure(EINVAL, "listen on \"" + path + "\" (an absolute path of at most " +
                               std::to_string(sizeof(address.sun_path) - 1) + " bytes)");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const std::string folder = path.substr(0, std::max<size_t>(1, path.find_last_of('/')));
  auto is_made = make_directory(folder, for_everybody);
  if (!is_made) return tl::unexpected(is_made.error());

  Listener listener;
  if (*is_made) listener.made_folder_ = folder;
  auto locked = SocketFiles::lock(path, before);
  if (!locked) return tl::unexpected(locked.error());
  const auto files = std::make_shared<SocketFiles>(std::move(*locked));
  if (passed.is_open()) {
    files->note_socket();
    files->watch();
    listener.files_ = files;
    listener.socket_ = std::move(passed);
    listener.is_passed_ = true;
    return listener;
  }
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode))
      return failure(EEXIST, "listen on " + path + " (it is something else than a socket)");
    if (::unlink(path.c_str()) != 0) return failure(errno, "remove the old socket " + path);
  }
  listener.socket_.reset(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!listener.socket_.is_open()) return failure(errno, "create a socket");
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return failure(errno, "bind " + path);
  files->note_socket();
  listener.files_ = files;
  // No client can connect before listen(). The umask is the whole process's, and other threads make files.
  if (::chmod(path.c_str(), for_everybody ? 0666 : 0600) != 0) return failure(errno, "change the mode of " + path);
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return failure(errno, "listen on " + path);
  files->watch();
  if (const std::string lost = files->why_lost(); !lost.empty()) return failure(ENOENT, "listen: " + lost);
  return listener;
}

Result<void> Listener::let_in(bool for_everybody) const {
  // The file at the path is another process's then. The next listener gets its own mode.
  if (is_passed_ || !files_->why_lost().empty()) return {};
  const std::string& path = files_->path();
  const mode_t mode = for_everybody ? 0666 : 0600;
  struct stat now = {};  // a change that changes nothing would be told all the same
  const bool is_so = ::stat(path.c_str(), &now) == 0 && (now.st_mode & 07777) == mode;
  if (!is_so && ::chmod(path.c_str(), mode) != 0) return failure(errno, "change the mode of " + path);
  if (!made_folder_.empty() && ::chmod(made_folder_.c_str(), for_everybody ? 0755 : 0700) != 0)
    return failure(errno, "change the mode of " + made_folder_);
  struct stat status = {};
  for (size_t slash = path.find('/', 1); for_everybody && slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (::stat(folder.c_str(), &status) == 0 && (status.st_mode & S_IXOTH) == 0)
      log_warning(
          "{} lets others than its owner and group not pass: users whom the configuration lets in cannot reach {} "
          "(chmod "
          "o+x)",
          folder, path);
  }
  return {};
}

Listener& Listener::operator=(Listener&& other) noexcept {
  remove_socket();
  made_folder_ = std::move(other.made_folder_);
  files_ = std::move(other.files_);
  socket_ = std::move(other.socket_);
  is_passed_ = other.is_passed_;
  return *this;
}

Listener::~Listener() { remove_socket(); }

// The lock file stays: removing it would race with the next marud.
void Listener::remove_socket() const {
  if (files_ && !is_passed_) files_->remove_socket();
}

}  // namespace maru::daemon
