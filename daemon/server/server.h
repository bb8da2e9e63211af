// marud at work: connections come and go, requests are decided one after the other, processes die, pools get their turn. One
// thread. A turn takes the completions, and serves requests and new connections for a bounded time, users in turns
// (fair_queue.h). Then it gives pools short turns, and waits again unless there is more to do. So a request waits for one step
// of other work, of any amount, and no request is served in the middle of a step.
#pragma once

#include "daemon/base/aside.h"
#include "daemon/base/closer.h"
#include "daemon/config/config.h"
#include "daemon/hosting/reread.h"
#include "daemon/http/desk.h"
#include "daemon/server/event_loop.h"
#include "daemon/server/fair_queue.h"
#include "daemon/server/lane_watch.h"
#include "daemon/server/listener.h"
#include "daemon/server/requests.h"
#include "daemon/server/session.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace maru::daemon {

// A look at the files of the socket: why the path does not lead to them, and the listener that takes their place.
struct SocketLook {
  std::string lost;
  std::optional<Result<Listener>> fresh;
};

class Server {
 public:
  Server(Config& config, HostedPools& pools, const StateDirectory& state, std::unique_ptr<EventLoop> loop,
         Listener& listener, FileDescriptor signals, Reread reread, http::Desk* desk = nullptr);

  // Looks for the processes whose lanes were adopted, then serves until SIGTERM or SIGINT.
  Result<void> run();
  // Every pool comes to a clean end.
  void stop();

 private:
  void on_event(const Event& event);
  void on_accept(const Event& event);
  void ask_for_connections();
  void serve();
  struct Work;
  bool is_kept(const Session& session, const Work& work);
  void serve_kept();
  void on_rent(Session& session);
  void on_arrival(FileDescriptor socket);
  void take_in(std::unique_ptr<Session> session);
  void turn_away(std::unique_ptr<Session> session);
  void tell_why(Session& session, const Session::Received& received);
  bool has_memory();
  void on_packet(Session& session);
  void on_process_end(uint64_t watch, int result);
  void take_back_ended(const std::vector<HostedPool*>& those);
  void stop_pools(const std::vector<HostedPool*>& those);
  void on_signal();
  void apply(Session& session, Outcome outcome);
  void send(std::vector<Notice>& notices);
  void end_session(Session& session, const std::string& why, bool is_expected);
  void remove_if_idle(uint64_t session);
  void close_connection(int socket, uid_t account);
  void serve_held_up();
  std::optional<uint64_t> watch_adopted(uint32_t pool);
  void after_events();
  bool step_pools();
  bool turn_pools();
  bool turn_http();
  void look_at_http();
  void tell_status();
  void log_overdue_pins(uint32_t pool);
  void ask_to_leave(uint32_t pool);
  void reload();
  void finish_reload();
  void watch_socket_files();
  void on_socket_files(const Event& event);
  uint64_t next_look_ms() const;
  void look_at_socket_files();
  void finish_look_at_socket_files(SocketLook look);
  void take_new_listener(Listener fresh);
  void take_over(const Config& reread);
  uint64_t wait_ms(bool more_to_do) const;
  Session* find(uint64_t session);

  // The kinds of work of a user. Its new connections have a share of their own, so that they do not hold up its old
  // connections. Its requests for memory that go on have a share, too, since each is a step of marud's choice and must not hold
  // up the short requests.
  enum class Share : uint8_t { kRequests, kArrivals, kRents };
  using ShareOf = std::pair<uid_t, Share>;
  struct Work {
    uint64_t session = 0;         // the session that has a packet
    FileDescriptor arrival = {};  // or, when it is open, a connection that was accepted
    uint64_t ended_lane = 0;      // or, when it is not 0, the watch of a process that ended,
    int result = 0;               // and how that was seen
    bool rents = false;           // or the request of `session` for memory, which has waited, goes on
  };

  Config& config_;
  HostedPools& pools_;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::unique_ptr<EventLoop> loop_;  // after sessions_: it ends first, and with it the operations on their buffers
  Closer closer_;
  Listener& listener_;
  FileDescriptor signals_;
  Reread reread_;
  LaneWatches lanes_;
  PoolLifecycle lifecycle_;
  Requests requests_;
  http::Desk* desk_;         // null: there is no HTTP
  std::string http_opened_;  // the last news of its thread about its sockets; empty: all are open
  FairQueue<ShareOf, Work> work_;
  std::vector<uint64_t> held_up_;  // sessions whose packets bring descriptors that their users may not bring now
  std::vector<Work> kept_;         // requests for quiesced pools, or behind a request for memory that waits
  std::vector<std::optional<uint64_t>> adopted_due_ms_;  // per pool: its adopted lanes are looked for then, monotonic
  // Per pool: its lanes whose processes are of other pid namespaces, for which all processes of the machine are looked
  // at.
  struct Elsewhere {
    uint64_t due_ms = 0;    // not before, monotonic
    uint64_t pause_ms = 0;  // the last pause
  };
  std::vector<Elsewhere> elsewhere_;
  std::set<std::tuple<uint32_t, uint32_t, uint64_t>>
      adopted_said_;  // pool, lane, start time: that it is not watched yet
  uint64_t next_session_ = 1;
  uint32_t next_pool_ = 0;  // the pool with the first turn
  Moment now_ = {};
  metrics::TurnTimes turns_;
  uint64_t accept_due_ms_ = 0;     // after a failure: not before; 0: none failed since the last success
  uint64_t shortage_over_ms_ = 0;  // 0: there is no shortage that the log knows of
  uint64_t users_due_ms_ = 0;
  size_t turned_away_ = 0;       // sessions that only wait to be told so
  std::deque<uint64_t> silent_;  // those among them without a request until now, the oldest first
  uint64_t watchdog_ms_ = 0;
  uint64_t watchdog_due_ms_ = 0;
  size_t accepts_ = 0;            // asked for and not complete
  size_t accepted_ = 0;           // in this turn
  size_t arrivals_ = 0;           // in work_
  std::string unavailable_said_;  // why pools are, for the service manager
  std::string reread_said_;       // the result of the last reload, for the service manager
  Aside<Reading> reading_;        // of the configuration, for SIGHUP
  bool reads_again_ = false;      // another signal came meanwhile
  Aside<SocketLook> socket_look_;
  bool looks_again_ = false;  // a file changed meanwhile
  uint64_t socket_look_due_ms_ = 0, socket_pause_ms_ = 0;
  uint64_t socket_watch_ = 0;  // the event loop's id of the present files
  bool is_short_of_memory_ = false;
  bool stopping_ = false;
};

}  // namespace maru::daemon
