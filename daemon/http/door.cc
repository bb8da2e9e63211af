#include "daemon/http/door.h"

#include "daemon/base/log.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utility>

namespace maru::daemon::http {
namespace {

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

socklen_t bytes_of(const SocketAddress& address) {
  return address.any.sa_family == AF_INET6 ? sizeof(address.v6) : sizeof(address.v4);
}

std::string text_of(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.any.sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof(text));
    return "[" + std::string(text) + "]:" + std::to_string(ntohs(address.v6.sin6_port));
  }
  ::inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof(text));
  return std::string(text) + ":" + std::to_string(ntohs(address.v4.sin_port));
}

}  // namespace

// -- the tokens -------------------------------------------------------------------------------------------------------

Result<Token> Token::read(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.is_open()) return failure(errno, "read the token in " + path);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return failure(EINVAL, "read the token in " + path + " (it is no file)");
  if ((status.st_mode & 0007) != 0)
    return failure(EPERM, "use the token in " + path + " (anybody can read or change the file: chmod 640 it)");
  char bytes[kBytesMax + 2];
  const ssize_t got = ::read(fd.get(), bytes, sizeof(bytes));
  if (got < 0) return failure(errno, "read the token in " + path);
  Token token;
  token.text_.assign(bytes, size_t(got));
  if (token.text_.ends_with('\n')) token.text_.pop_back();
  for (const char c : token.text_)
    if (c <= ' ' || c >= 0x7f)
      return failure(EINVAL, "use the token in " + path + " (found other characters than letters, digits and signs)");
  if (token.text_.size() < kBytesMin || token.text_.size() > kBytesMax)
    return failure(EINVAL, "use the token in " + path + " (found " + std::to_string(token.text_.size()) +
                               " characters, expected " + std::to_string(kBytesMin) + " to " +
                               std::to_string(kBytesMax) + " in one line, such as 'openssl rand -hex 32' prints)");
  return token;
}

bool Token::equals(std::string_view given) const {
  // The number of steps is the same for any `given`, and no branch depends on its bytes.
  volatile uint8_t differs = 0;
  for (size_t i = 0; i < kBytesMax; ++i) {
    const uint8_t mine = i < text_.size() ? uint8_t(text_[i]) : 0;
    const uint8_t other = i < given.size() ? uint8_t(given[i]) : 0;
    differs = uint8_t(differs | (mine ^ other));
  }
  return differs == 0 && given.size() <= kBytesMax;
}

Result<Tokens> Tokens::read(const HttpConfig& config) {
  Tokens tokens;
  for (auto [path, token] :
       {std::pair(&config.token_file, &tokens.everything_), std::pair(&config.read_token_file, &tokens.read_)}) {
    if (path->empty()) continue;
    auto found = Token::read(*path);
    if (!found) return tl::unexpected(found.error());
    *token = std::move(*found);
  }
  if (tokens.everything_ && tokens.read_ && tokens.everything_->equals(*tokens.read_))
    return failure(EINVAL, "use the token in " + config.read_token_file + " to look alone (it is the one in " +
                               config.token_file + ", which may do everything)");
  return tokens;
}

Right Tokens::right_of(std::string_view given) const {
  const bool may_do_everything = everything_ && everything_->equals(given);
  const bool may_read = read_ && read_->equals(given);
  return may_do_everything ? Right::kEverything : may_read ? Right::kRead : Right::kNone;
}

// -- sockets ----------------------------------------------------------------------------------------------------------

std::optional<LoopbackAddress> loopback_address(std::string_view text) {
  LoopbackAddress address;
  for (const std::string_view host : {"127.0.0.1:", "[::1]:"})
    if (text.starts_with(host)) {
      text.remove_prefix(host.size());
      address.is_v6 = host.front() == '[';
      const auto read = std::from_chars(text.data(), text.data() + text.size(), address.port);
      if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
      return address;
    }
  return std::nullopt;
}

Result<void> Door::open_tcp() {
  if (config_.listen.empty() || (tcp_.is_open() && !are_tokens_old_)) return {};
  auto tokens = Tokens::read(config_);
  if (!tokens) return tl::unexpected(tokens.error());
  are_tokens_old_ = false;
  if (tcp_.is_open()) {
    tokens_ = std::move(*tokens);
    log_info("the tokens of HTTP were read again and are in force");
    return {};
  }
  const auto wanted = loopback_address(config_.listen);
  if (!wanted) return failure(EINVAL, "listen on " + config_.listen);
  SocketAddress address = {};
  if (wanted->is_v6) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_addr = in6addr_loopback;
    address.v6.sin6_port = htons(wanted->port);
  } else {
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.v4.sin_port = htons(wanted->port);
  }
  FileDescriptor socket(::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (!socket.is_open() || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0)
    return failure(errno, "create a socket for " + config_.listen);
  socklen_t bytes = bytes_of(address);
  if (::bind(socket.get(), &address.any, bytes) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), &address.any, &bytes) != 0)
    return failure(errno, "listen on " + config_.listen);
  tokens_ = std::move(*tokens);
  tcp_ = std::move(socket);
  tcp_address_ = text_of(address);
  return {};
}

namespace {

// A folder on the way to `path` that a member of the group cannot pass; empty: there is none. The rights that an access list
// gives besides the mode are not looked into.
std::string closed_folder(const std::string& path, gid_t group) {
  struct stat status = {};
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (::stat(folder.c_str(), &status) != 0) continue;
    if ((status.st_mode & (status.st_gid == group ? S_IXGRP : S_IXOTH)) != 0) continue;
    if (::getxattr(folder.c_str(), "system.posix_acl_access", nullptr, 0) <= 0) return folder;
  }
  return "";
}

}  // namespace

std::string closed_to_group(const std::string& path, std::optional<gid_t> group) {
  struct stat status = {};
  if (!group || ::stat(path.c_str(), &status) != 0) return "";
  if (status.st_gid != *group)
    return fmt::format(
        "{} is closed to the admin group {}: the kernel lets marud give it the socket only when marud's own user is a "
        "member; make it one and start marud again",
        path, *group);
  const std::string folder = closed_folder(path, *group);
  if (folder.empty()) return "";
  return fmt::format(
      "{} is closed to the admin group {}: {} lets its members not pass; give that folder to the group (chgrp), let it "
      "pass (chmod g+x), and reload marud, which looks again then",
      path, *group, folder);
}

void give_to_group(const std::string& path, std::optional<gid_t> group) {
  const int why = ::chown(path.c_str(), uid_t(-1), group.value_or(::getegid())) == 0 ? 0 : errno;
  if (const std::string closed = closed_to_group(path, group); !closed.empty())
    log_warning("HTTP: {}{}", closed, why == 0 ? "" : std::string(": ") + std::strerror(why));
}

Result<void> Door::open_unix() {
  if (unix_) return {};
  auto listener = Listener::open(config_.socket_path, false, {}, SOCK_STREAM, lost_files_.get());
  if (!listener) return tl::unexpected(listener.error());
  if (::fcntl(listener->fd(), F_SETFL, O_NONBLOCK) != 0) return failure(errno, "use " + config_.socket_path);
  // A folder that was there is its owner's business.
  const std::string& folder = listener->made_folder();
  if (admin_group_ && !folder.empty() && ::chown(folder.c_str(), uid_t(-1), *admin_group_) == 0 &&
      ::chmod(folder.c_str(), 0750) != 0)
    return failure(errno, "change the mode of " + folder);
  if (admin_group_) give_to_group(config_.socket_path, admin_group_);
  if (::chmod(config_.socket_path.c_str(), 0660) != 0)
    return failure(errno, "change the mode of " + config_.socket_path);
  unix_.emplace(std::move(*listener));
  lost_files_.reset();
  return {};
}

std::string Door::close_lost_unix() {
  if (!unix_) return {};
  unix_->files().clear_changes();
  std::string lost = unix_->files().why_lost();
  if (lost.empty()) return lost;
  lost_files_ = unix_->share_files();
  unix_.reset();
  return lost;
}

FileDescriptor Door::accept(int listener) {
  return FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<Caller> Door::identify(int socket, bool is_unix) {
  if (is_unix) {
    auto peer = identify_peer(socket);
    if (!peer) return tl::unexpected(peer.error());
    std::string name = fmt::format("process {} ({}, user {}), by HTTP,", peer->who.pid, peer->command, peer->who.uid);
    return Caller{std::make_shared<const Peer>(std::move(*peer)), std::move(name)};
  }
  SocketAddress address = {};
  socklen_t bytes = sizeof(address);
  if (::getpeername(socket, &address.any, &bytes) != 0) return failure(errno, "ask who is at the other end");
  return Caller{nullptr, "a client at " + text_of(address) + ", by HTTP,"};
}

}  // namespace maru::daemon::http
