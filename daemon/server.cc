#include "daemon/server.h"

#include "daemon/log.h"
#include "daemon/memory_reserve.h"
#include "daemon/notify.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

// While clients are attached their touch rings are drained this often; a ring of 4,096 touches lasts longer at any rate
// that a client keeps up between two of its own tokens.
constexpr uint64_t kTurnMs = 50;
constexpr uint64_t kIdleMs = 1000;  // the heartbeat
constexpr uint64_t kAcceptPauseMs = 200;
// A shortage of descriptors is over when none was missing for so long: under it now and then one can be accepted.
constexpr uint64_t kShortageMs = 5000;
// Bytes of a key in the log.
constexpr size_t kLoggedKeyMax = 128;
// Connections that may not stay, and are kept until they have asked something and been told why they go.
constexpr size_t kTurnedAwayMax = 16;
constexpr uint64_t kUsersPauseMs = 1000;
// Requests and new connections are served for so long, then the pools have their turn and others may have come.
constexpr std::chrono::microseconds kServeTime(300);
// Connections accepted in one turn: one while there are few, twice as many as in the turn before while there are more.
constexpr size_t kAcceptsMax = 64;
// Connections of one user that are accepted and not looked at yet, as many as there can be connections; what comes above that
// is closed without a word. While more than twice as many wait of all users, those to come wait in the kernel's queue.
constexpr size_t kArrivalsMax = limits::kConnectionsMax;
constexpr uid_t kNobody = uid_t(-1);  // as (uid_t)-1 for the kernel: no user has it

Moment moment() {
  timespec real = {}, monotonic = {};
  ::clock_gettime(CLOCK_REALTIME, &real);
  ::clock_gettime(CLOCK_MONOTONIC, &monotonic);
  return {uint64_t(real.tv_sec) * 1000 + uint64_t(real.tv_nsec) / 1'000'000,
          uint64_t(monotonic.tv_sec) * 1000 + uint64_t(monotonic.tv_nsec) / 1'000'000};
}

// Nothing lies unread in it and nothing can come any more: its last close cannot last.
bool is_over_and_empty(int socket) {
  // A packet brings who sent it, so that one without bytes or descriptors is told from the end.
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

Server::Server(Config& config, HostedPools& pools, const StateDirectory& state, std::unique_ptr<EventLoop> loop,
               Listener& listener, FileDescriptor signals, Reread reread, http::Desk* desk)
    : config_(config),
      pools_(pools),
      loop_(std::move(loop)),
      listener_(listener),
      signals_(std::move(signals)),
      reread_(std::move(reread)),
      devices_(config, pools, lanes_, state, reread_,
               [this](bool others) {
                 if (auto opened = listener_.let_in(others); !opened)
                   log_error("the socket stays as it is: {}", opened.error().text());
               }),
      requests_(config, pools, lanes_, devices_),
      desk_(desk),
      adopted_due_ms_(pools.size(), 0) {
  requests_.turns = &turns_;
}

Result<void> Server::run() {
  now_ = moment();
  requests_.set_start(now_);
  devices_.let_in();  // pools that were added at run time have lists of their own
  watchdog_ms_ = watchdog_interval_ms();
  after_events();
  loop_->watch_signals(signals_.get());
  if (desk_) loop_->watch_http(desk_->questions_fd());
  notify("READY=1");
  if (desk_) look_at_http();
  bool more_to_do = false;
  while (!stopping_) {
    if (now_.monotonic_ms >= accept_due_ms_ && arrivals_ < 2 * kArrivalsMax) ask_for_connections();
    const auto events = loop_->wait(wait_ms(more_to_do));
    if (!events) return tl::unexpected(events.error());
    now_ = moment();
    requests_.users().complaints.renew(now_.monotonic_ms);
    requests_.users().movements.renew(now_.monotonic_ms);
    const auto begun = std::chrono::steady_clock::now();
    for (const Event& event : **events) on_event(event);
    serve_kept();
    serve();
    after_events();
    more_to_do = turn_pools();
    more_to_do |= !work_.empty();
    finish_reload();
    if (desk_) more_to_do |= turn_http();
    const auto lasted = std::chrono::steady_clock::now() - begun;
    turns_.add(uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(lasted).count()));
  }
  return {};
}

uint64_t Server::wait_ms(bool more_to_do) const {
  if (more_to_do) return 0;
  uint64_t timeout_ms = lanes_.size() > 0 ? kTurnMs : kIdleMs;
  if (works_aside > 0 || devices_.is_opening() || !held_up_.empty()) timeout_ms = std::min(timeout_ms, kAsideLookMs);
  if (const auto waiting_ms = requests_.waiting_ms(now_)) timeout_ms = std::min(timeout_ms, *waiting_ms);
  if (watchdog_ms_ > 0) timeout_ms = std::min(timeout_ms, watchdog_ms_);
  const auto until_ms = [&](uint64_t due_ms) { return due_ms > now_.monotonic_ms ? due_ms - now_.monotonic_ms : 0; };
  if (accepts_ == 0) timeout_ms = std::min(timeout_ms, until_ms(accept_due_ms_));
  return timeout_ms;
}

Session* Server::find(uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Server::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::kAccept: return on_accept(event);
    case EventKind::kReceive:
      if (Session* session = find(event.id)) {
        if (event.result > 0) session->lane_is_news = false;
        // An end is nothing to serve, and makes room for a connection that may be waiting already.
        if (event.result <= 0) return on_receive(*session, event.result);
        work_.push({session->account, Share::kRequests}, {event.id, event.result});
      }
      return;
    case EventKind::kSend:
      if (Session* session = find(event.id)) {
        if (!session->finish_send(*loop_, event.result))
          end_session(*session, event.result < 0 ? std::strerror(-event.result) : "it was told to go", true);
        remove_if_idle(event.id);
      }
      return;
    case EventKind::kProcess:
      if (const LaneWatch* watch = lanes_.find(event.id))
        work_.push({requests_.users().account_of(watch->who.uid), Share::kRequests},
                   {.result = event.result, .ended_lane = event.id});
      return;
    case EventKind::kSignal: return on_signal();
    case EventKind::kHttp:
      desk_->wake();  // it looks at the questions in its turn
      return loop_->watch_http(desk_->questions_fd());
    case EventKind::kNone: return;
  }
}

// -- connections ------------------------------------------------------------------------------------------------------

void Server::ask_for_connections() {
  for (const size_t wanted = std::clamp(2 * accepted_, size_t(1), kAcceptsMax); accepts_ < wanted; ++accepts_)
    loop_->accept(listener_.fd());
  accepted_ = 0;
}

void Server::on_accept(const Event& event) {
  --accepts_;
  if (event.result < 0) {
    if (event.result == -ECANCELED) return;
    // Out of descriptors or memory: those who wait in the queue are accepted when others have gone. Trying at once would
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

// Whoever has been served least is next, so that nobody waits for all that another one asks.
void Server::serve() {
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  auto now = begun;
  while (!work_.empty() && now - begun < kServeTime)
    work_.serve_next([&](Work&& work) {
      if (work.arrival.is_open())
        on_arrival(std::move(work.arrival));
      else if (work.ended_lane != 0)
        on_process_end(work.ended_lane, work.result);
      else if (Session* session = find(work.session))
        is_kept(*session) ? kept_.push_back(std::move(work)) : on_receive(*session, work.result);
      const auto before = std::exchange(now, Clock::now());
      return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count());
    });
}

// A client's requests, one of each connection, while its pool is checked at rest. (An end is never kept.)
bool Server::is_kept(const Session& session) {
  const LaneWatch* watch = session.lane_watch == 0 ? nullptr : lanes_.find(session.lane_watch);
  const Pool* pool = watch ? pools_[watch->pool]->serving() : nullptr;
  return pool && pool->is_quiesced() && !session.is_closing();
}

void Server::serve_kept() {
  std::erase_if(kept_, [&](Work& work) {
    Session* session = find(work.session);
    if (session && is_kept(*session)) return false;
    if (session) work_.push({session->account, Share::kRequests}, std::move(work));
    return true;
  });
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
      users.why_no_connection(session->peer(), session->text(), sessions_.size() - turned_away_, now_.monotonic_ms);
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
  receive_from(*session);
  const uint64_t id = session->id();
  sessions_.emplace(id, std::move(session));
  requests_.connections = sessions_.size();
}

// It waits until it has asked something and been told why it goes; or until others come that are to be told, for who asks
// nothing must not keep them from it.
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

void Server::on_receive(Session& session, int result) {
  Session::Received received = session.finish_receive(result);
  if (!session.is_closing()) {
    if (!received.end.empty())
      end_session(session, received.end, received.is_hangup);
    else if (!received.descriptors.empty() && closer_.is_behind(session.account))  // it was asked for before that
      end_session(session, "a descriptor, while too many that this user has brought are not closed yet", false);
    else if (session.turned_away_because.empty())
      apply(session, requests_.handle(session, received, now_));
    else
      tell_why(session, received);
    for (uint32_t pool = 0; pool < pools_.size(); ++pool)
      if (pools_[pool]->fence_if_lost()) ask_to_leave(pool);
  }
  for (FileDescriptor& descriptor : received.descriptors)
    if (descriptor.is_open()) closer_.close(descriptor.release(), session.account);
  if (!session.is_closing()) receive_from(session);
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
  send(outcome.notices);  // after the reply, which may be what tells the session of its lane
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

// What lies unread in it may hold descriptors, and the last close of some lasts as long as the client wants it to.
void Server::close_connection(int socket, uid_t account) {
  is_over_and_empty(socket) ? void(::close(socket)) : closer_.close(socket, account);
}

// Of a user who has brought too many descriptors that are not closed yet, nothing is received until they are fewer: what is
// sent stays in the kernel, where it counts as the sender's.
void Server::receive_from(Session& session) {
  if (closer_.is_behind(session.account))
    held_up_.push_back(session.id());
  else
    session.begin_receive(*loop_);
}

void Server::receive_from_held_up() {
  std::set<uid_t> begun;
  std::erase_if(held_up_, [&](uint64_t id) {
    Session* session = find(id);
    if (!session || session->is_closing()) return true;
    // One a turn: each may bring as many as make the user be behind again.
    if (closer_.is_behind(session->account) || !begun.insert(session->account).second) return false;
    session->begin_receive(*loop_);
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

// The pool was fenced. Its clients have it mapped and would go on reading and storing there, so they are told; until they have
// left or ended it is not closed. Those that are not connected hear of it when they attach again.
void Server::ask_to_leave(uint32_t pool) {
  std::vector<Notice> notices;
  for (const auto& [id, watch] : lanes_.all())
    if (watch.pool == pool && watch.session != 0)
      notices.push_back(devices_.leave_notice(watch.session, *pools_[pool], now_));
  send(notices);
}

// -- processes --------------------------------------------------------------------------------------------------------

void Server::on_process_end(uint64_t id, int result) {
  LaneWatch* watch = lanes_.find(id);
  if (!watch || result == -ECANCELED) return;
  if (result < 0) {
    loop_->watch_process(id, watch->pidfd.get());
    return;
  }
  HostedPool& hosted = *pools_[watch->pool];
  requests_.users().movements.say(watch->who.uid, "process {} ({}) ended: lane {} of pool \"{}\" is reclaimed",
                                  watch->who.pid, watch->command, watch->lane, hosted.name());
  const uint64_t session_id = watch->session;
  const uint32_t lane = watch->lane;
  lanes_.remove(id);
  hosted.lane_ended(lane, false);
  if (Session* session = find(session_id)) {
    session->lane_watch = 0;
    end_session(*session, "its process ended", true);
    remove_if_idle(session_id);
  }
}

// Those whose end has not come up yet, at the end of marud: a pool that nobody has is left in order.
void Server::take_back_ended(const std::vector<HostedPool*>& those) {
  const auto is_one = [&](uint32_t pool) {
    return std::find(those.begin(), those.end(), pools_[pool].get()) != those.end();
  };
  for (uint32_t pool = 0; pool < pools_.size(); ++pool)
    if (is_one(pool) && pool < adopted_due_ms_.size() && adopted_due_ms_[pool] && pools_[pool]->known())
      watch_adopted(pool);
  std::vector<uint64_t> ended;
  for (const auto& [id, watch] : lanes_.all()) {
    if (!is_one(watch.pool)) continue;
    pollfd process = {watch.pidfd.get(), POLLIN, 0};
    if (::poll(&process, 1, 0) == 1) ended.push_back(id);
  }
  for (const uint64_t id : ended) on_process_end(id, POLLIN);
}

// -- turns ------------------------------------------------------------------------------------------------------------

void Server::after_events() {
  adopted_due_ms_.resize(pools_.size(), 0);  // pools that came at run time
  receive_from_held_up();
  for (const Requests::Settled& settled : requests_.settle_waiting(now_)) {
    Session* session = find(settled.session);
    if (!session || session->is_closing()) continue;
    apply(*session, requests_.attach_again(*session, settled, now_));
    remove_if_idle(settled.session);
  }
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    if (!adopted_due_ms_[pool] || !pools_[pool]->known() || now_.monotonic_ms < *adopted_due_ms_[pool]) continue;
    const auto again_ms = watch_adopted(pool);
    adopted_due_ms_[pool].reset();
    if (again_ms) adopted_due_ms_[pool] = now_.monotonic_ms + *again_ms;
  }
  // Whoever waits in the queue would have been accepted or not by now.
  if (shortage_over_ms_ != 0 && now_.monotonic_ms >= shortage_over_ms_) {
    log_info("connections are accepted again");
    shortage_over_ms_ = 0;
  }
  if (watchdog_ms_ > 0 && now_.monotonic_ms >= watchdog_due_ms_) {
    notify("WATCHDOG=1");
    watchdog_due_ms_ = now_.monotonic_ms + watchdog_ms_;
  }
}

void Server::log_overdue_pins(uint32_t index) {
  Pool& pool = *pools_[index]->serving();
  const OverduePins overdue = pool.take_overdue_pins();
  for (const OverduePin& pin : overdue.pins) {
    const LaneWatch* watch = lanes_.find_lane(index, pin.lane);
    const bool is_long = pin.key.size() > kLoggedKeyMax;
    requests_.users().complaints.say(
        watch ? std::optional(watch->who.uid) : std::nullopt,
        "process {} ({}) has pinned block {} of pool \"{}\" for {:.1f} s; it stays until it is released, or the "
        "process ends{}",
        pin.pid, watch ? watch->command : "not seen since marud was started",
        pin.key.empty() ? fmt::format("in page {}", pin.page)
                        : pin.key.substr(0, kLoggedKeyMax) + (is_long ? "..." : ""),
        pools_[index]->name(), double(pin.age_ms) / 1000,
        watch ? fmt::format(" (marudctl client fence --pid {})", pin.pid) : "");
  }
  if (overdue.unnamed > 0)
    requests_.users().complaints.say(std::nullopt, "and {} further pins of pool \"{}\" are overdue", overdue.unnamed,
                                     pools_[index]->name());
}

bool Server::turn_pools() {
  bool more_to_do = false;
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    if (Pool* serving = pools_[pool]->serving()) {
      more_to_do |= serving->turn(now_.unix_ms);
      log_overdue_pins(pool);
    }
    if (pools_[pool]->fence_if_lost()) ask_to_leave(pool);
  }
  if (now_.monotonic_ms >= users_due_ms_) {
    users_due_ms_ = now_.monotonic_ms + kUsersPauseMs;
    requests_.users().watch();
    std::string unavailable;
    for (const auto& hosted : pools_)
      if (hosted->condition() == HostedPool::Condition::kUnavailable)
        unavailable += (unavailable.empty() ? "" : "; ") + hosted->reason();
    if (std::exchange(unavailable_said_, unavailable) != unavailable) tell_status();
  }
  std::vector<Notice> notices = requests_.drained_notices();
  send(notices);
  more_to_do |= devices_.step(now_);
  notices = devices_.take_notices();
  send(notices);
  more_to_do |= requests_.step_survey();
  for (Notice& late : requests_.late_answers(now_)) {
    Session* session = find(late.session);
    if (!session || session->is_closing()) continue;
    Outcome outcome;
    outcome.reply = std::move(late.packet);
    apply(*session, std::move(outcome));
    remove_if_idle(late.session);
  }
  return more_to_do;
}

bool Server::turn_http() {
  const bool more_to_do = desk_->turn(requests_.view(now_));
  if (http_opened_ != desk_->trouble()) look_at_http();
  return more_to_do;
}

void Server::on_signal() {
  signalfd_siginfo info = {};
  while (::read(signals_.get(), &info, sizeof(info)) == ssize_t(sizeof(info))) {
    if (info.ssi_signo == SIGHUP) {
      reload();
    } else {
      log_info("{}: marud stops", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
      stopping_ = true;
    }
  }
  loop_->watch_signals(signals_.get());
}

// Those that are there first: what is being opened may wait for a disk.
void Server::stop() {
  notify("STOPPING=1");
  std::vector<HostedPool*> there;
  for (const auto& hosted : pools_) there.push_back(hosted.get());
  stop_pools(there);
  stop_pools(devices_.end_openings());
  // What lies unread in connections may last when it is closed, but not when the kernel closes it after the process.
  for (const auto& [id, session] : sessions_) static_cast<void>(session->release_socket());
  while (!work_.empty())
    work_.serve_next([](Work&& work) {
      static_cast<void>(work.arrival.release());
      return uint64_t(0);
    });
}

void Server::stop_pools(const std::vector<HostedPool*>& those) {
  take_back_ended(those);
  for (HostedPool* hosted : those) hosted->stop(devices_.is_held(*hosted));
}

}  // namespace maru::daemon
