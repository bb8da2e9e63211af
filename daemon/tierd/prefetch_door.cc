#include "daemon/tierd/prefetch_door.h"

#include "daemon/base/log.h"
#include "maru/prefetch.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::tierd {

namespace {

constexpr uint32_t kKeyBytesMax = 4096;
constexpr std::chrono::seconds kShortageTold{60};  // between two lines of the log

uint32_t key_bytes_fitting(uint32_t kind, uint32_t size) {
  return kind == MARU_KEY_DIGEST128 ? 16 : kind == MARU_KEY_DIGEST256 ? 32 : kind == MARU_KEY_BYTES ? size : 0;
}

bool is_change(uint32_t kind) {
  return kind == maru::prefetch::kClearTier || kind == maru::prefetch::kSetQuota || kind == maru::prefetch::kDropQuota;
}

bool is_operator(int socket) {
  ucred peer = {};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         (peer.uid == 0 || peer.uid == ::geteuid());
}

constexpr std::string_view kNotOperator =
    "{\"text\": \"only root and maru-tierd's own user may do this: run marudctl as one of them\"}";

}  // namespace

using namespace maru::prefetch;

struct PrefetchDoor::Connection {
  uint64_t id = 0;
  FileDescriptor socket;
  std::string received;
  bool has_asked = false;
  std::shared_ptr<PrefetchController::Ticket> ticket;
};

PrefetchDoor::PrefetchDoor(std::string path, PrefetchController& prefetches, Order order)
    : path_(std::move(path)), prefetches_(prefetches), order_(std::move(order)) {}

std::optional<PrefetchController::Wanted> read_prefetch_request(std::span<const std::byte> bytes) {
  PrefetchRequest request;
  if (bytes.size() < sizeof request) return std::nullopt;
  std::memcpy(&request, bytes.data(), sizeof request);
  if (request.keys == 0 || request.keys > kKeysMax || request.policy > MARU_PREFETCH_SEGMENTED_PREFIX ||
      (request.flags & ~uint32_t(MARU_PREFETCH_TEMPORARY)) != 0)
    return std::nullopt;
  PrefetchController::Wanted wanted;
  wanted.policy = request.policy;
  wanted.deadline_ms = request.deadline_ms;
  wanted.compute_us = request.compute_us;
  wanted.is_temporary = (request.flags & MARU_PREFETCH_TEMPORARY) != 0;
  size_t at = sizeof request;
  for (uint32_t i = 0; i < request.keys; ++i) {
    PrefetchKey key;
    if (bytes.size() - at < sizeof key) return std::nullopt;
    std::memcpy(&key, bytes.data() + at, sizeof key);
    at += sizeof key;
    const size_t filled = (size_t(key.size) + 7) / 8 * 8;
    if (key.size == 0 || key.size > kKeyBytesMax || key_bytes_fitting(key.kind, key.size) != key.size ||
        bytes.size() - at < filled)
      return std::nullopt;
    wanted.keys.push_back(
        {std::string(reinterpret_cast<const char*>(bytes.data()) + at, key.size), key.kind, key.tenant});
    at += filled;
  }
  if (at != bytes.size()) return std::nullopt;
  return wanted;
}

Result<std::unique_ptr<PrefetchDoor>> PrefetchDoor::open(const std::string& path, PrefetchController& prefetches,
                                                         Order order) {
  std::unique_ptr<PrefetchDoor> door(new PrefetchDoor(path, prefetches, std::move(order)));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return failure(ENAMETOOLONG, "listen on \"" + path + "\": expected a path of at most " +
                                     std::to_string(sizeof address.sun_path - 1) + " bytes");
  std::memcpy(address.sun_path, path.data(), path.size());
  door->listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  door->poll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!door->listener_.is_open() || !door->poll_.is_open()) return failure(errno, "make a socket");
  // The log's lock says that no other maru-tierd with this configuration lives, so a socket that is there is a dead one's.
  struct stat found = {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return failure(EEXIST, "listen on " + path + ": found something that is no socket; name another path");
    const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      return failure(EADDRINUSE,
                     "listen on " + path + ": another process does; give each maru-tierd a socket of its own");
    ::unlink(path.c_str());
  }
  if (::bind(door->listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0660) != 0 || ::listen(door->listener_.get(), SOMAXCONN) != 0)
    return failure(errno, "listen on " + path);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (::epoll_ctl(door->poll_.get(), EPOLL_CTL_ADD, door->listener_.get(), &event) != 0)
    return failure(errno, "watch " + path);
  door->spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return door;
}

PrefetchDoor::~PrefetchDoor() {
  *is_alive_ = false;
  while (!connections_.empty()) close(connections_.begin()->first);
  if (listener_.is_open()) ::unlink(path_.c_str());
}

void PrefetchDoor::serve() {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(poll_.get(), events.data(), int(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[size_t(i)].data.u64;
    if (id == 0) {
      accept();
    } else if (const auto found = connections_.find(id); found != connections_.end()) {
      read(*found->second);
    }
  }
}

void PrefetchDoor::accept() {
  for (;;) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno == EAGAIN) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return turn_away();
    }
    if (connections_.size() >= kConnectionsMax) continue;  // closed at once: the asker goes on without
    auto connection = std::make_unique<Connection>();
    connection->id = next_id_++;
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = connection->id;
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) continue;
    connection->socket = std::move(socket);
    connections_.emplace(connection->id, std::move(connection));
  }
}

// Closes the waiting connections, where no descriptor is left to take them. The kernel says so also when none waits.
void PrefetchDoor::turn_away() {
  const int code = errno;
  if (const Clock::time_point now = Clock::now(); now - shortage_told_ >= kShortageTold) {
    shortage_told_ = now;
    maru::daemon::log_warning("connections for prefetches are not accepted until others have gone: {}",
                              std::strerror(code));
  }
  spare_.reset();
  while (FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).is_open()) {
  }
  const bool are_all_gone = errno == EAGAIN;
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (are_all_gone) return;
  listens_again_ = Clock::now() + kAcceptPause;
  listen_again(false);
}

void PrefetchDoor::listen_again(bool is_listening) {
  epoll_event event = {};
  event.events = is_listening ? uint32_t(EPOLLIN) : 0;
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  if (!is_listening) return;
  listens_again_.reset();
  if (!spare_.is_open()) spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void PrefetchDoor::tick(Clock::time_point now) {
  if (listens_again_ && now >= *listens_again_) listen_again(true);
}

void PrefetchDoor::read(Connection& connection) {
  std::array<char, 65536> room;
  for (;;) {
    const ssize_t got = ::recv(connection.socket.get(), room.data(), room.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // The end, or more than one question.
    if (got <= 0 || connection.has_asked) return close(connection.id);
    connection.received.append(room.data(), size_t(got));
    if (connection.received.size() > sizeof(MessageHeader) + kMessageBytesMax) return close(connection.id);
  }
  if (!connection.has_asked && !take_question(connection)) close(connection.id);
}

// False: it is no question, and the connection ends.
bool PrefetchDoor::take_question(Connection& connection) {
  MessageHeader header;
  if (connection.received.size() < sizeof header) return true;  // more will come
  std::memcpy(&header, connection.received.data(), sizeof header);
  if (header.magic != kMessageMagic || header.bytes > kMessageBytesMax) return false;
  if (connection.received.size() < sizeof header + header.bytes) return true;
  if (connection.received.size() > sizeof header + header.bytes) return false;
  connection.has_asked = true;
  const std::string body = connection.received.substr(sizeof header);
  connection.received = {};
  const uint64_t id = connection.id;
  const auto alive = is_alive_;
  if (is_change(header.kind) && !is_operator(connection.socket.get())) {
    send(connection, header.kind, -EACCES, kNotOperator.data(), kNotOperator.size());
    return true;
  }
  if (header.kind != kPrefetch) {
    order_(header.kind, body, [this, alive, id, kind = header.kind](int result, const std::string& json) {
      if (*alive) send_by_id(id, kind, result, json.data(), json.size());
    });
    return true;
  }
  auto wanted = read_prefetch_request(std::as_bytes(std::span(body)));
  if (!wanted) return false;
  auto ticket = prefetches_.begin(std::move(*wanted), [this, alive, id](const PrefetchReply& reply) {
    if (*alive) send_by_id(id, kPrefetch, 0, &reply, sizeof reply);
  });
  // The answer may have come at once, and the asker may be gone.
  if (const auto found = connections_.find(id); found != connections_.end()) found->second->ticket = std::move(ticket);
  return true;
}

void PrefetchDoor::send_by_id(uint64_t id, uint32_t kind, int result, const void* data, size_t bytes) {
  if (const auto found = connections_.find(id); found != connections_.end())
    send(*found->second, kind, result, data, bytes);
}

// An answer is shorter than the room in a socket; an asker that has filled the socket with other bytes gets none.
void PrefetchDoor::send(Connection& connection, uint32_t kind, int result, const void* data, size_t bytes) {
  const MessageHeader header = {kMessageMagic, kind, result, uint32_t(bytes)};
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message.append(static_cast<const char*>(data), bytes);
  (void)::send(connection.socket.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void PrefetchDoor::close(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = std::move(found->second);
  connections_.erase(found);
  if (connection->ticket) prefetches_.cancel(connection->ticket);
  connection->socket.reset();
  if (listens_again_) listen_again(true);
}

}  // namespace maru::tierd
