// One thread, one poll(): the sockets, libmicrohttpd's descriptor, answers, and the word to stop. Every call into libmicrohttpd
// is made here. A request that waits for an answer is suspended, so any number of them wait at once.
//
// What a client can hold: a connection for kLifeMs without finishing a request, kHeaderBytesMax of memory and a body. Users
// other than root and marud's own get a quarter of the connections each, and so do all who come by TCP together: nobody knows
// who they are before they show a token. Whoever is refused is told why, before the connection is closed.
#include "daemon/http/service_thread.h"
#include "daemon/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

namespace maru::daemon::http {
namespace {

constexpr size_t kHeaderBytesMax = 16u << 10;  // libmicrohttpd's memory of a connection: the headers both ways
constexpr unsigned kIdleSeconds = 15;          // a connection on which nothing comes
constexpr uint64_t kLifeMs = 60'000;           // a request, from its first byte to the last of its reply
constexpr uint64_t kAcceptPauseMs = 200;       // no descriptor is left
constexpr int kAcceptsPerTurn = 64;

// The path and query stay as they came: http/request.cc decodes.
size_t leave_encoded(void*, MHD_Connection*, char* text) { return std::strlen(text); }

std::optional<uid_t> uid_of(const Caller& caller) {
  return caller.peer ? std::optional(caller.peer->who.uid) : std::nullopt;
}

}  // namespace

uint64_t now_ms() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1000 + uint64_t(time.tv_nsec) / 1'000'000;
}

// -- life -------------------------------------------------------------------------------------------------------------

Result<void> Service::Thread::start() {
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.is_open()) return failure(errno, "create an event descriptor");
  mhd_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr,
                          &on_access, this, MHD_OPTION_CONNECTION_LIMIT, unsigned(config_.connections + 1),
                          MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                          kHeaderBytesMax, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, &on_target,
                          this, MHD_OPTION_UNESCAPE_CALLBACK, &leave_encoded, nullptr, MHD_OPTION_NOTIFY_COMPLETED,
                          &on_completed, this, MHD_OPTION_NOTIFY_CONNECTION, &on_connection, this, MHD_OPTION_END);
  if (!mhd_) return failure(ENOMEM, "start libmicrohttpd");
  const MHD_DaemonInfo* info = MHD_get_daemon_info(mhd_, MHD_DAEMON_INFO_EPOLL_FD);
  if (!info) return failure(ENOSYS, "use epoll with libmicrohttpd");
  mhd_fd_ = info->epoll_fd;
  thread_ = std::thread([this] { run(); });
  return {};
}

Service::Thread::~Thread() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  if (mhd_) MHD_stop_daemon(mhd_);
}

void Service::Thread::run() {
  ::pthread_setname_np(::pthread_self(), "marud-http");
  while (!is_stopping_) {
    const bool accepts = now_ms() >= accept_due_ms_;
    pollfd entries[] = {{stop_.get(), POLLIN, 0},
                        {exchange_.answers_fd(), POLLIN, 0},
                        {mhd_fd_, POLLIN, 0},
                        {accepts ? door_.unix_fd() : -1, POLLIN, 0},
                        {accepts ? door_.tcp_fd() : -1, POLLIN, 0}};
    ::poll(entries, std::size(entries), poll_timeout());
    if (entries[0].revents != 0) is_stopping_ = true;
    if (entries[1].revents != 0) exchange_.clear_answers_fd();
    if (entries[3].revents != 0) accept_all(door_.unix_fd(), true);
    if (entries[4].revents != 0) accept_all(door_.tcp_fd(), false);
    settle_waiting();
    end_old();
    complaints_.renew(now_ms());
    MHD_run(mhd_);
  }
  // Whatever waits was answered "marud stops" above and is sent as far as the socket takes it.
  MHD_run(mhd_);
}

int Service::Thread::poll_timeout() {
  uint64_t timeout_ms = 1000;
  const uint64_t now = now_ms();
  const auto until = [&](uint64_t due) { timeout_ms = std::min(timeout_ms, due > now ? due - now : 0); };
  for (const Call* call : waiting_) until(call->deadline_ms);
  if (accept_due_ms_ > now) until(accept_due_ms_);
  MHD_UNSIGNED_LONG_LONG wanted = 0;
  if (MHD_get_timeout(mhd_, &wanted) == MHD_YES) timeout_ms = std::min<uint64_t>(timeout_ms, wanted);
  return int(timeout_ms);
}

// -- connections ------------------------------------------------------------------------------------------------------

void Service::Thread::complain(std::optional<uid_t> uid, const std::string& text) {
  complaints_.say(uid, "{}", printable(text));
}

// Says why and closes, without ever waiting.
void Service::Thread::refuse(FileDescriptor socket, const std::string& who, std::optional<uid_t> uid,
                             const std::string& why) {
  complain(uid, who + " is refused: " + why);
  const std::string body = "{\"error\":\"" + why + "\"}\n";
  const std::string reply =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 10\r\nConnection: "
      "close\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  ::send(socket.get(), reply.data(), reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(socket.get(), SHUT_WR);
  // What lies unread would make the kernel reset the connection, and the reason could be lost.
  char unread[4096];
  while (::recv(socket.get(), unread, sizeof(unread), MSG_DONTWAIT) > 0) {
  }
}

void Service::Thread::accept_all(int listener, bool is_unix) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    FileDescriptor socket = Door::accept(listener);
    if (!socket.is_open()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      complain(std::nullopt,
               std::string("HTTP connections are not accepted until others have gone: ") + std::strerror(errno));
      accept_due_ms_ = now_ms() + kAcceptPauseMs;
      return;
    }
    auto caller = Door::identify(socket.get(), is_unix);
    if (!caller) {
      refuse(std::move(socket), "an HTTP connection", std::nullopt, "marud cannot tell who is at its other end");
      continue;
    }
    const std::optional<uid_t> uid = uid_of(*caller);
    if (connections_.size() >= config_.connections) {
      refuse(std::move(socket), caller->name, uid,
             "there are " + std::to_string(connections_.size()) +
                 " HTTP connections already, which is all that are let in");
      continue;
    }
    const auto of_user = std::count_if(connections_.begin(), connections_.end(),
                                       [&](const auto& entry) { return uid_of(entry.second.caller) == uid; });
    const bool has_share = uid != uid_t(0) && uid != ::geteuid();
    if (has_share && uint64_t(of_user) >= config_.connections / 4) {
      refuse(std::move(socket), caller->name, uid,
             (uid ? "user " + std::to_string(*uid) + " has " : "TCP has ") + std::to_string(of_user) +
                 " HTTP connections already");
      continue;
    }
    Connection entry;
    entry.caller = std::move(*caller);
    entry.since_ms = now_ms();
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;  // libmicrohttpd wants any; who it is, is known here
    const int fd = socket.release();
    connections_.insert_or_assign(fd, std::move(entry));
    if (MHD_add_connection(mhd_, fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != MHD_YES)
      connections_.erase(fd);  // it has closed it
  }
}

void Service::Thread::end_old() {
  const uint64_t now = now_ms();
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    Connection& connection = entry->second;
    const bool is_old = now - connection.since_ms > kLifeMs;
    if (is_old && !connection.has_begun) {
      entry = connections_.erase(entry);  // libmicrohttpd did not want it, and has closed it
      continue;
    }
    if (is_old && !connection.was_ended) {
      complain(uid_of(connection.caller), connection.caller.name + " is dropped: it has not finished a request in " +
                                              std::to_string(kLifeMs / 1000) + " s");
      connection.was_ended = true;
      ::shutdown(entry->first, SHUT_RDWR);
    }
    ++entry;
  }
}

void Service::Thread::on_connection(void* self, MHD_Connection* connection, void** context,
                                    MHD_ConnectionNotificationCode code) {
  Thread& thread = *static_cast<Thread*>(self);
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (!info) return;
  const auto found = thread.connections_.find(int(info->connect_fd));
  if (found == thread.connections_.end()) return;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    found->second.has_begun = true;
    *context = &found->second;
  } else {
    thread.connections_.erase(found);
  }
}

// -- the service ------------------------------------------------------------------------------------------------------

Service::Service(std::unique_ptr<Thread> thread) : thread_(std::move(thread)) {}
Service::~Service() = default;

const std::string& Service::tcp_address() const { return thread_->door().tcp_address(); }

Result<std::unique_ptr<Service>> Service::start(const HttpConfig& config, std::optional<gid_t> admin_group,
                                                Exchange& exchange) {
  auto door = Door::open(config, admin_group);
  if (!door) return tl::unexpected(door.error());
  auto thread = std::make_unique<Thread>(config, std::move(*door), exchange);
  if (auto started = thread->start(); !started) return tl::unexpected(started.error());
  return std::unique_ptr<Service>(new Service(std::move(thread)));
}

}  // namespace maru::daemon::http
