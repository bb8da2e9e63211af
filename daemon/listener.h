// The socket that clients connect to. One marud per path: a lock file beside the socket says who has it, so that a socket
// left by a marud that was killed can be replaced without guessing. A socket that the service manager passed stays the
// service manager's: marud neither replaces nor removes it, nor changes its mode.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <string>
#include <sys/socket.h>

namespace maru::daemon {

// Creates the directories down to `path` that are missing: for marud's user alone, or such that others may pass. True when
// there was none at `path`.
Result<bool> make_directory(const std::string& path, bool for_everybody = false);

class Listener {
 public:
  // `for_everybody`: other users may connect; what they may do is decided by their credentials. `passed`: the socket that
  // the service manager listens on at `path`, when it is open (passed_socket.h).
  static Result<Listener> open(const std::string& path, bool for_everybody, FileDescriptor passed = {},
                               int type = SOCK_SEQPACKET);
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();  // removes the socket, if it made it

  int fd() const { return socket_.get(); }
  bool is_passed() const { return is_passed_; }
  const std::string& made_folder() const { return made_folder_; }  // of the socket; empty: it was there
  // As `for_everybody` of open(), after a reload; also for the folder, if marud made it. One that was there stays as it is, and
  // the log says so when it bars others. Nothing for a socket that was passed.
  Result<void> let_in(bool for_everybody) const;

 private:
  Listener() = default;
  std::string path_;
  std::string made_folder_;  // empty: it was there
  FileDescriptor lock_;
  FileDescriptor socket_;
  bool is_passed_ = false;
};

}  // namespace maru::daemon
