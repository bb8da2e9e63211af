// The connections, rented regions and pins of each user, and the limits of them. Connections, regions and their bytes count
// over all pools, pins in each pool apart. Processes under a user's subordinate ids (subordinate_users.h) count as the user's.
// marud hands out the first three and can refuse them. A pin is a word that a client writes into a lane, so marud cannot refuse
// it there. marud counts pins and logs them. It gives a user with too many pins in a pool neither memory nor another lane of
// that pool until the user has fewer.
//
// A client can write pins into any lane of a pool that it may write to. So pins in a pool decide about that pool alone. So do
// the lanes and rented regions that marud found in a pool when it took the pool over. This ends when a client attaches to the
// lane or marud rents the region anew. No word of a pool is a reason for marud to refuse anything in another pool.
//
// Used by the deciding thread alone.
#pragma once

#include "daemon/base/log_budget.h"
#include "daemon/config/config.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/server/lane_watch.h"
#include "daemon/system/peer.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace maru::daemon {

class Users {
 public:
  Users(const Config& config, const std::vector<std::unique_ptr<HostedPool>>& pools, const LaneWatches& lanes)
      : config_(config), pools_(pools), lanes_(lanes) {}

  // The account of a user: the user whose subordinate it is, or itself. A [[limit]] that names a user makes it an
  // account of its own.
  uid_t account_of(uid_t user) const;

  // For root and marud's own user only the limits of a [[limit]] apply that names them.
  UserLimits limits_of(uid_t user, gid_t group, const std::vector<gid_t>& groups) const;

  // marud, or a pool of it.
  bool may_administrate_anything(const Peer& peer) const;

  // Connections. Each why_... gives the reason for a refusal, or nothing; `who` is for the log.
  // Users who may use no pool and administrate nothing: they have few connections, all together.
  bool is_stranger(const Peer& peer) const;
  // `connections` of all users; `closing`: connections of this user's account that are over and wait to be closed.
  std::string why_no_connection(const Peer& peer, const std::string& who, size_t connections, size_t closing,
                                uint64_t now_ms);
  void connected(uid_t account, bool is_strangers);
  void left(uid_t account, bool was_strangers);

  // A lane of this pool that the process does not have yet.
  std::string why_no_lane(const Peer& peer, const std::string& who, uint32_t pool, uint64_t now_ms);

  // The memory that this client may rent in the pool. `why` is not empty when it may have no region more; with
  // `evicts_own` it may still use the room in its own regions.
  struct Allowance {
    RentLimits limits;
    std::string why;
    metrics::Refusal refusal = metrics::Refusal::kRegions;
    bool evicts_own = true;
  };
  Allowance allowance(const Peer& peer, const Pool& pool) const;

  // Looks for users with too many pins, and logs which user has become one and which no longer is.
  void watch();

  void count(metrics::Refusal refusal) { ++refusals_[size_t(refusal)]; }
  // Counts, and logs unless the same was logged for this user a moment ago: a client may ask as often as it likes.
  void refuse(metrics::Refusal refusal, uid_t user, const std::string& text, uint64_t now_ms);

  void fill(metrics::Snapshot& snapshot) const;
  nlohmann::json limits_json() const;  // as /conf has them

  // Lines in the log that clients cause at will: mistakes, forbidden requests, comings and goings.
  LogBudget complaints{LogLevel::kWarning, "refusals and mistakes", 32, 128};
  LogBudget movements{LogLevel::kInfo, "comings and goings", 128, 512};

 private:
  std::map<uid_t, UserUse> uses(const Pool& pool) const;  // by account
  UserUse use_for(uid_t account, const Pool& pool) const;
  std::string why_too_many_pins(const Peer& peer, const UserLimits& limits, const UserUse& use, const Pool& pool) const;

  const Config& config_;
  const std::vector<std::unique_ptr<HostedPool>>& pools_;
  const LaneWatches& lanes_;
  std::map<uid_t, uint64_t> connections_;              // by account
  uint64_t strangers_ = 0;                             // connections of theirs
  std::set<std::pair<uid_t, std::string>> over_pins_;  // in the pool of this name
  std::map<std::pair<uid_t, metrics::Refusal>, uint64_t> said_ms_;
  std::array<uint64_t, metrics::kRefusals> refusals_ = {};
};

}  // namespace maru::daemon
