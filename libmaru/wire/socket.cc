#include "libmaru/wire/socket.h"

#include "libmaru/wire/passed_descriptors.h"
#include "maru/format/wire.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::wire {
namespace {

constexpr size_t kDescriptorsMax = 4;
constexpr const char* kMachineSocket = "/run/marud/marud.sock";

int64_t monotonic_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

// The number of a socket at this moment, or -1: another thread of the program may close it between any two calls.
int number_of(int socket) { return socket; }
int number_of(const KeptDescriptor& socket) { return socket.get(); }

tl::unexpected<Error> no_socket(const char* doing) {
  return failure(ECONNRESET, std::string(doing) + ", whose socket the program has closed");
}

// Waits until the socket is ready for `events` or the deadline has passed.
template <typename Socket>
Result<void> wait_for(const Socket& socket, short events, int64_t deadline_ms, const char* doing) {
  while (true) {
    const int64_t left_ms = deadline_ms - monotonic_ms();
    if (left_ms <= 0) return failure(ETIMEDOUT, doing);
    pollfd entry = {number_of(socket), events, 0};
    if (entry.fd < 0) return no_socket(doing);
    const int ready = ::poll(&entry, 1, int(std::min<int64_t>(left_ms, INT_MAX)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failure(errno, doing);
  }
}

}  // namespace

Deadline::Deadline(uint32_t after_ms) : at_ms_(monotonic_ms() + after_ms) {}

uint32_t Deadline::left_ms() const { return uint32_t(std::clamp<int64_t>(at_ms_ - monotonic_ms(), 0, UINT32_MAX)); }

std::string default_socket_path() {
  if (const char* path = std::getenv("MARU_SOCKET"); path && *path) return path;
  // The socket of a marud of this user (daemon/config/config.h, default_runtime_dir), else the machine's.
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string own;
  if (runtime && *runtime)
    own = runtime;
  else if (::geteuid() != 0)
    own = "/run/user/" + std::to_string(::geteuid());
  if (own.empty()) return kMachineSocket;
  own += "/marud/marud.sock";
  return ::access(own.c_str(), F_OK) == 0 ? own : kMachineSocket;
}

Result<FileDescriptor> connect_to(const std::string& path, uint32_t timeout_ms) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return failure(ENAMETOOLONG, "connect to " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return failure(errno, "create a socket");
  const Deadline deadline(timeout_ms);
  for (uint32_t left_ms = timeout_ms;;) {  // ends: with every signal of the program there is less time left
    const timeval timeout = {time_t(left_ms / 1000), suseconds_t(left_ms % 1000 * 1000)};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return socket;
    if (errno != EINTR) return failure(errno == EAGAIN ? ETIMEDOUT : errno, "connect to " + path);
    if (timeout_ms != 0 && (left_ms = deadline.left_ms()) == 0) return failure(ETIMEDOUT, "connect to " + path);
  }
}

namespace {

template <typename Socket>
Result<void> send_by(const Socket& socket, std::span<const std::byte> packet, int fd, uint32_t timeout_ms, int second) {
  iovec part = {const_cast<std::byte*>(packet.data()), packet.size()};
  DescriptorRoom room;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) attach_descriptors(message, room, fd, second);
  const int64_t deadline_ms = monotonic_ms() + timeout_ms;
  while (true) {
    const int number = number_of(socket);
    if (number < 0) return no_socket("send a message to marud");
    if (::sendmsg(number, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return failure(errno, "send a message to marud");
    auto ready = wait_for(socket, POLLOUT, deadline_ms, "send a message to marud");
    if (!ready) return ready;
  }
}

template <typename Socket>
Result<Packet> receive_by(const Socket& socket, uint32_t timeout_ms) {
  Packet packet;
  packet.bytes.resize(limits::kMessageBytesMax);
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
  const int64_t deadline_ms = monotonic_ms() + timeout_ms;
  while (true) {
    iovec part = {packet.bytes.data(), packet.bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const int number = number_of(socket);
    if (number < 0) return no_socket("receive marud's reply");
    const ssize_t got = ::recvmsg(number, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return failure(errno, "receive marud's reply");
      auto ready = wait_for(socket, POLLIN, deadline_ms, "receive marud's reply");
      if (!ready) return tl::unexpected(ready.error());
      continue;
    }
    auto descriptors = take_descriptors(message);
    const bool lacks = std::any_of(descriptors.begin(), descriptors.end(), [](const auto& d) { return !d.is_open(); });
    if (!descriptors.empty()) packet.fd = std::move(descriptors.front());
    if (descriptors.size() > 1) packet.second = std::move(descriptors[1]);
    if (descriptors.size() > 2) packet.third = std::move(descriptors[2]);
    if (lacks || (message.msg_flags & MSG_CTRUNC) != 0)
      return failure(EMFILE, "receive the descriptors in marud's reply");
    if ((message.msg_flags & MSG_TRUNC) != 0) return failure(EMSGSIZE, "receive marud's reply");
    if (got == 0) return failure(ECONNRESET, "receive marud's reply");
    packet.bytes.resize(size_t(got));
    return packet;
  }
}

}  // namespace

Result<void> send_packet(int socket, std::span<const std::byte> packet, int fd, uint32_t timeout_ms, int second) {
  return send_by(socket, packet, fd, timeout_ms, second);
}

Result<void> send_packet(const KeptDescriptor& socket, std::span<const std::byte> packet, int fd, uint32_t timeout_ms,
                         int second) {
  return send_by(socket, packet, fd, timeout_ms, second);
}

Result<Packet> receive_packet(int socket, uint32_t timeout_ms) { return receive_by(socket, timeout_ms); }

Result<Packet> receive_packet(const KeptDescriptor& socket, uint32_t timeout_ms) {
  return receive_by(socket, timeout_ms);
}

}  // namespace maru::wire
