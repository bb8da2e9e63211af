// One thread has one poll(): the sockets, libmicrohttpd's descriptor, answers, and the order to stop. Only this thread calls
// libmicrohttpd. It suspends a request that waits for an answer, so any number of requests wait at once.
//
// A client holds kHeaderBytesMax of memory and a body. It may hold a connection for kLifeMs at most in each of three states.
// These are: no first line of a request yet, no end of its request yet, and an unread reply. The time during which the client
// waits for marud does not count. By TCP a client has kTokenMs to show a token. When places are short, idle connections are
// closed for newcomers (places.h), so that no client keeps others out by connecting. marud tells a refused client why before it
// closes the connection.
#include "daemon/base/log.h"
#include "daemon/base/thread_priority.h"
#include "daemon/http/service_thread.h"

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

constexpr unsigned kIdleSeconds = 15;     // a connection on which nothing comes
constexpr uint64_t kLifeMs = 60'000;      // to the first line of a request, to its end, to the last byte of its reply
constexpr size_t kRefusedMax = 64;        // connections that were told why they are refused, and are still open
constexpr uint64_t kTokenMs = 2'000;      // from a connection by TCP to the headers with a token
constexpr uint64_t kAcceptPauseMs = 200;  // no descriptor is left
constexpr uint64_t kOpenPauseMs = 1'000;  // a socket could not be opened; twice as long each time, up to
constexpr uint64_t kOpenPauseMaxMs = 60'000;
constexpr uint64_t kFilesPauseMs = 1'000;  // between looks for the socket's file, where the kernel does not tell of it

// Few beside the places of a party: this thread reads the bytes of accepted connections before newcomers can take their places.
uint32_t accepts_per_turn(const HttpConfig& config) { return std::max(1u, config.connections / 16); }

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
                          &on_access, this, MHD_OPTION_CONNECTION_LIMIT,
                          unsigned(2 * config_.connections + Exchange::kSlots), MHD_OPTION_CONNECTION_TIMEOUT,
                          kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytesMax,
                          MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, &on_target, this,
                          MHD_OPTION_UNESCAPE_CALLBACK, &leave_encoded, nullptr, MHD_OPTION_NOTIFY_COMPLETED,
                          &on_completed, this, MHD_OPTION_NOTIFY_CONNECTION, &on_connection, this, MHD_OPTION_END);
  if (!mhd_) return failure(ENOMEM, "start libmicrohttpd");
  const MHD_DaemonInfo* info = MHD_get_daemon_info(mhd_, MHD_DAEMON_INFO_EPOLL_FD);
  if (!info) return failure(ENOSYS, "use epoll with libmicrohttpd");
  mhd_fd_ = info->epoll_fd;
  open_doors();
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
  give_up_priority();
  while (!is_stopping_) {
    const bool accepts = now_ms() >= accept_due_ms_;
    pollfd entries[] = {{stop_.get(), POLLIN, 0},
                        {exchange_.answers_fd(), POLLIN, 0},
                        {mhd_fd_, POLLIN, 0},
                        {accepts ? door_.unix_fd() : -1, POLLIN, 0},
                        {accepts ? door_.tcp_fd() : -1, POLLIN, 0},
                        {door_.unix_changes_fd(), POLLIN, 0}};
    ::poll(entries, std::size(entries), poll_timeout());
    if (entries[0].revents != 0) is_stopping_ = true;
    if (entries[1].revents != 0) exchange_.clear_answers_fd();
    if (entries[3].revents != 0) accept_all(door_.unix_fd(), true);
    if (entries[4].revents != 0) accept_all(door_.tcp_fd(), false);
    look_at_files(entries[5].revents != 0);
    if (exchange_.take_read_again()) {
      door_.renew_tokens();
      open_doors();
    }
    if (open_pause_ms_ != 0 && now_ms() >= open_due_ms_) open_doors();
    if (!is_trouble_told_) tell_trouble();
    settle_waiting();
    complaints_.renew(now_ms());
    MHD_run(mhd_);
    close_refused();
    end_old();  // after the reading, so that a lack of processor time here makes no client late
  }
  // The calls above answered each waiting request with "marud stops". This sends as much as the sockets take.
  MHD_run(mhd_);
}

int Service::Thread::poll_timeout() {
  uint64_t timeout_ms = 1000;
  const uint64_t now = now_ms();
  const auto until = [&](uint64_t due) { timeout_ms = std::min(timeout_ms, due > now ? due - now : 0); };
  for (const Call* call : waiting_) until(call->deadline_ms);
  for (const auto& [fd, connection] : connections_)
    if (!connection.is_known && !connection.was_ended) until(connection.since_ms + kTokenMs + 1);
  if (accept_due_ms_ > now) until(accept_due_ms_);
  if (open_pause_ms_ != 0) until(open_due_ms_);
  MHD_UNSIGNED_LONG_LONG wanted = 0;
  if (MHD_get_timeout(mhd_, &wanted) == MHD_YES) timeout_ms = std::min<uint64_t>(timeout_ms, wanted);
  return int(timeout_ms);
}

// -- sockets ----------------------------------------------------------------------------------------------------------

void Service::Thread::open_doors() {
  const bool had_unix = door_.unix_fd() >= 0, had_tcp = door_.tcp_fd() >= 0;
  std::string trouble;
  for (const auto& opened : {door_.open_unix(), door_.open_tcp()})
    if (!opened) trouble += (trouble.empty() ? "cannot " : "; cannot ") + opened.error().text();
  if (door_.has_old_tokens()) trouble += "; the tokens that were read before are in force";
  if (!had_unix && door_.unix_fd() >= 0) log_info("HTTP is answered on {}", config_.socket_path);
  if (!had_tcp && door_.tcp_fd() >= 0) log_info("HTTP is answered on http://{}", door_.tcp_address());
  open_pause_ms_ = trouble.empty() ? 0 : std::clamp(2 * open_pause_ms_, kOpenPauseMs, kOpenPauseMaxMs);
  open_due_ms_ = now_ms() + open_pause_ms_;
  if (trouble == trouble_) return;
  trouble_ = std::move(trouble);
  is_trouble_told_ = false;
  if (!trouble_.empty()) log_error("HTTP: {}; it is tried again, and everything else goes on", trouble_);
  tell_trouble();
}

// Connections that are there stay.
void Service::Thread::look_at_files(bool now) {
  if (!now && now_ms() < files_due_ms_) return;
  files_due_ms_ = now_ms() + kFilesPauseMs;
  const std::string lost = door_.close_lost_unix();
  if (lost.empty()) return;
  ++sockets_lost_;
  is_trouble_told_ = false;
  log_warning("HTTP: {}: the socket is made again", lost);
  open_pause_ms_ = 0;
  open_doors();
}

// When there is no slot for it, it is told in another turn.
void Service::Thread::tell_trouble() {
  Question question;
  question.kind = Question::Kind::kTrouble;
  question.command = trouble_;
  question.sockets_lost = sockets_lost_;
  const auto slot = exchange_.ask(std::move(question));
  if (!slot) return;
  exchange_.abandon(*slot);
  is_trouble_told_ = true;
}

// -- connections ------------------------------------------------------------------------------------------------------

void Service::Thread::complain(std::optional<uid_t> uid, const std::string& text) {
  complaints_.say(uid, "{}", printable(text));
}

namespace {

// Says why, without ever waiting.
void say_and_shut(int socket, const char* status, const std::string& why) {
  const std::string body = "{\"error\":\"" + why + "\"}\n";
  const std::string reply = std::string("HTTP/1.1 ") + status +
                            "\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: "
                            "close\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body;
  ::send(socket, reply.data(), reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
}

// Unread bytes would make the kernel reset the connection, and the reason could be lost. False: the other end is closed.
bool discard_unread(int socket) {
  char unread[4096];
  for (int reads = 0; reads < 16; ++reads) {  // a bound, since the client may write on
    const ssize_t bytes = ::recv(socket, unread, sizeof(unread), MSG_DONTWAIT);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    if (bytes == 0) return false;
  }
  return true;
}

bool has_unread(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

void Service::Thread::refuse(FileDescriptor socket, const std::string& who, std::optional<uid_t> uid,
                             const std::string& why) {
  complain(uid, who + " is refused: " + why);
  say_and_shut(socket.get(), "503 Service Unavailable", why);
  // Closed at once, it would be gone before its owner looks whether it is there: curl says then that it failed to connect.
  while (refused_.size() >= kRefusedMax) refused_.pop_front();
  discard_unread(socket.get());
  refused_.push_back({std::move(socket), now_ms()});
}

void Service::Thread::close_refused() {
  const uint64_t now = now_ms();
  std::erase_if(refused_,
                [&](const Refused& one) { return !discard_unread(one.socket.get()) || now - one.since_ms > kLifeMs; });
}

// libmicrohttpd sees the end of the connection and closes it. A client that never sent a request learns why. After a request
// the text could be taken for its reply.
void Service::Thread::end(int fd, Connection& connection, const std::string& why) {
  const std::string& name = connection.shown_name.empty() ? connection.caller.name : connection.shown_name;
  complain(uid_of(connection.caller), name + " is dropped: " + why);
  connection.was_ended = true;
  if (!connection.has_asked) say_and_shut(fd, "408 Request Timeout", why);
  ::shutdown(fd, SHUT_RDWR);
}

// Clears a place where one is needed. False: why there is none.
bool Service::Thread::make_room(const Caller& caller, std::string& ret_why_not) {
  std::vector<Place> places;
  std::vector<std::pair<const int, Connection>*> entries;
  for (auto& entry : connections_) {
    const Connection& one = entry.second;
    if (one.was_ended) continue;
    using State = Place::State;
    const State state = !one.is_known          ? State::kStranger
                        : !one.call            ? State::kIdle
                        : one.call->is_waiting ? State::kWaits
                                               : State::kBusy;
    places.push_back({uid_of(one.caller), state, one.since});
    entries.push_back(&entry);
  }
  const auto uid = uid_of(caller);
  const bool has_share = uid != uid_t(0) && uid != ::geteuid();
  Admission admission = admit(places, uid, has_share, config_.connections);
  // A request that came since connections were read last is read first, unless that is so on all of them.
  const Admission without_regard = admission;
  const auto has_news = [&](size_t i) { return !entries[i]->second.call && has_unread(entries[i]->first); };
  while (admission.gives_way && has_news(*admission.gives_way)) {
    places[*admission.gives_way].state = Place::State::kWaits;
    admission = admit(places, uid, has_share, config_.connections);
  }
  if (!admission.why_not.empty()) admission = without_regard;
  if (admission.gives_way) {
    auto& [fd, connection] = *entries[*admission.gives_way];
    end(fd, connection, "all places for HTTP connections are taken, and a newcomer has this one");
  }
  ret_why_not = admission.why_not;
  return ret_why_not.empty();
}

void Service::Thread::accept_all(int listener, bool is_unix) {
  for (uint32_t i = 0; i < accepts_per_turn(config_); ++i) {
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
    if (std::string why_not; !make_room(*caller, why_not)) {
      refuse(std::move(socket), caller->name, uid_of(*caller), why_not);
      continue;
    }
    Connection entry;
    entry.caller = std::move(*caller);
    entry.since_ms = now_ms();
    entry.since = ++counted_;
    entry.is_known = is_unix;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;  // libmicrohttpd wants an address; `entry` has the identity
    const int fd = socket.release();
    connections_.insert_or_assign(fd, std::move(entry));
    if (MHD_add_connection(mhd_, fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != MHD_YES)
      connections_.erase(fd);  // libmicrohttpd has closed the descriptor
  }
}

void Service::Thread::end_old() {
  const uint64_t now = now_ms();
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    Connection& connection = entry->second;
    const uint64_t age_ms = now - connection.since_ms;
    if (age_ms > kLifeMs && !connection.has_begun) {
      entry = connections_.erase(entry);  // libmicrohttpd did not want it, and has closed it
      continue;
    }
    const Call* call = connection.call;
    const bool is_stuck = call ? !call->is_waiting && now - call->since_ms > kLifeMs : age_ms > kLifeMs;
    if (connection.was_ended) {
    } else if (is_stuck) {
      end(entry->first, connection, "it has not finished a request in " + std::to_string(kLifeMs / 1000) + " s");
    } else if (!connection.is_known && age_ms > kTokenMs) {
      end(entry->first, connection, "it has not shown the token in " + std::to_string(kTokenMs / 1000) + " s");
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

Result<std::unique_ptr<Service>> Service::start(const HttpConfig& config, std::optional<gid_t> admin_group,
                                                Exchange& exchange) {
  auto thread = std::make_unique<Thread>(config, admin_group, exchange);
  if (auto started = thread->start(); !started) return tl::unexpected(started.error());
  return std::unique_ptr<Service>(new Service(std::move(thread)));
}

}  // namespace maru::daemon::http
