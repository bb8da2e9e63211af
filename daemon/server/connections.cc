// Connections: they are accepted, known, turned away, and closed; and their packets are received.
#include "daemon/base/log.h"
#include "daemon/base/memory_reserve.h"
#include "daemon/server/server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kAcceptPauseMs = 200;
// A shortage of descriptors is over when none was missing for so long: under it now and then one can be accepted.
constexpr uint64_t kShortageMs = 5000;
// Connections that may not stay, and are kept until they have asked something and been told why they go.
constexpr size_t kTurnedAwayMax = 16;
// Connections accepted in one turn: one while there are few, twice as many as in the turn before while there are more.
constexpr size_t kAcceptsMax = 64;
// Connections of one user that are accepted and not looked at yet, as many as there can be connections; a further connection is
// closed without a word. While more than twice as many wait of all users, new connections wait in the kernel's queue.
constexpr size_t kArrivalsMax = limits::kConnectionsMax;
constexpr uid_t kNobody = uid_t(-1);  // as (uid_t)-1 for the kernel: no user has it

// Nothing lies unread in it and nothing can come any more: its last close cannot last.
bool is_over_and_empty(int socket) {
  // The kernel adds the sender to each packet, so that a packet without bytes or descriptors differs from the end.
  const int on = 1;
  if (::shutdown(socket, SHUT_RDWR) != 0 || ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
    return false;
  char byte;
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) == 0 && (message.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

void Server::ask_for_connections() {
  if (now_.monotonic_ms < accept_due_ms_ || arrivals_ >= 2 * kArrivalsMax) return;
  for (const size_t wanted = std::clamp(2 * accepted_, size_t(1), kAcceptsMax); accepts_ < wanted; ++accepts_)
    loop_->accept(listener_.fd());
  accepted_ = 0;
}

void Server::on_accept(const Event& event) {
  --accepts_;
  if (event.result < 0) {
    if (event.result == -ECANCELED) return;
    // Out of descriptors or memory: connections in the queue are accepted when others have gone. Trying at once would
    // fail at once. One accept is woken for each connection, so those that are left would be one behind from now on.
    if (accepts_ > 0) loop_->cancel_accepts();
    if (shortage_over_ms_ == 0)
      log_warning("connections are not accepted until others have gone: {}", std::strerror(-event.result));
    shortage_over_ms_ = now_.monotonic_ms + kShortageMs;
    accept_due_ms_ = now_.monotonic_ms + kAcceptPauseMs;
    return;
  }
  accept_due_ms_ = 0;
  ++accepted_;
  FileDescriptor socket(event.result);
  const auto user = user_of_peer(socket.get());
  const ShareOf share = {user ? requests_.users().account_of(*user) : kNobody, Share::kArrivals};
  if (!has_memory() || !user || work_.size(share) >= kArrivalsMax)
    return close_connection(socket.release(), share.first);
  ++arrivals_;
  work_.push(share, {.arrival = std::move(socket)});
}

// For another connection.
bool Server::has_memory() {
  const bool is_short = !MemoryReserve::is_whole();
  if (is_short && !is_short_of_memory_)
    log_error(
        "marud is out of memory (a limit on its address space?): it takes no connections until it has some again");
  if (!is_short && is_short_of_memory_) log_info("there is memory again: connections are taken");
  is_short_of_memory_ = is_short;
  return !is_short;
}

void Server::on_arrival(FileDescriptor socket) {
  --arrivals_;
  const auto close_aside = [&] {
    const auto user = user_of_peer(socket.get());
    close_connection(socket.release(), user ? requests_.users().account_of(*user) : kNobody);
  };
  if (!has_memory()) return close_aside();
  auto peer = identify_peer(socket.get());
  if (!peer) {
    const auto user = user_of_peer(socket.get());
    requests_.users().complaints.say(user ? std::optional(*user) : std::nullopt, "a connection is refused: {}",
                                     peer.error().text());
    if (peer.error().code != EACCES || !user) return close_aside();
    Peer unknown;
    unknown.who.uid = *user;
    auto session = std::make_unique<Session>(next_session_++, std::move(socket), std::move(unknown));
    session->account = requests_.users().account_of(*user);
    session->turned_away_because = peer.error().text();
    session->turned_away_code = peer.error().code;
    return turn_away(std::move(session));
  }
  const uint64_t id = next_session_++;
  auto session = std::make_unique<Session>(id, std::move(socket), std::move(*peer));
  Users& users = requests_.users();
  session->account = users.account_of(session->peer().who.uid);
  session->turned_away_because =
      users.why_no_connection(session->peer(), session->text(), sessions_.size() - turned_away_,
                              closer_.connections_waiting(session->account), now_.monotonic_ms);
  if (session->turned_away_because.empty()) {
    log_debug("{} connected", session->text());
    session->is_strangers = users.is_stranger(session->peer());
    users.connected(session->account, session->is_strangers);
    take_in(std::move(session));
  } else {
    turn_away(std::move(session));
  }
}

void Server::take_in(std::unique_ptr<Session> session) {
  session->await_packet(*loop_);
  const uint64_t id = session->id();
  sessions_.emplace(id, std::move(session));
  requests_.connections = sessions_.size();
}

// The connection waits until it has asked something and got the reason; or until further such connections come, since a silent
// connection must not keep them from their reasons.
void Server::turn_away(std::unique_ptr<Session> session) {
  if (turned_away_ >= 2 * kTurnedAwayMax)
    return close_connection(session->release_socket(), session->account);  // without a word
  ++turned_away_;
  silent_.push_back(session->id());
  take_in(std::move(session));
  while (silent_.size() > kTurnedAwayMax) {
    const uint64_t first = silent_.front();
    silent_.pop_front();
    if (Session* oldest = find(first)) end_session(*oldest, "it does not ask why it is turned away", true);
    remove_if_idle(first);
  }
}

void Server::tell_why(Session& session, const Session::Received& received) {
  std::erase(silent_, session.id());
  apply(session, Requests::turn_away(session, received));
}

// The descriptors of a received packet are marud's from here on. So while too many descriptors of a user are not closed
// yet, no packet with others is received from that user: it stays in the kernel, on the sender's account.
void Server::on_packet(Session& session) {
  Session::Received received;
  if (!session.is_closing()) {
    if (closer_.is_behind(session.account) && session.is_bringing_descriptors())
      return held_up_.push_back(session.id());
    received = session.receive();
    if (!received.end.empty())
      end_session(session, received.end, received.is_hangup);
    else if (!received.is_nothing && session.turned_away_because.empty())
      apply(session, requests_.handle(session, received, now_));
    else if (!received.is_nothing)
      tell_why(session, received);
    for (uint32_t pool = 0; pool < pools_.size(); ++pool)
      if (pools_[pool]->fence_if_lost()) ask_to_leave(pool);
  }
  for (FileDescriptor& descriptor : received.descriptors)
    if (descriptor.is_open()) closer_.close(descriptor.release(), session.account);
  if (!session.is_closing()) session.await_packet(*loop_);
  remove_if_idle(session.id());
}

void Server::apply(Session& session, Outcome outcome) {
  if (outcome.watch_lane != 0)
    if (LaneWatch* watch = lanes_.find(outcome.watch_lane)) loop_->watch_process(watch->id, watch->pidfd.get());
  if (outcome.unwatch_lane != 0) loop_->cancel(EventKind::kProcess, outcome.unwatch_lane);
  if (outcome.superseded_session != 0)
    if (Session* old = find(outcome.superseded_session)) {
      old->lane_watch = 0;  // the lane goes on with the new connection
      end_session(*old, "it attached again on another connection", true);
      remove_if_idle(outcome.superseded_session);
    }
  if (outcome.reply && !session.send(*loop_, std::move(*outcome.reply)))
    end_session(session, "it does not read its replies", false);
  send(outcome.notices);  // after the reply, which may be the session's first news of its lane
  if (outcome.drop.empty()) return;
  if (outcome.drop_after_reply) {
    requests_.users().complaints.say(session.account, "{} is dropped: {}", session.text(), printable(outcome.drop));
    session.close_when_sent();
  } else {
    end_session(session, outcome.drop, false);
  }
}

void Server::send(std::vector<Notice>& notices) {
  for (Notice& notice : notices)
    if (Session* other = find(notice.session)) other->send_unasked(*loop_, std::move(notice.packet));
}

void Server::end_session(Session& session, const std::string& why, bool is_expected) {
  if (session.is_closing()) return;
  requests_.forget(session.id());
  std::string consequence;
  LaneWatch* watch = session.lane_watch != 0 ? lanes_.find(session.lane_watch) : nullptr;
  if (watch && session.lane_is_unknown()) {
    // The process lives on, and would keep a lane that it knows nothing of until it ends.
    consequence = fmt::format("; it never learned of lane {} of pool \"{}\", which is free again", watch->lane,
                              pools_[watch->pool]->name());
    pools_[watch->pool]->lane_ended(watch->lane, true);
    loop_->cancel(EventKind::kProcess, watch->id);
    lanes_.remove(watch->id);
  } else if (watch) {
    watch->session = 0;
    watch->since_ms = now_.unix_ms;
    consequence = fmt::format("; lane {} of pool \"{}\" is kept until the process ends or attaches again", watch->lane,
                              pools_[watch->pool]->name());
  }
  session.lane_watch = 0;
  const uid_t user = session.account;
  if (is_expected && consequence.empty())
    log_debug("{} left: {}", session.text(), why);
  else if (is_expected)
    requests_.users().movements.say(user, "{} left: {}{}", session.text(), why, consequence);
  else
    requests_.users().complaints.say(user, "{} is dropped: {}{}", session.text(), printable(why), consequence);
  session.close(*loop_);
}

// Unread packets may hold descriptors, and the last close of some lasts as long as the client wants it to.
void Server::close_connection(int socket, uid_t account) {
  is_over_and_empty(socket) ? void(::close(socket)) : closer_.close(socket, account, Closer::Kind::kConnection);
}

// Sessions whose users were behind: one or two packets of each may bring as many descriptors as make it behind again,
// and the rest is held up again then.
void Server::serve_held_up() {
  std::erase_if(held_up_, [&](uint64_t id) {
    Session* session = find(id);
    if (!session || session->is_closing()) return true;
    if (closer_.is_behind(session->account)) return false;
    work_.push({session->account, Share::kRequests}, {id});
    return true;
  });
}

void Server::remove_if_idle(uint64_t id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second->is_closing() || !found->second->is_idle()) return;
  close_connection(found->second->release_socket(), found->second->account);
  if (found->second->turned_away_because.empty()) {
    requests_.users().left(found->second->account, found->second->is_strangers);
  } else {
    --turned_away_;
    std::erase(silent_, id);
  }
  sessions_.erase(found);
  requests_.connections = sessions_.size();
}

}  // namespace maru::daemon
