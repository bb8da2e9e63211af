// Who may come in by HTTP: the sockets, who is at their other ends, and the tokens of those that a network brings.
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

// A secret that is compared in a time that does not depend on what was given.
class Token {
 public:
  static constexpr size_t kBytesMin = 16, kBytesMax = 256;
  // The first line of a file that others than its owner and group cannot read.
  static Result<Token> read(const std::string& path);
  bool equals(std::string_view given) const;
  bool equals(const Token& other) const { return equals(std::string_view(other.text_)); }

 private:
  std::string text_;
};

// What somebody who comes by TCP may do.
enum class Right { kNone, kRead, kEverything };

// The tokens of the configuration: one that may do everything, one that may only look, or both.
class Tokens {
 public:
  // Two that are the same are refused: nobody could say which one was shown.
  static Result<Tokens> read(const HttpConfig& config);
  // Compares with each that there is, whatever the first comparison said.
  Right right_of(std::string_view given) const;

 private:
  std::optional<Token> everything_, read_;
};

// Who is at the other end of a connection.
struct Caller {
  std::shared_ptr<const Peer> peer;  // of the Unix socket
  std::string name;                  // for the log
};

class Door {
 public:
  // Members of `admin_group` may connect to the Unix socket, besides its owner.
  Door(const HttpConfig& config, std::optional<gid_t> admin_group) : config_(config), admin_group_(admin_group) {}
  // Each opens what the configuration asks for and is not open yet.
  Result<void> open_unix();
  Result<void> open_tcp();
  // The next open_tcp() reads the tokens again. Until it can, those that were read before are in force.
  void renew_tokens() { are_tokens_old_ = tcp_.is_open(); }
  bool has_old_tokens() const { return are_tokens_old_; }

  // Why the Unix socket is no longer where the configuration says; then it is closed, and open_unix() makes another one.
  std::string close_lost_unix();
  // Readable when that may be so; negative: unknown.
  int unix_changes_fd() const { return unix_ ? unix_->files().changes_fd() : -1; }

  int unix_fd() const { return unix_ ? unix_->fd() : -1; }
  int tcp_fd() const { return tcp_.get(); }  // negative: there is none
  const std::string& tcp_address() const { return tcp_address_; }
  // Of who shows this token by TCP.
  Right right_of(std::string_view given) const { return tokens_.right_of(given); }

  // The next connection that waits; negative: none.
  static FileDescriptor accept(int listener);
  static Result<Caller> identify(int socket, bool is_unix);

 private:
  const HttpConfig config_;
  const std::optional<gid_t> admin_group_;
  std::optional<Listener> unix_;
  std::shared_ptr<const SocketFiles> lost_files_;  // of the one before, until there is another one
  FileDescriptor tcp_;
  std::string tcp_address_;  // with the port that it got
  Tokens tokens_;
  bool are_tokens_old_ = false;
};

// Gives the Unix socket at `path` to `group`, whose members may then connect besides its owner; to marud's own group when there
// is none. What keeps them out all the same is logged: root and marud's own user still come in.
void give_to_group(const std::string& path, std::optional<gid_t> group);
// Why members of `group` cannot connect to the Unix socket at `path`, and what to do; empty: they can, or there is no socket.
std::string closed_to_group(const std::string& path, std::optional<gid_t> group);

// "127.0.0.1:9101" or "[::1]:9101" as an address of this machine alone; nothing for what is none. Port 0: any.
struct LoopbackAddress {
  bool is_v6 = false;
  uint16_t port = 0;
};
std::optional<LoopbackAddress> loopback_address(std::string_view text);

}  // namespace maru::daemon::http
