// "status" and "clients": marud as a whole, its pools, and the processes that hold lanes.
#include "daemon/admin/commands.h"
#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/memory/medium.h"
#include "daemon/version.h"
#include "maru/format/wire.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kReplyBytesMax = wire::kPayloadBytesMax;

// Cursors below these are ids of watches. From kUnwatched on a cursor names an adopted lane without a watch, and from
// kElsewhere on a lane of another host: the place of the pool, then the lane.
constexpr uint64_t kUnwatched = 1ull << 47, kElsewhere = 1ull << 48;

// To count the pins and to find the oldest, a reply reads each slot of a lane in which a pin may be. One reply reads at most so
// many slots, and at least the slots of one lane.
constexpr uint64_t kPinSlotsPerReply = 1u << 17;
constexpr uint64_t kSlotsOfAPin = 3;  // a lane has at most so many slots for each pin that it may hold

uint64_t pin_slots_of(const HostedPool& hosted) {
  return hosted.serving() ? kSlotsOfAPin * hosted.serving()->header().parameters.pins_max : 0;
}

// A client that marud has not found since it was started: the pool alone names its process.
json unwatched_json(const HostedPool& hosted, const Pool::AdoptedLane& lane, uint64_t now_ms) {
  json client = hosted.serving()->lane_json(lane.lane, now_ms);
  client["pid"] = int64_t(lane.who.pid);
  client["uid"] = lane.who.uid;
  client["start_time"] = lane.who.start_time;
  client["command"] = "";
  client["pool"] = hosted.name();
  client["lane"] = lane.lane;
  client["state"] = hosted.serving()->is_unproven(lane.lane) ? "unproven" : "frozen";
  client["since_ms"] = client.value("attached_ms", uint64_t{0});
  if (lane.is_elsewhere) client["pid_namespace"] = lane.pid_namespace;
  return client;
}

}  // namespace

bool is_theirs(const AdminView& view, const HostedPool& hosted) {
  return !view.only_for || may_administrate(hosted.spec(), *view.only_for);
}

std::string no_pool_text(const AdminView& view, const std::string& name) {
  std::string names;
  for (const auto& hosted : view.pools)
    if (!hosted->is_gone() && is_theirs(view, *hosted)) names += (names.empty() ? "" : ", ") + hosted->name();
  return "there is no pool \"" + printable(name) + "\", expected one of " + names;
}

json show_status(const AdminView& view, const json& request) {
  const std::string only = request.value("pool", "");
  json pools = json::array();
  size_t bytes = 0, index = 0;
  if (const auto cursor = request.find("cursor"); cursor != request.end() && cursor->is_number_unsigned())
    index = std::min(cursor->get<size_t>(), view.pools.size());
  for (; index < view.pools.size() && bytes < kAdminReplyBytesMax; ++index) {
    const auto& hosted = view.pools[index];
    if ((!only.empty() && hosted->name() != only) || hosted->is_gone() || !is_theirs(view, *hosted)) continue;
    json pool = !hosted->serving() ? json::object()
                : view.censuses    ? hosted->serving()->status_json((*view.censuses)[index])
                                   : hosted->serving()->status_json(view.now_unix_ms);
    pool["name"] = hosted->name();
    pool["condition"] = condition_text(hosted->condition());
    pool["backend"] = backend_text(hosted->spec().backend);
    if (!hosted->reason().empty()) pool["reason"] = hosted->reason();
    if (hosted->serving()) {
      pool["device"] = hosted->serving()->device().name();
      pool["medium"] = medium_of(hosted->serving()->device());
      if (const std::string& map_sync = hosted->serving()->device().map_sync(); !map_sync.empty())
        pool["map_sync"] = map_sync;
      if (const std::string& why = hosted->serving()->device().unreserved_because(); !why.empty())
        pool["unreserved_because"] = why;
      pool["epoch"] = hosted->serving()->epoch();
      pool["uuid"] = uuid_text(hosted->serving()->header().uuid);
    }
    bytes += json_text(pool).size() + 1;
    pools.push_back(std::move(pool));
  }
  if (!only.empty() && pools.empty()) return {{"error", no_pool_text(view, only)}, {"errno", ENOENT}};
  size_t unwatched = 0;
  for (const auto& hosted : view.pools)
    if (hosted->serving()) unwatched += hosted->serving()->adopted_lanes().size();
  json reply = {{"version", kVersionText},
                {"pid", int64_t(::getpid())},
                {"uptime_ms", view.now_monotonic_ms - view.start_monotonic_ms},
                {"connections", view.connections},
                {"lanes", view.lanes.size() + unwatched},
                {"longest_turn_cpu_us", view.turns ? view.turns->longest_cpu_ns / 1000 : 0},
                {"pools", std::move(pools)}};
  if (index < view.pools.size()) reply["next"] = index;
  if (view.state_dir && !view.only_for) reply["state_dir"] = *view.state_dir;
  if (!view.socket_trouble.empty() && !view.only_for) reply["socket_trouble"] = view.socket_trouble;
  if (!view.http_trouble.empty() && !view.only_for) reply["http_trouble"] = view.http_trouble;
  return reply;
}

json list_clients(const AdminView& view, const json& request) {
  uint64_t cursor = 0;
  if (const auto found = request.find("cursor"); found != request.end() && found->is_number_unsigned())
    cursor = found->get<uint64_t>();
  const std::string only = request.value("pool", "");
  const auto is_it = [&](const auto& hosted) {
    return hosted->name() == only && !hosted->is_gone() && is_theirs(view, *hosted);
  };
  if (!only.empty() && std::none_of(view.pools.begin(), view.pools.end(), is_it))
    return {{"error", no_pool_text(view, only)}, {"errno", ENOENT}};
  const bool is_of_all_hosts = flag_in(request, "all_hosts");
  const auto is_meant = [&](const HostedPool& hosted) {
    return (only.empty() || hosted.name() == only) && is_theirs(view, hosted);
  };
  json clients = json::array();
  size_t bytes = 256;
  uint64_t slots = 0;
  for (const auto& [id, watch] : view.lanes.all()) {
    if (id < cursor) continue;
    const HostedPool& hosted = *view.pools[watch.pool];
    if (!is_meant(hosted)) continue;
    slots += pin_slots_of(hosted);
    if (slots > kPinSlotsPerReply && !clients.empty()) return {{"clients", std::move(clients)}, {"next", id}};
    json client = hosted.serving() ? hosted.serving()->lane_json(watch.lane, view.now_unix_ms) : json::object();
    client["pid"] = int64_t(watch.who.pid);
    client["uid"] = watch.who.uid;
    client["start_time"] = watch.who.start_time;
    client["command"] = watch.command;
    client["pool"] = hosted.name();
    client["lane"] = watch.lane;
    client["state"] = watch.session != 0 ? "connected" : "frozen";
    client["since_ms"] = watch.since_ms;
    if (is_of_all_hosts && hosted.serving() && hosted.serving()->is_shared()) client["host"] = hosted.serving()->host();
    bytes += json_text(client).size() + 1;
    if (bytes > kReplyBytesMax) return {{"clients", std::move(clients)}, {"next", id}};
    clients.push_back(std::move(client));
  }
  const uint64_t first = cursor < kUnwatched ? 0 : cursor - kUnwatched;
  for (uint64_t index = first / limits::kLanesMax; cursor < kElsewhere && index < view.pools.size(); ++index) {
    const HostedPool& hosted = *view.pools[index];
    if (!is_meant(hosted) || !hosted.serving()) continue;
    for (const Pool::AdoptedLane& lane : hosted.serving()->adopted_lanes()) {
      const uint64_t at = index * limits::kLanesMax + lane.lane;
      if (at < first) continue;
      slots += pin_slots_of(hosted);
      json client = unwatched_json(hosted, lane, view.now_unix_ms);
      bytes += json_text(client).size() + 1;
      const bool is_full = bytes > kReplyBytesMax || (slots > kPinSlotsPerReply && !clients.empty());
      if (is_full) return {{"clients", std::move(clients)}, {"next", kUnwatched + at}};
      clients.push_back(std::move(client));
    }
  }
  const uint64_t place = cursor < kElsewhere ? 0 : cursor - kElsewhere;
  for (uint64_t index = place / limits::kLanesMax; is_of_all_hosts && index < view.pools.size(); ++index) {
    const HostedPool& hosted = *view.pools[index];
    if (!is_meant(hosted) || !hosted.serving()) continue;
    const uint64_t from = index == place / limits::kLanesMax ? place % limits::kLanesMax : 0;
    for (json& client : hosted.serving()->lanes_elsewhere(uint32_t(from))) {
      client["pool"] = hosted.name();
      bytes += json_text(client).size() + 1;
      if (bytes > kReplyBytesMax)
        return {{"clients", std::move(clients)},
                {"next", kElsewhere + index * limits::kLanesMax + client["lane"].get<uint64_t>()}};
      clients.push_back(std::move(client));
    }
  }
  return {{"clients", std::move(clients)}};
}

}  // namespace maru::daemon
