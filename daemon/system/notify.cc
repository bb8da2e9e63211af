#include "daemon/system/notify.h"

#include "libmaru/wire/passed_descriptors.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

uint64_t number_from(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

}  // namespace

bool notify(const std::string& state, int fd) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address = {};
  if (!path || (path[0] != '/' && path[0] != '@') || std::strlen(path) >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (path[0] == '@') address.sun_path[0] = 0;  // an abstract name
  const socklen_t address_bytes = socklen_t(offsetof(sockaddr_un, sun_path) + std::strlen(path));

  FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return false;
  iovec part = {const_cast<char*>(state.data()), state.size()};
  wire::DescriptorRoom room;
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = address_bytes;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) wire::attach_descriptors(message, room, fd);
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

uint64_t watchdog_interval_ms() {
  const uint64_t pid = number_from("WATCHDOG_PID");
  if (pid != 0 && pid != uint64_t(::getpid())) return 0;
  return number_from("WATCHDOG_USEC") / 2000;
}

std::map<std::string, FileDescriptor> take_stored_descriptors() {
  constexpr int kFirst = 3;
  constexpr uint64_t kDescriptorsMax = 1024;
  std::map<std::string, FileDescriptor> out;
  const uint64_t count = number_from("LISTEN_FDS");
  const char* names = std::getenv("LISTEN_FDNAMES");
  if (count > 0 && count <= kDescriptorsMax && number_from("LISTEN_PID") == uint64_t(::getpid())) {
    std::string_view rest = names ? names : "";
    for (uint64_t i = 0; i < count; ++i) {
      const size_t colon = rest.find(':');
      const std::string name(rest.substr(0, colon));
      rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
      FileDescriptor fd(kFirst + int(i));
      if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
        fd.release();
        continue;
      }
      out[name] = std::move(fd);
    }
  }
  ::unsetenv("LISTEN_FDS");
  ::unsetenv("LISTEN_FDNAMES");
  ::unsetenv("LISTEN_PID");
  return out;
}

}  // namespace maru::daemon
