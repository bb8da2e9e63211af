// The socket that clients connect to. One marud per path: a lock file beside the socket says which marud has it, so
// that a socket left by a killed marud can be replaced without guessing. A socket that the service manager passed stays
// the service manager's: marud neither replaces nor removes it, nor changes its mode. Where the files are taken away
// (socket_files.h) a new listener takes the place of this one. Connected clients notice nothing.
#pragma once

#include "daemon/server/socket_files.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <memory>
#include <string>
#include <sys/socket.h>

namespace maru::daemon {

// Creates the directories down to `path` that are missing: for marud's user alone, or such that others may pass. True when
// there was none at `path`.
Result<bool> make_directory(const std::string& path, bool for_everybody = false);

class Listener {
 public:
  // `for_everybody`: other users may connect; their credentials decide their rights. `passed`: the socket that the
  // service manager listens on at `path`, when it is open (passed_socket.h). `before`: the files of the listener that
  // this one replaces.
  static Result<Listener> open(const std::string& path, bool for_everybody, FileDescriptor passed = {},
                               int type = SOCK_SEQPACKET, const SocketFiles* before = nullptr);
  Listener(Listener&&) = default;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();  // removes the socket, if it made it and it is there still

  int fd() const { return socket_.get(); }
  int release_socket() { return socket_.release(); }
  bool is_passed() const { return is_passed_; }
  const SocketFiles& files() const { return *files_; }
  // For another thread, which may look at them while this one ends.
  std::shared_ptr<const SocketFiles> share_files() const { return files_; }
  const std::string& made_folder() const { return made_folder_; }  // of the socket; empty: it was there
  // As `for_everybody` of open(), after a reload; also for the folder, if marud made it. A folder that was there stays
  // as it is, and the log says so when it bars others. Does nothing for a socket that was passed.
  Result<void> let_in(bool for_everybody) const;

 private:
  Listener() = default;
  void remove_socket() const;
  std::string made_folder_;                   // empty: it was there
  std::shared_ptr<const SocketFiles> files_;  // null: moved from
  FileDescriptor socket_;
  bool is_passed_ = false;
};

}  // namespace maru::daemon
