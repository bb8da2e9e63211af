// The hosts of a shared pool, as administrators see them and declare them dead.
#include "daemon/base/request_fields.h"
#include "daemon/pool/hosts/host_record.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/region/host_claim.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;
using shm::HostClaim;
using shm::HostState;

}  // namespace

std::optional<std::array<uint64_t, metrics::kHostStates>> Pool::State::hosts_by_state() const {
  if (!core.region.is_shared()) return std::nullopt;
  std::array<uint64_t, metrics::kHostStates> counts = {};
  for (uint32_t host = 0; host < core.region.hosts(); ++host) {
    const HostState state = shm::read_claim(core.region, host).state();
    if (state == HostState::kLive) ++counts[0];
    if (state == HostState::kSuspect) ++counts[1];
    if (state == HostState::kDead) ++counts[2];
  }
  return counts;
}

json Pool::State::list_hosts() const {
  if (!core.region.is_shared()) return refusal(EOPNOTSUPP, "this pool belongs to one host (profile = \"local\")");
  std::vector<uint32_t> rented(core.region.hosts() + 1, 0), used(core.region.hosts(), 0);
  for (uint32_t i = 0; i < regions.size(); ++i)
    ++rented[std::min(shm::host_of_region(core.region, i), core.region.hosts())];
  shm::LaneSet::in_use(core.region).for_each(core.region.lanes(), [&](uint32_t lane) {
    const uint32_t host = core.region.host_of_lane(lane);
    if (host < core.region.hosts() && lane != core.region.daemon_lane_of(host)) ++used[host];
  });
  json rows = json::array();
  for (uint32_t host = 0; host < core.region.hosts(); ++host) {
    const format::HostRecord& record = core.region.host(host);
    const HostClaim claim = shm::read_claim(core.region, host);
    json row = {{"host", host}, {"state", state_name(claim.state())}, {"generation", claim.generation()}};
    if (!claim.is(HostState::kFree)) {
      const uint64_t heartbeat = record.heartbeat_ms.load_relaxed();  // for people, and so below
      row["name"] = name_in(record);
      row["boot_id"] = boot_id_text(record.boot_id_lo.load_relaxed(), record.boot_id_hi.load_relaxed());
      row["epoch"] = record.epoch.load_relaxed();
      row["pid"] = record.process.load_relaxed();
      row["heartbeat_age_ms"] = core.now_ms > heartbeat ? core.now_ms - heartbeat : 0;
      row["clients"] = used[host];
      row["regions"] = rented[host];
    }
    if (claim.is(HostState::kDead)) row["reclaimer"] = claim.reclaimer();
    row["this"] = host == core.host;
    rows.push_back(std::move(row));
  }
  return {{"hosts", std::move(rows)},
          {"unused_regions", rented.back()},
          {"reclaiming", reclaims.host() == kNoHost ? json(nullptr) : json(reclaims.host())},
          {"reclaimed_hosts", reclaims.reclaimed()}};
}

json Pool::State::lanes_elsewhere(uint32_t from) const {
  json rows = json::array();
  if (!core.region.is_shared()) return rows;
  std::vector<uint32_t> rented(core.region.lanes(), 0);
  for (uint32_t i = 0; i < regions.size(); ++i) {
    const shm::RegionWord shown{core.region.region(i).word.load_acquire()};  // [pairs region.word]
    if (shown.state() == RegionState::kRented && shown.owner().lane < core.region.lanes()) ++rented[shown.owner().lane];
  }
  shm::LaneSet::in_use(core.region).for_each(core.region.lanes(), [&](uint32_t lane) {
    const uint32_t host = core.region.host_of_lane(lane);
    if (lane < from || host >= core.region.hosts() || host == core.host || lane == core.region.daemon_lane_of(host))
      return;
    const format::LaneIdentity& identity = core.region.identity(lane);
    const uint64_t lane_state = identity.state.load_relaxed();  // for people, and so what follows
    rows.push_back({{"lane", lane},
                    {"generation", lane_state >> 48},
                    {"host", host},
                    {"host_name", name_in(core.region.host(host))},
                    {"state", state_name(shm::read_claim(core.region, host).state())},
                    {"pid", identity.process.load_relaxed()},
                    {"uid", identity.credentials.load_relaxed() >> 32},
                    {"since_ms", identity.attached_ms.load_relaxed()},
                    {"regions", rented[lane]}});
  });
  return rows;
}

json Pool::State::declare_host_dead(const json& request) {
  if (!core.region.is_shared()) return refusal(EOPNOTSUPP, "this pool belongs to one host (profile = \"local\")");
  const uint64_t host = number_in(request, "host", kNoHost);
  if (host >= core.region.hosts())
    return refusal(EINVAL,
                   "\"host\" is a number below " + std::to_string(core.region.hosts()) + ", as `host list` shows");
  if (host == core.host) return refusal(EINVAL, "this is the host that is asked; stop its marud instead");
  const HostClaim claim = shm::read_claim(core.region, uint32_t(host));
  if (claim.is(HostState::kFree)) return refusal(ENOENT, "no host has slot " + std::to_string(host));
  if (claim.is(HostState::kAttaching))
    return refusal(EBUSY, "a host attaches in slot " + std::to_string(host) +
                              " at this moment, and holds nothing yet; if it does not end that, the slot is free again "
                              "by itself");
  if (claim.is(HostState::kDead))
    return refusal(EALREADY, "host " + std::to_string(host) + " is dead already; host " +
                                 std::to_string(claim.reclaimer()) + " takes back what it held");
  if (claim.is(HostState::kLive) && !flag_in(request, "force"))
    return refusal(EBUSY,
                   "host " + std::to_string(host) +
                       " is not suspect: its heartbeat is on time. Declaring a host dead that is not corrupts what "
                       "its clients do; make sure that it is off, and say --force");
  if (!hosts.declare_dead(uint32_t(host), claim.generation(), "an administrator said so"))
    return refusal(EAGAIN, "its state changed at this moment; look at `host list` and try again");
  return {{"host", host}, {"state", "dead"}, {"reclaimer", core.host}};
}

}  // namespace maru::daemon
