#include "daemon/server/server.h"

#include "daemon/base/log.h"
#include "daemon/system/notify.h"

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

// While clients are attached their touch rings are drained this often. A ring of 4,096 touches lasts longer at any rate that a
// client keeps up between two of its own tokens.
constexpr uint64_t kTurnMs = 50;
constexpr uint64_t kIdleMs = 1000;  // the heartbeat
// Bytes of a key in the log.
constexpr size_t kLoggedKeyMax = 128;
constexpr uint64_t kUsersPauseMs = 1000;
// Requests and new connections are served for so long, then the pools have their turn and other users may have come.
constexpr std::chrono::microseconds kServeTime(100);

Moment moment() {
  timespec real = {}, monotonic = {};
  ::clock_gettime(CLOCK_REALTIME, &real);
  ::clock_gettime(CLOCK_MONOTONIC, &monotonic);
  return {uint64_t(real.tv_sec) * 1000 + uint64_t(real.tv_nsec) / 1'000'000,
          uint64_t(monotonic.tv_sec) * 1000 + uint64_t(monotonic.tv_nsec) / 1'000'000};
}

// The processor time of this thread.
uint64_t own_cpu_ns() {
  timespec had = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
  return uint64_t(had.tv_sec) * 1'000'000'000 + uint64_t(had.tv_nsec);
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
      lifecycle_(config, pools, lanes_, state, reread_,
                 [this](bool others) {
                   if (auto opened = listener_.let_in(others); !opened)
                     log_error("the socket stays as it is: {}", opened.error().text());
                 }),
      requests_(config, pools, lanes_, lifecycle_),
      desk_(desk),
      adopted_due_ms_(pools.size(), 0) {
  requests_.turns = &turns_;
}

Result<void> Server::run() {
  now_ = moment();
  requests_.set_start(now_);
  lifecycle_.let_in();  // pools that were added at run time have lists of their own
  watchdog_ms_ = watchdog_interval_ms();
  after_events();
  loop_->watch_signals(signals_.get());
  watch_socket_files();
  if (desk_) loop_->watch_http(desk_->questions_fd());
  notify("READY=1");
  if (desk_) look_at_http();
  bool more_to_do = false;
  while (!stopping_) {
    ask_for_connections();
    const auto events = loop_->wait(wait_ms(more_to_do));
    if (!events) return tl::unexpected(events.error());
    now_ = moment();
    requests_.users().complaints.renew(now_.monotonic_ms);
    requests_.users().movements.renew(now_.monotonic_ms);
    const auto begun = std::chrono::steady_clock::now();
    const uint64_t cpu_begun_ns = own_cpu_ns();
    for (const Event& event : **events) on_event(event);
    serve_kept();
    serve();
    after_events();
    more_to_do = turn_pools();
    more_to_do |= !work_.empty();
    finish_reload();
    look_at_socket_files();
    if (desk_) more_to_do |= turn_http();
    const auto lasted = std::chrono::steady_clock::now() - begun;
    turns_.lasted.add(uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(lasted).count()));
    const uint64_t cpu_ns = own_cpu_ns() - cpu_begun_ns;
    turns_.cpu.add(cpu_ns);
    turns_.longest_cpu_ns = std::max(turns_.longest_cpu_ns, cpu_ns);
  }
  return {};
}

uint64_t Server::wait_ms(bool more_to_do) const {
  if (more_to_do) return 0;
  uint64_t timeout_ms = lanes_.size() > 0 ? kTurnMs : kIdleMs;
  if (works_aside > 0 || lifecycle_.is_opening() || !held_up_.empty()) timeout_ms = std::min(timeout_ms, kAsideLookMs);
  if (const auto waiting_ms = requests_.waiting_ms(now_)) timeout_ms = std::min(timeout_ms, *waiting_ms);
  for (const auto& hosted : pools_)
    if (const Pool* pool = hosted->serving())
      if (const auto turn_ms = pool->feed_turn_ms()) timeout_ms = std::min(timeout_ms, *turn_ms);
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
    case EventKind::kPacket:
      if (Session* session = find(event.id)) {
        const bool is_over = session->finish_await(event.result);
        // An end is nothing to serve, and makes room for a connection that may be waiting already.
        if (is_over || session->is_closing()) return on_packet(*session);
        session->lane_is_news = false;
        work_.push({session->account, Share::kRequests}, {event.id});
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
                   {.ended_lane = event.id, .result = event.result});
      return;
    case EventKind::kSignal: return on_signal();
    case EventKind::kHttp:
      desk_->wake();  // it looks at the questions in its turn
      return loop_->watch_http(desk_->questions_fd());
    case EventKind::kFiles: return on_socket_files(event);
    case EventKind::kNone: return;
  }
}

// -- work -------------------------------------------------------------------------------------------------------------

// The user who has been served least is next, so that no user waits for all requests of another.
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
        is_kept(*session, work) ? kept_.push_back(std::move(work))
        : work.rents            ? on_rent(*session)
                                : on_packet(*session);
      const auto before = std::exchange(now, Clock::now());
      return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count());
    });
}

// A client's requests, one of each connection, while its pool is checked at rest, or behind one for memory that waits. (An end
// is never kept.)
bool Server::is_kept(const Session& session, const Work& work) {
  if (!work.rents && !session.is_closing() && requests_.has_waiting_rent(session.id())) return true;
  const LaneWatch* watch = session.lane_watch == 0 ? nullptr : lanes_.find(session.lane_watch);
  const Pool* pool = watch ? pools_[watch->pool]->serving() : nullptr;
  return pool && pool->is_quiesced() && !session.is_closing();
}

void Server::serve_kept() {
  std::erase_if(kept_, [&](Work& work) {
    Session* session = find(work.session);
    if (session && is_kept(*session, work)) return false;
    if (session) work_.push({session->account, work.rents ? Share::kRents : Share::kRequests}, std::move(work));
    return true;
  });
}

void Server::on_rent(Session& session) {
  if (!session.is_closing()) apply(session, requests_.rent_again(session, now_));
  remove_if_idle(session.id());
}

// The pool was fenced. Its clients have it mapped and would go on reading and storing there, so they are told. It is not closed
// until they have left or ended. Clients without a connection hear of it when they attach again.
void Server::ask_to_leave(uint32_t pool) {
  std::vector<Notice> notices;
  for (const auto& [id, watch] : lanes_.all())
    if (watch.pool == pool && watch.session != 0)
      notices.push_back(lifecycle_.leave_notice(watch.session, *pools_[pool], now_));
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

// Lanes whose processes ended without marud's notice, at the end of marud: a pool that no client has is left in order.
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
  serve_held_up();
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
  // Every connection in the queue would have been accepted or not by now.
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

// The pools have their turns, up to the first pool that has more to do. Its turn was as long as a turn may be, so others are
// served before the next pool's. Returns true when more work can be done right away.
bool Server::step_pools() {
  bool more_to_do = false;
  for (size_t i = 0; i < pools_.size() && !more_to_do; ++i) {
    const uint32_t pool = next_pool_ % uint32_t(pools_.size());
    next_pool_ = pool + 1;
    if (Pool* serving = pools_[pool]->serving()) {
      more_to_do = serving->turn(now_.unix_ms);
      log_overdue_pins(pool);
    }
    if (pools_[pool]->fence_if_lost()) ask_to_leave(pool);
  }
  return more_to_do;
}

bool Server::turn_pools() {
  bool more_to_do = step_pools();
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
  more_to_do |= lifecycle_.step(now_);
  notices = lifecycle_.take_notices();
  send(notices);
  more_to_do |= requests_.step_survey();
  for (const uint64_t id : requests_.ready_rents())
    if (const Session* session = find(id))
      work_.push({session->account, Share::kRents}, {.session = id, .rents = true});
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
  requests_.http_sockets_lost = desk_->sockets_lost();
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

// The present pools first: a pool that is being opened may wait for a disk.
void Server::stop() {
  notify("STOPPING=1");
  std::vector<HostedPool*> there;
  for (const auto& hosted : pools_) there.push_back(hosted.get());
  stop_pools(there);
  stop_pools(lifecycle_.end_openings());
  // To close a connection with unread packets may last, but not when the kernel does it after the process.
  for (const auto& [id, session] : sessions_) static_cast<void>(session->release_socket());
  while (!work_.empty())
    work_.serve_next([](Work&& work) {
      static_cast<void>(work.arrival.release());
      return uint64_t(0);
    });
}

void Server::stop_pools(const std::vector<HostedPool*>& those) {
  take_back_ended(those);
  for (HostedPool* hosted : those) hosted->stop(lifecycle_.is_held(*hosted));
}

}  // namespace maru::daemon
