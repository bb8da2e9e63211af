#include "daemon/server/users.h"

#include "daemon/admin/admin.h"
#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/hosting/config_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::daemon {
namespace {

using metrics::Refusal;

constexpr uint64_t kSaidAgainMs = 10'000;
constexpr size_t kSaidMax = 4096;  // more users than connect: then some complaints come again too early
// Connections for users who may administrate: the last places.
constexpr size_t kConnectionsReserved = 64;
// Connections of all strangers together: users who may use no pool.
constexpr uint64_t kStrangersMax = 64;

uint64_t left_of(uint64_t limit, uint64_t used) {
  if (limit == 0) return UINT64_MAX;
  return limit > used ? limit - used : 0;
}

std::string user_text(uid_t user) { return "user " + std::to_string(user); }

}  // namespace

uid_t Users::account_of(uid_t user) const {
  const uid_t owner = config_.subordinate_users.owner(user);
  if (owner == user) return user;
  const bool has_own = std::any_of(config_.user_limit_rules.begin(), config_.user_limit_rules.end(),
                                   [&](const UserLimitRule& rule) { return rule.user == user; });
  return has_own ? user : owner;
}

UserLimits Users::limits_of(uid_t user, gid_t group, const std::vector<gid_t>& groups) const {
  const auto& rules = config_.user_limit_rules;
  const uid_t account = account_of(user);
  auto found =
      std::find_if(rules.begin(), rules.end(), [&](const UserLimitRule& rule) { return rule.user == account; });
  UserLimits limits = config_.user_limits;
  if (account == 0 || account == ::geteuid())
    limits = {0, 0, 0, 0};
  else if (found == rules.end())
    found = std::find_if(rules.begin(), rules.end(), [&](const UserLimitRule& rule) {
      return rule.group &&
             (rule.group == group || std::find(groups.begin(), groups.end(), *rule.group) != groups.end());
    });
  if (found == rules.end()) return limits;
  return {found->connections.value_or(limits.connections), found->regions.value_or(limits.regions),
          found->bytes.value_or(limits.bytes), found->pins.value_or(limits.pins)};
}

std::map<uid_t, UserUse> Users::uses(const Pool& pool) const {
  std::map<uid_t, UserUse> uses;
  pool.add_uses(uses);
  std::map<uid_t, UserUse> by_account;
  for (const auto& [user, use] : uses) {
    UserUse& sum = by_account[account_of(user)];
    sum.regions += use.regions;
    sum.bytes += use.bytes;
    sum.found_regions += use.found_regions;
    sum.found_bytes += use.found_bytes;
    sum.pins += use.pins;
  }
  return by_account;
}

// All that a user has in this pool, and of its other pools the regions that this marud has rented to it.
UserUse Users::use_for(uid_t account, const Pool& pool) const {
  UserUse sum;
  for (const auto& hosted : pools_) {
    const Pool* other = hosted->serving();
    if (!other) continue;
    const auto all = uses(*other);
    const auto found = all.find(account);
    if (found == all.end()) continue;
    const UserUse& use = found->second;
    const bool is_here = other == &pool;
    sum.regions += is_here ? use.regions : use.regions - use.found_regions;
    sum.bytes += is_here ? use.bytes : use.bytes - use.found_bytes;
    sum.pins += is_here ? use.pins : 0;
  }
  return sum;
}

bool Users::may_administrate_anything(const Peer& peer) const {
  return may_administrate(config_, peer) || std::any_of(pools_.begin(), pools_.end(), [&](const auto& hosted) {
           return !hosted->is_gone() && may_administrate(hosted->spec(), peer);
         });
}

bool Users::is_stranger(const Peer& peer) const {
  if (may_administrate_anything(peer)) return false;
  return std::none_of(pools_.begin(), pools_.end(), [&](const auto& hosted) {
    const PoolSpec& access = hosted->spec();
    return !hosted->is_gone() &&
           (may_use(peer, access.users, access.groups) || may_use(peer, access.readers, access.reader_groups));
  });
}

// -- refusals ---------------------------------------------------------------------------------------------------------

void Users::refuse(Refusal refusal, uid_t user, const std::string& text, uint64_t now_ms) {
  count(refusal);
  if (said_ms_.size() >= kSaidMax) said_ms_.clear();
  const auto [said, is_first] = said_ms_.emplace(std::pair(user, refusal), now_ms);
  if (!is_first && now_ms - said->second < kSaidAgainMs) return;
  said->second = now_ms;
  complaints.say(user, "{}", text);
}

std::string Users::why_no_connection(const Peer& peer, const std::string& who, size_t connections, size_t closing,
                                     uint64_t now_ms) {
  const uid_t account = account_of(peer.who.uid);
  const uint64_t most = limits_of(peer.who.uid, peer.who.gid, peer.groups).connections;
  const auto found = connections_.find(account);
  const uint64_t has = (found == connections_.end() ? 0 : found->second) + closing;
  const size_t reserved = may_administrate_anything(peer) ? 0 : kConnectionsReserved;
  std::string why;
  if (connections + reserved >= limits::kConnectionsMax)
    why = "there are " + std::to_string(connections) + " connections to marud already, as many as there can be" +
          (reserved == 0 ? "" : " beside those that are kept for administrators");
  else if (most != 0 && has >= most)
    why = user_text(account) + " has " + std::to_string(has) + " connections to marud already, " +
          (closing == 0 ? "" : std::to_string(closing) + " of them not closed yet, ") +
          "as many as it may have (connections under [limits] or [[limit]] in marud.toml)";
  else if (strangers_ >= kStrangersMax && is_stranger(peer))
    why = "users who may use no pool have " + std::to_string(strangers_) +
          " connections to marud already, as many as all of them may have (users and groups under [[pool]] in "
          "marud.toml)";
  if (!why.empty()) refuse(Refusal::kConnections, account, "a connection of " + who + " is refused: " + why, now_ms);
  return why;
}

void Users::connected(uid_t account, bool is_strangers) {
  ++connections_[account];
  strangers_ += is_strangers;
}

void Users::left(uid_t account, bool was_strangers) {
  strangers_ -= was_strangers;
  const auto found = connections_.find(account);
  if (found != connections_.end() && --found->second == 0) connections_.erase(found);
}

std::string Users::why_too_many_pins(const Peer& peer, const UserLimits& limits, const UserUse& use,
                                     const Pool& pool) const {
  if (limits.pins == 0 || use.pins <= limits.pins) return {};
  return user_text(account_of(peer.who.uid)) + " pins " + std::to_string(use.pins) + " blocks of pool \"" +
         pool.config().name + "\", and may pin " + std::to_string(limits.pins) +
         " of each pool (pins under [limits] or [[limit]] in marud.toml): release some first";
}

std::string Users::why_no_lane(const Peer& peer, const std::string& who, uint32_t pool, uint64_t now_ms) {
  const uid_t account = account_of(peer.who.uid);
  const UserLimits limits = limits_of(peer.who.uid, peer.who.gid, peer.groups);
  // A lane outlives its connection until its process ends: a client that connects, attaches and hangs up again has
  // many.
  const auto lanes = uint64_t(std::count_if(lanes_.all().begin(), lanes_.all().end(), [&](const auto& entry) {
    const LaneWatch& watch = entry.second;
    return (watch.has_attached || watch.pool == pool) && account_of(watch.who.uid) == account;
  }));
  if (limits.connections != 0 && lanes >= limits.connections) {
    const std::string why = user_text(account) + " has " + std::to_string(lanes) +
                            " lanes already, as many as it may have connections (under [limits] or [[limit]] in "
                            "marud.toml): those of lost connections are free when their processes end";
    refuse(Refusal::kConnections, account, who + " may not attach: " + why, now_ms);
    return why;
  }
  const Pool* serving = pools_[pool]->serving();
  if (limits.pins == 0 || !serving) return {};
  std::string why = why_too_many_pins(peer, limits, use_for(account, *serving), *serving);
  if (!why.empty()) refuse(Refusal::kPins, account, who + " may not attach: " + why, now_ms);
  return why;
}

Users::Allowance Users::allowance(const Peer& peer, const Pool& pool) const {
  const UserLimits limits = limits_of(peer.who.uid, peer.who.gid, peer.groups);
  Allowance allowed;
  if (limits.regions == 0 && limits.bytes == 0 && limits.pins == 0) return allowed;
  const uid_t account = account_of(peer.who.uid);
  const UserUse use = use_for(account, pool);
  allowed.why = why_too_many_pins(peer, limits, use, pool);
  if (!allowed.why.empty()) {
    allowed.refusal = Refusal::kPins;
    allowed.evicts_own = false;
    return allowed;
  }
  if (limits.regions == 0 && limits.bytes == 0) return allowed;
  const format::Parameters& parameters = pool.header().parameters;
  const uint64_t region_bytes = parameters.region_pages * parameters.page_bytes;
  const uint64_t by_count = left_of(limits.regions, use.regions);
  const uint64_t by_bytes = limits.bytes == 0 ? UINT64_MAX : left_of(limits.bytes, use.bytes) / region_bytes;
  allowed.limits = {std::min(by_count, by_bytes), true};
  if (allowed.limits.regions_left > 0) return allowed;
  allowed.refusal = by_count == 0 ? Refusal::kRegions : Refusal::kBytes;
  if (by_count != 0 && limits.bytes < region_bytes) {
    allowed.why = user_text(account) + " may rent " + size_text(limits.bytes) +
                  " (bytes under [limits] or [[limit]] in marud.toml), which is less than one region of pool \"" +
                  pool.config().name + "\", " + size_text(region_bytes) + ": it gets no memory there";
    return allowed;
  }
  allowed.why = user_text(account) + " rents " + std::to_string(use.regions) + " regions of " + size_text(use.bytes) +
                ", and may rent " + (by_count == 0 ? std::to_string(limits.regions) : size_text(limits.bytes)) + " (" +
                (by_count == 0 ? "regions" : "bytes") +
                " under [limits] or [[limit]] in marud.toml); nothing in its own regions can be evicted";
  return allowed;
}

// -- looking ----------------------------------------------------------------------------------------------------------

void Users::watch() {
  const auto is_limited = [](const UserLimitRule& rule) { return rule.pins.value_or(0) != 0; };
  const auto& rules = config_.user_limit_rules;
  if (over_pins_.empty() && config_.user_limits.pins == 0 && std::none_of(rules.begin(), rules.end(), is_limited))
    return;
  std::vector<std::map<uid_t, UserUse>> all;  // by pool
  for (const auto& hosted : pools_)
    all.push_back(hosted->serving() ? uses(*hosted->serving()) : std::map<uid_t, UserUse>());
  std::set<std::pair<uid_t, std::string>> over;
  for (const auto& [id, watch] : lanes_.all()) {
    const uint64_t most = limits_of(watch.who.uid, watch.who.gid, watch.groups).pins;
    const uid_t account = account_of(watch.who.uid);
    const auto use = all[watch.pool].find(account);
    if (most == 0 || use == all[watch.pool].end() || use->second.pins <= most) continue;
    const auto [place, is_new] = over.emplace(account, pools_[watch.pool]->name());
    if (is_new && !over_pins_.contains(*place))
      log_warning(
          "user {} pins {} blocks of pool \"{}\" and may pin {}: it gets neither memory nor another lane of that pool "
          "until it pins fewer (marudctl pins says which)",
          account, use->second.pins, place->second, most);
  }
  for (const auto& was : over_pins_)
    if (!over.contains(was))
      log_info("user {} is within its limit of pins of pool \"{}\" again", was.first, was.second);
  over_pins_ = std::move(over);
}

nlohmann::json Users::limits_json() const { return daemon::limits_json(config_); }

void Users::fill(metrics::Snapshot& snapshot) const {
  snapshot.refusals = refusals_;
  std::set<uid_t> over;
  for (const auto& [user, pool] : over_pins_) over.insert(user);
  snapshot.users_over_pins = over.size();
  for (const auto& hosted : pools_) {
    if (!hosted->serving()) continue;
    for (const auto& [user, use] : uses(*hosted->serving())) {
      metrics::UserNumbers& sum = snapshot.users[user];
      sum.regions += use.regions;
      sum.bytes += use.bytes;
      sum.pins += use.pins;
    }
  }
  for (const auto& [user, count] : connections_) snapshot.users[user].connections = count;
}

}  // namespace maru::daemon
