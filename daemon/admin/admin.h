// Administration over the socket: a JSON object in, a JSON object out. Commands about marud are answered here, those about
// one pool by the pool (pool.h names them).
#pragma once

#include "daemon/hosting/hosted_pool.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/server/lane_watch.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

class PoolLifecycle;
class Users;
struct Peer;

struct AdminView {
  const std::vector<std::unique_ptr<HostedPool>>& pools;
  const LaneWatches& lanes;
  size_t connections;
  uint64_t start_unix_ms;
  uint64_t start_monotonic_ms;
  uint64_t now_unix_ms;
  uint64_t now_monotonic_ms;
  PoolLifecycle* lifecycle;
  Users* users = nullptr;                                      // null: refusals are not counted
  const metrics::TurnTimes* turns = nullptr;                   // of the event loop
  const std::vector<metrics::PageCensus>* censuses = nullptr;  // of the pools, in their order; null: taken when needed
  bool can_wait = false;                                       // for them: AdminReply::needs_census
  uint64_t* removal = nullptr;  // not null: the ticket of Pool::admin(); while it is not 0 there is no answer yet
  const std::string* state_dir = nullptr;  // null: not said
  std::string_view http_trouble = {};      // why HTTP is not answered everywhere; empty: it is, or is not asked for
  std::string_view socket_trouble = {};    // why clients cannot connect; empty: they can
  uint64_t sockets_lost = 0, http_sockets_lost = 0;  // files of sockets that were taken away
  // Not null: the asking user is no administrator of marud, and sees and changes only the pools that name that user.
  const Peer* only_for = nullptr;
  bool is_for_owner = false;  // root or marud's own user asks, which may have programs run as that user
};

const char* condition_text(HostedPool::Condition condition);

// Whether an access list lets a user administrate marud as a whole: the admin group of the configuration, root, marud's
// own user.
bool may_administrate(const Config& config, const Peer& peer);
bool may_administrate(const PoolSpec& spec, const Peer& peer);

struct AdminReply {
  int code = 0;      // errno; EBADMSG: the text is no request at all
  std::string text;  // JSON, or the reason of the refusal
  // There is no answer yet. Either PoolLifecycle gives it under this number; or it takes a look at every page, so the same
  // request is to be asked again with censuses.
  uint64_t ticket = 0;
  bool needs_census = false;
};

// A command's JSON answer as it is sent: a refusal has an errno.
AdminReply admin_reply(const nlohmann::json& reply);

// `who`: for the log, when the command changes something.
AdminReply run_admin(const AdminView& view, std::string_view request, const std::string& who);

}  // namespace maru::daemon
