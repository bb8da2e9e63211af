// The entrance by HTTP: the sockets, the identity of each caller, and the tokens that callers by TCP show.
#pragma once

#include "daemon/config/config.h"
#include "daemon/server/listener.h"
#include "daemon/system/peer.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace maru::daemon::http {

// A secret. The time of a comparison does not depend on the given text.
class Token {
 public:
  static constexpr size_t kBytesMin = 16, kBytesMax = 256;
  // Reads the first line of a file. Refuses a file that users other than its owner and group can read.
  static Result<Token> read(const std::string& path);
  bool equals(std::string_view given) const;
  bool equals(const Token& other) const { return equals(std::string_view(other.text_)); }

 private:
  std::string text_;
};

// The rights of a caller by TCP.
enum class Right { kNone, kRead, kEverything };

// The tokens of the configuration: for everything, for reading only, or both.
class Tokens {
 public:
  // Refuses two equal tokens: a caller that shows them would have no definite right.
  static Result<Tokens> read(const HttpConfig& config);
  // Compares with each token, even after a match, so that the time tells nothing.
  Right right_of(std::string_view given) const;

 private:
  std::optional<Token> everything_, read_;
};

// The process at the other end of a connection.
struct Caller {
  std::shared_ptr<const Peer> peer;  // of the Unix socket
  std::string name;                  // for the log
};

class Door {
 public:
  // Members of `admin_group` may connect to the Unix socket, besides its owner.
  Door(const HttpConfig& config, std::optional<gid_t> admin_group) : config_(config), admin_group_(admin_group) {}
  // Each opens its socket if the configuration asks for it and it is not open yet.
  Result<void> open_unix();
  Result<void> open_tcp();
  // The next open_tcp() reads the tokens again. Until it succeeds, the old tokens are in force.
  void renew_tokens() { are_tokens_old_ = tcp_.is_open(); }
  bool has_old_tokens() const { return are_tokens_old_; }

  // Says why the Unix socket is no longer where the configuration says. Then it is closed, and open_unix() makes a new socket.
  std::string close_lost_unix();
  // Readable when the socket may be lost; negative: the kernel does not tell.
  int unix_changes_fd() const { return unix_ ? unix_->files().changes_fd() : -1; }

  int unix_fd() const { return unix_ ? unix_->fd() : -1; }
  int tcp_fd() const { return tcp_.get(); }  // negative: there is none
  const std::string& tcp_address() const { return tcp_address_; }
  // The right of a caller that shows this token by TCP.
  Right right_of(std::string_view given) const { return tokens_.right_of(given); }

  // The next waiting connection; negative: none.
  static FileDescriptor accept(int listener);
  static Result<Caller> identify(int socket, bool is_unix);

 private:
  const HttpConfig config_;
  const std::optional<gid_t> admin_group_;
  std::optional<Listener> unix_;
  std::shared_ptr<const SocketFiles> lost_files_;  // of the last socket, until a new socket is open
  FileDescriptor tcp_;
  std::string tcp_address_;  // with the port from the kernel
  Tokens tokens_;
  bool are_tokens_old_ = false;
};

// Gives the Unix socket at `path` to `group`, or to marud's own group without one. Then the group's members may connect besides
// the owner. Logs any obstacle that still keeps them out; root and marud's own user can connect all the same.
void give_to_group(const std::string& path, std::optional<gid_t> group);
// Why members of `group` cannot connect to the Unix socket at `path`, and the remedy; empty: they can, or no socket is there.
std::string closed_to_group(const std::string& path, std::optional<gid_t> group);

// "127.0.0.1:9101" or "[::1]:9101" as an address of this machine alone; nothing for any other text. Port 0: any.
struct LoopbackAddress {
  bool is_v6 = false;
  uint16_t port = 0;
};
std::optional<LoopbackAddress> loopback_address(std::string_view text);

}  // namespace maru::daemon::http
