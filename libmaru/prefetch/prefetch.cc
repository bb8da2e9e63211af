// A question to maru-tierd is a connection, and its answer comes on it. No thread, and nothing that outlives a ticket.
#include "maru/prefetch.h"

#include "libmaru/base/file_descriptor.h"
#include "libmaru/prefetch/message.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>

using namespace maru::prefetch;

struct maru_prefetch_ticket {
  maru::FileDescriptor socket;
  char received[sizeof(MessageHeader) + sizeof(PrefetchReply)] = {};
  size_t received_bytes = 0;
  bool is_done = false;
  PrefetchReply reply = {};
};

namespace {

constexpr const char* kDefaultSocket = "/run/maru-tierd/prefetch.sock";
constexpr uint32_t kDefaultDeadlineMs = 1000;
constexpr timeval kSendPatience = {1, 0};  // a question fits into the socket, or maru-tierd reads it at once

bool fits(const maru_key& key) {
  if (key.data == nullptr || key.size == 0 || key.size > 4096) return false;
  return key.kind == MARU_KEY_BYTES || (key.kind == MARU_KEY_DIGEST128 && key.size == 16) ||
         (key.kind == MARU_KEY_DIGEST256 && key.size == 32);
}

template <typename T>
void append(std::string& message, const T& fields) {
  message.append(reinterpret_cast<const char*>(&fields), sizeof fields);
}

std::string question(const maru_key* keys, size_t n, const maru_prefetch_options& options) {
  std::string body;
  append(body, PrefetchRequest{uint32_t(n),
                               options.policy,
                               options.deadline_ms ? options.deadline_ms : kDefaultDeadlineMs,
                               options.compute_us,
                               options.flags,
                               {}});
  for (size_t i = 0; i < n; ++i) {
    append(body, PrefetchKey{keys[i].size, keys[i].kind, keys[i].tenant});
    body.append(static_cast<const char*>(keys[i].data), keys[i].size);
    body.append((8 - keys[i].size % 8) % 8, '\0');
  }
  std::string message;
  append(message, MessageHeader{kMessageMagic, kPrefetch, 0, uint32_t(body.size())});
  return message + body;
}

int connect_to(const char* path, maru::FileDescriptor& ret_socket) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path) return -EINVAL;
  std::strcpy(address.sun_path, path);
  maru::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return -errno;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -errno;
  ret_socket = std::move(socket);
  return 0;
}

int send_all(int socket, const std::string& message) {
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof kSendPatience);
  size_t sent = 0;
  while (sent < message.size()) {
    const ssize_t n = ::send(socket, message.data() + sent, message.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += size_t(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno == EPIPE ? -ECONNRESET : -errno;
    pollfd room = {socket, POLLOUT, 0};
    if (::poll(&room, 1, int(kSendPatience.tv_sec * 1000)) == 0) return -EAGAIN;
  }
  return 0;
}

// Reads the bytes that have come. 0, or -ECONNRESET.
int read_answer(maru_prefetch_ticket& ticket) {
  while (!ticket.is_done) {
    const ssize_t got = ::recv(ticket.socket.get(), ticket.received + ticket.received_bytes,
                               sizeof ticket.received - ticket.received_bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return -ECONNRESET;
    ticket.received_bytes += size_t(got);
    if (ticket.received_bytes < sizeof ticket.received) continue;
    MessageHeader header;
    std::memcpy(&header, ticket.received, sizeof header);
    if (header.magic != kMessageMagic || header.kind != kPrefetch || header.result != 0 ||
        header.bytes != sizeof ticket.reply)
      return -ECONNRESET;
    std::memcpy(&ticket.reply, ticket.received + sizeof header, sizeof ticket.reply);
    ticket.is_done = true;
  }
  return 0;
}

int tell(const maru_prefetch_ticket& ticket, maru_prefetch_status_info* ret_status) {
  maru_prefetch_status_info status = {};
  status.size = ret_status->size;
  if (ticket.is_done) {
    const PrefetchReply& reply = ticket.reply;
    status.is_done = 1;
    status.keys = reply.keys;
    status.usable = reply.usable;
    status.in_pool = reply.in_pool;
    status.loaded = reply.loaded;
    status.absent = reply.absent;
    status.failed = reply.failed;
    status.gated = reply.gated;
    status.late = reply.late;
    status.loaded_bytes = reply.loaded_bytes;
    status.took_us = reply.took_us;
  }
  *ret_status = status;
  return 0;
}

bool is_known(const maru_prefetch_status_info* status) {
  return status != nullptr && status->size == sizeof(maru_prefetch_status_info);
}

}  // namespace

extern "C" {

MARU_PUBLIC int maru_prefetch(const maru_key* keys, size_t n, const maru_prefetch_options* options,
                              maru_prefetch_ticket** ret_ticket) {
  maru_prefetch_options wish = {};
  if (options != nullptr) {
    if (options->size != sizeof wish) return -EINVAL;
    wish = *options;
  }
  if (keys == nullptr || n == 0 || n > MARU_PREFETCH_KEYS_MAX || ret_ticket == nullptr ||
      wish.policy > MARU_PREFETCH_SEGMENTED_PREFIX || (wish.flags & ~uint32_t(MARU_PREFETCH_TEMPORARY)) != 0)
    return -EINVAL;
  if (!std::all_of(keys, keys + n, fits)) return -EINVAL;
  const char* path = wish.socket_path ? wish.socket_path : std::getenv("MARU_TIER_SOCKET");
  if (path == nullptr || *path == 0) path = kDefaultSocket;
  try {
    const std::string message = question(keys, n, wish);
    if (message.size() > sizeof(MessageHeader) + kMessageBytesMax) return -EMSGSIZE;
    auto ticket = std::make_unique<maru_prefetch_ticket>();
    if (const int result = connect_to(path, ticket->socket); result != 0) return result;
    if (const int result = send_all(ticket->socket.get(), message); result != 0) return result;
    *ret_ticket = ticket.release();
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

MARU_PUBLIC int maru_prefetch_status(maru_prefetch_ticket* ticket, maru_prefetch_status_info* ret_status) {
  if (ticket == nullptr || !is_known(ret_status)) return -EINVAL;
  if (const int result = read_answer(*ticket); result != 0) return result;
  return tell(*ticket, ret_status);
}

MARU_PUBLIC int maru_prefetch_wait(maru_prefetch_ticket* ticket, int timeout_ms,
                                   maru_prefetch_status_info* ret_status) {
  if (ticket == nullptr || !is_known(ret_status) || timeout_ms < -1) return -EINVAL;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  for (;;) {
    if (const int result = read_answer(*ticket); result != 0) return result;
    if (ticket->is_done) return tell(*ticket, ret_status);
    int left = -1;
    if (timeout_ms >= 0) {
      left = int(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count());
      if (left <= 0) return -ETIMEDOUT;
    }
    pollfd wait = {ticket->socket.get(), POLLIN, 0};
    ::poll(&wait, 1, left);
  }
}

MARU_PUBLIC int maru_prefetch_descriptor(const maru_prefetch_ticket* ticket) { return ticket->socket.get(); }

MARU_PUBLIC void maru_prefetch_release(maru_prefetch_ticket* ticket) { delete ticket; }

}  // extern "C"
