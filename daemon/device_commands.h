// Pools that come and go while marud runs: added from a file or from the configuration, drained, removed. A pool that is gone
// keeps its place among the hosted pools, because lanes name pools by their index; its name may be used again.
//
// Removing. Every client that is attached gets a message and detaches when it has released its last view. When no lane is left
// the device is closed. At the deadline those that stay are named, and the pool goes on as before; with `fence` they get
// SIGKILL instead. If marud dies here: it was draining, and the next marud goes on with that; or it was not, and it serves.
#pragma once

#include "daemon/config.h"
#include "daemon/hosted_pool.h"
#include "daemon/lane_watch.h"
#include "daemon/session.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace maru::daemon {

using HostedPools = std::vector<std::unique_ptr<HostedPool>>;

struct Moment {
  uint64_t unix_ms;       // for what others see
  uint64_t monotonic_ms;  // for deadlines
};

// What a session is sent unasked.
struct Notice {
  uint64_t session;
  Packet packet;
};

class DeviceCommands {
 public:
  using Reread = std::function<std::optional<Config>()>;
  using LetIn = std::function<void(bool others)>;  // whether users other than marud's may connect

  DeviceCommands(const Config& config, HostedPools& pools, const LaneWatches& lanes, const StateDirectory& state,
                 Reread reread, LetIn let_in);

  // "device.list"; "device.add" {name, or toml: text}; "device.drain", "device.cancel" {name};
  // "device.remove" {name, deadline_ms, fence, discard}. `who`: for the log.
  nlohmann::json run(const std::string& command, const nlohmann::json& request, const std::string& who, Moment now);
  // What the last command wants to be sent.
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
  Notice leave_notice(uint64_t session, HostedPool& hosted, Moment now) const;

  // After the configuration was read again: new pools start; those that are not in it any more go on.
  void rescan(const Config& fresh, Moment now);
  // Once a turn: whether those that were asked to leave have left.
  void step(Moment now);

 private:
  HostedPool* find(const std::string& name) const;
  size_t index_of(const HostedPool& hosted) const;
  std::string why_not(const PoolSpec& spec) const;
  Result<void> start(const PoolSpec& spec, Moment now);
  nlohmann::json list(Moment now) const;
  nlohmann::json add(const nlohmann::json& request, const std::string& who, Moment now);
  nlohmann::json remove(HostedPool& hosted, const nlohmann::json& request, const std::string& who, Moment now);
  std::vector<const LaneWatch*> clients_of(const HostedPool& hosted) const;
  void end_clients(HostedPool& hosted);

  const Config& config_;
  HostedPools& pools_;
  const LaneWatches& lanes_;
  const StateDirectory state_;
  const Reread reread_;
  const LetIn let_in_;
  FileDescriptor state_lock_;  // when no memory pool was configured at the start
  std::set<std::string> removed_;
  std::vector<Notice> notices_;
};

}  // namespace maru::daemon
