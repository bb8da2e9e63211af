#include "daemon/listener.h"

#include "daemon/log.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
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

Result<Listener> Listener::open(const std::string& path, bool for_everybody, FileDescriptor passed, int type) {
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
  const std::string lock_path = path + ".lock";
  listener.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!listener.lock_.is_open()) return failure(errno, "open " + lock_path);
  if (::flock(listener.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return failure(errno == EWOULDBLOCK ? EADDRINUSE : errno, "listen on " + path + " (another marud does)");

  if (passed.is_open()) {
    listener.socket_ = std::move(passed);
    listener.is_passed_ = true;
    listener.path_ = path;
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
  listener.path_ = path;
  // Nobody can connect before listen(). The umask is the whole process's, and other threads make files.
  if (::chmod(path.c_str(), for_everybody ? 0666 : 0600) != 0) return failure(errno, "change the mode of " + path);
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return failure(errno, "listen on " + path);
  return listener;
}

Result<void> Listener::let_in(bool for_everybody) const {
  if (is_passed_) return {};
  if (::chmod(path_.c_str(), for_everybody ? 0666 : 0600) != 0) return failure(errno, "change the mode of " + path_);
  if (!made_folder_.empty() && ::chmod(made_folder_.c_str(), for_everybody ? 0755 : 0700) != 0)
    return failure(errno, "change the mode of " + made_folder_);
  struct stat status = {};
  for (size_t slash = path_.find('/', 1); for_everybody && slash != std::string::npos;
       slash = path_.find('/', slash + 1)) {
    const std::string folder = path_.substr(0, slash);
    if (::stat(folder.c_str(), &status) == 0 && (status.st_mode & S_IXOTH) == 0)
      log_warning(
          "{} lets others than its owner and group not pass: users whom the configuration lets in cannot reach {} "
          "(chmod "
          "o+x)",
          folder, path_);
  }
  return {};
}

Listener::~Listener() {
  // A moved-from listener has no lock and owns nothing. The lock file stays: removing it would race with the next marud.
  if (lock_.is_open() && !path_.empty() && !is_passed_) ::unlink(path_.c_str());
}

}  // namespace maru::daemon
