#include "daemon/pool/inspect/host_lists.h"

#include "daemon/base/request_fields.h"
#include "daemon/pool/hosts/host_record.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
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

std::optional<std::array<uint64_t, metrics::kHostStates>> HostLists::hosts_by_state() const {
  if (!core_.region.is_shared()) return std::nullopt;
  std::array<uint64_t, metrics::kHostStates> counts = {};
  for (uint32_t host = 0; host < core_.region.hosts(); ++host) {
    const HostState state = shm::read_claim(core_.region, host).state();
    if (state == HostState::kLive) ++counts[0];
    if (state == HostState::kSuspect) ++counts[1];
    if (state == HostState::kDead) ++counts[2];
  }
  return counts;
}

json HostLists::list() const {
  if (!core_.region.is_shared()) return refusal(EOPNOTSUPP, "this pool belongs to one host (profile = \"local\")");
  std::vector<uint32_t> rented(core_.region.hosts() + 1, 0), used(core_.region.hosts(), 0);
  for (uint32_t i = 0; i < regions_.size(); ++i)
    ++rented[std::min(shm::host_of_region(core_.region, i), core_.region.hosts())];
  shm::LaneSet::in_use(core_.region).for_each(core_.region.lanes(), [&](uint32_t lane) {
    const uint32_t host = core_.region.host_of_lane(lane);
    if (host < core_.region.hosts() && lane != core_.region.daemon_lane_of(host)) ++used[host];
  });
  json rows = json::array();
  for (uint32_t host = 0; host < core_.region.hosts(); ++host) {
    const format::HostRecord& record = core_.region.host(host);
    const HostClaim claim = shm::read_claim(core_.region, host);
    json row = {{"host", host}, {"state", state_name(claim.state())}, {"generation", claim.generation()}};
    if (!claim.is(HostState::kFree)) {
      const uint64_t heartbeat = record.heartbeat_ms.load_relaxed();  // for people, and so below
      row["name"] = name_in(record);
      row["boot_id"] = boot_id_text(record.boot_id_lo.load_relaxed(), record.boot_id_hi.load_relaxed());
      row["epoch"] = record.epoch.load_relaxed();
      row["pid"] = record.process.load_relaxed();
      row["heartbeat_age_ms"] = core_.now_ms > heartbeat ? core_.now_ms - heartbeat : 0;
      row["clients"] = used[host];
      row["regions"] = rented[host];
    }
    if (claim.is(HostState::kDead)) row["reclaimer"] = claim.reclaimer();
    row["this"] = host == core_.host;
    rows.push_back(std::move(row));
  }
  return {{"hosts", std::move(rows)},
          {"unused_regions", rented.back()},
          {"reclaiming", reclaims_.host() == kNoHost ? json(nullptr) : json(reclaims_.host())},
          {"reclaimed_hosts", reclaims_.reclaimed()}};
}

json HostLists::lanes_elsewhere(uint32_t from) const {
  json rows = json::array();
  if (!core_.region.is_shared()) return rows;
  std::vector<uint32_t> rented(core_.region.lanes(), 0);
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    const shm::RegionWord shown{core_.region.region(i).word.load_acquire()};  // [pairs region.word]
    if (shown.state() == RegionState::kRented && shown.owner().lane < core_.region.lanes())
      ++rented[shown.owner().lane];
  }
  shm::LaneSet::in_use(core_.region).for_each(core_.region.lanes(), [&](uint32_t lane) {
    const uint32_t host = core_.region.host_of_lane(lane);
    if (lane < from || host >= core_.region.hosts() || host == core_.host || lane == core_.region.daemon_lane_of(host))
      return;
    const format::LaneIdentity& identity = core_.region.identity(lane);
    const uint64_t lane_state = identity.state.load_relaxed();  // for people, and so are the next fields
    rows.push_back({{"lane", lane},
                    {"generation", lane_state >> 48},
                    {"host", host},
                    {"host_name", name_in(core_.region.host(host))},
                    {"state", state_name(shm::read_claim(core_.region, host).state())},
                    {"pid", identity.process.load_relaxed()},
                    {"uid", identity.credentials.load_relaxed() >> 32},
                    {"since_ms", identity.attached_ms.load_relaxed()},
                    {"regions", rented[lane]}});
  });
  return rows;
}

json HostLists::declare_dead(const json& request) {
  if (!core_.region.is_shared()) return refusal(EOPNOTSUPP, "this pool belongs to one host (profile = \"local\")");
  const uint64_t host = number_in(request, "host", kNoHost);
  if (host >= core_.region.hosts())
    return refusal(EINVAL,
                   "\"host\" is a number below " + std::to_string(core_.region.hosts()) + ", as `host list` shows");
  if (host == core_.host) return refusal(EINVAL, "this is the host that is asked; stop its marud instead");
  const HostClaim claim = shm::read_claim(core_.region, uint32_t(host));
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
  if (!hosts_.declare_dead(uint32_t(host), claim.generation(), "an administrator said so"))
    return refusal(EAGAIN, "its state changed at this moment; look at `host list` and try again");
  return {{"host", host}, {"state", "dead"}, {"reclaimer", core_.host}};
}

}  // namespace maru::daemon
