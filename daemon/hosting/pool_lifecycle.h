// The life of pools while marud runs: added from a file or from the configuration, drained, removed. A pool that is
// gone keeps its place among the hosted pools, because lanes name pools by their index; its name may be used again.
//
// Removing. Every attached client gets a message and detaches when it has released its last view. When no lane is left
// the device is closed. At the deadline the remaining clients are named, and the pool goes on as before; with `fence`
// they get SIGKILL instead. If marud dies here: the pool was draining, and the next marud goes on with that; or it was
// not, and it serves.
//
// Adding. One thread reads the description, another opens the pools (pool_openings.h), and marud serves others meanwhile; the
// answer comes when they serve. The text of a file is written down first, so the next marud starts its pools, too, even if this
// marud dies.
#pragma once

#include "daemon/admin/admin.h"
#include "daemon/base/aside.h"
#include "daemon/config/config.h"
#include "daemon/hosting/added_pools.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/pool_openings.h"
#include "daemon/hosting/reread.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/server/lane_watch.h"
#include "daemon/server/session.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace maru::daemon {

struct Moment {
  uint64_t unix_ms;       // for replies and shared words
  uint64_t monotonic_ms;  // for deadlines
};

// A message that a session is sent unasked.
struct Notice {
  uint64_t session;
  OutgoingPacket packet;
};

// The answer to a command, given later.
struct LateAnswer {
  uint64_t ticket;
  AdminReply reply;
};

class PoolLifecycle {
 public:
  using LetIn = std::function<void(bool others)>;  // whether users other than marud's may connect

  PoolLifecycle(const Config& config, HostedPools& pools, const LaneWatches& lanes, const StateDirectory& state,
                Reread reread, LetIn let_in);

  // "device.list"; "device.add" {name, or toml: text}; "device.drain", "device.cancel" {name};
  // "device.remove" {name, deadline_ms, fence, discard}. `who`: for the log. `of_owner`: root or marud's own user asks.
  nlohmann::json run(const std::string& command, const nlohmann::json& request, const std::string& who, Moment now,
                     bool of_owner = false);
  // The messages that the last command has for clients.
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
  // Not 0: the last command is answered later, under this number.
  uint64_t take_ticket() { return std::exchange(ticket_, 0); }
  std::vector<LateAnswer> take_answers() { return std::exchange(answers_, {}); }
  bool is_opening() const { return !openings_.is_idle(); }
  Notice leave_notice(uint64_t session, HostedPool& hosted, Moment now) const;

  // No client handed the memory of this waiting pool back in time: a thread makes other memory, and the new pool on it takes
  // the place of this pool.
  void begin_anew(const HostedPool& waiting);
  bool begins_anew(const HostedPool& waiting) const { return openings_.find(waiting.name()) != nullptr; }
  // Its own memory was handed back: a thread looks through the pool on it, which then takes the place of this one. `who`: for
  // the log.
  void begin_adoption(const HostedPool& waiting, std::unique_ptr<Device> memory, const std::string& who);
  bool is_adopting(const HostedPool& waiting) const { return openings_.is_adopting(waiting.name()); }

  // After the configuration was read again. New pools start, or are unavailable. Unavailable pools are tried again. Pools that
  // are not in it any more go on. Returns a line for each of these, and for each pool that cannot have a place.
  std::vector<std::string> rescan(const Config& fresh);
  // Once a turn: checks whether clients that were asked to leave have left, and whether pools are open. Takes a part of the
  // look for blocks of pools that shall be removed. Returns true when more work can be done right away.
  bool step(Moment now);
  // Whether a process has a lane of this pool, watched or not.
  bool is_held(const HostedPool& hosted) const { return !clients_of(hosted).empty(); }
  // At the end of marud: ends a pool that is being opened, or keeps it if it is open. Waits a few seconds at most.
  // Returns the new pools, also pools in the place of others.
  std::vector<HostedPool*> end_openings();
  // Says again which users may connect to the socket, after pools came or access lists changed.
  void let_in();

 private:
  // A pool in memory that shall be removed, if it holds no block: every page is looked at, some of them each turn.
  struct PoolRemoval {
    uint64_t ticket;
    HostedPool* hosted;  // stays where it is: a pool that is gone keeps its place
    uint64_t deadline_ms;
    bool fences;
    std::string who;
    metrics::PageCensus census = {};
  };

  // "device.add" while the description is read: the specs, or why there are none.
  using Wanted = Result<std::vector<PoolSpec>>;
  struct Addition {
    uint64_t ticket;
    std::string who;
    std::string toml;  // empty: a pool of the configuration
    Aside<Wanted> wanted;
  };

  // "device.drain" or "device.cancel" while it is written down.
  struct Change {
    uint64_t ticket;  // 0: no request waits for it
    HostedPool* hosted;
    bool drains;
    std::string who;
    Aside<Result<void>> saved;
  };

  HostedPool* find(const std::string& name) const;
  size_t index_of(const HostedPool& hosted) const;
  std::string why_not(const PoolSpec& spec) const;
  void step_additions();
  void step_changes(Moment now);
  void take_opened();
  void try_again(const PoolSpec& spec);
  void step_unavailable(Moment now);
  void take_place(std::unique_ptr<HostedPool> hosted);
  bool step_removals(Moment now);
  void step_leaving(Moment now);
  nlohmann::json ask_to_leave(const PoolRemoval& removal, Moment now);
  nlohmann::json list(Moment now) const;
  nlohmann::json change(HostedPool& hosted, bool drains, const std::string& who);
  bool is_changing(const HostedPool& hosted) const;
  void save_draining(Change& change);
  nlohmann::json add(const nlohmann::json& request, const std::string& who, bool of_owner);
  nlohmann::json open_added(uint64_t ticket, const std::string& who, std::string toml, std::vector<PoolSpec> specs);
  nlohmann::json forget(const std::string& name, const std::string& who);
  nlohmann::json remove(HostedPool& hosted, const nlohmann::json& request, const std::string& who, Moment now);
  // A process with a lane of a pool.
  struct Client {
    ClientIdentity who;
    const LaneWatch* watch;     // null: a process from before a restart that cannot be watched yet
    bool is_elsewhere = false;  // its pid is of another pid namespace
    bool has_attached() const { return watch && watch->has_attached; }
    std::string text() const;
  };
  std::vector<Client> clients_of(const HostedPool& hosted) const;
  void end_clients(HostedPool& hosted);

  const Config& config_;
  HostedPools& pools_;
  const LaneWatches& lanes_;
  const StateDirectory state_;
  const Reread reread_;
  const LetIn let_in_;
  PoolOpenings openings_;
  std::vector<Addition> additions_;
  std::vector<Change> changes_;
  uint64_t ticket_ = 0, last_ticket_ = 0;
  std::vector<LateAnswer> answers_;
  std::vector<PoolRemoval> removals_;
  std::set<std::string> removed_;
  std::string refused_said_;  // why memory that was handed back did not become a pool
  // When an unavailable pool is tried again, and how long after that.
  struct Retry {
    uint64_t due_ms = 0;
    uint64_t pause_ms = 0;
  };
  std::map<std::string, Retry> retries_;
  std::vector<Notice> notices_;
};

}  // namespace maru::daemon
