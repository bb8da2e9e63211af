#include "daemon/system/passed_socket.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>

namespace maru::daemon {
namespace {

// A property of a socket; -1 of anything else.
int property(int fd, int name) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

// The path that a Unix socket is bound to; empty when that is no path.
std::string path_of(int fd) {
  sockaddr_un address = {};
  socklen_t bytes = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  constexpr size_t kHead = offsetof(sockaddr_un, sun_path);
  if (bytes <= kHead || address.sun_path[0] == 0) return {};
  return std::string(address.sun_path, ::strnlen(address.sun_path, bytes - kHead));
}

}  // namespace

Result<FileDescriptor> take_listening_socket(std::map<std::string, FileDescriptor>& passed, const std::string& path) {
  FileDescriptor socket;
  for (auto entry = passed.begin(); entry != passed.end();) {
    const int fd = entry->second.get();
    if (property(fd, SO_ACCEPTCONN) != 1) {
      ++entry;
      continue;
    }
    const std::string what = "take the listening socket that the service manager passed as \"" + entry->first + "\"";
    if (socket.is_open()) return failure(EINVAL, what + " (it passed another one, too; expected one)");
    if (property(fd, SO_DOMAIN) != AF_UNIX || property(fd, SO_TYPE) != SOCK_SEQPACKET)
      return failure(EPROTOTYPE, what + " (expected a Unix socket of ListenSequentialPacket=)");
    if (const std::string bound = path_of(fd); bound != path)
      return failure(EADDRNOTAVAIL, what + " (it is at \"" + bound + "\", the configuration says socket = \"" + path +
                                        "\": make them the same)");
    socket = std::move(entry->second);
    entry = passed.erase(entry);
  }
  return socket;
}

}  // namespace maru::daemon
