#include "daemon/admin/admin.h"

#include "daemon/admin/commands.h"
#include "daemon/admin/metrics.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/hosting/pool_lifecycle.h"
#include "daemon/memory/medium.h"
#include "daemon/system/peer.h"
#include "daemon/version.h"
#include "maru/format/wire.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 8;
constexpr size_t kReplyBytesMax = wire::kPayloadBytesMax;

bool is_theirs(const AdminView& view, const HostedPool& hosted) {
  return !view.only_for || may_administrate(hosted.spec(), *view.only_for);
}

// Names to whom asks what is theirs.
std::string no_pool_text(const AdminView& view, const std::string& name) {
  std::string names;
  for (const auto& hosted : view.pools)
    if (!hosted->is_gone() && is_theirs(view, *hosted)) names += (names.empty() ? "" : ", ") + hosted->name();
  return "there is no pool \"" + printable(name) + "\", expected one of " + names;
}

// Every pool, or the one that the request names. As many as one reply has room for, and in "next" where to go on.
json status_of(const AdminView& view, const json& request) {
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

// Lower cursors are of watches. From here on they are of adopted lanes without a watch, and then of lanes of other hosts: the
// place of the pool, then the lane.
constexpr uint64_t kUnwatched = 1ull << 47, kElsewhere = 1ull << 48;

// Each slot of a lane in which a pin may be is read, to count them and to find the oldest: so many for one reply, and those of
// one lane at least.
constexpr uint64_t kPinSlotsPerReply = 1u << 17;
constexpr uint64_t kSlotsOfAPin = 3;  // that a lane has for each pin that it may hold, at most

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

// Goes on after the lane whose number was returned as "next", as far as one reply reaches.
json clients_of(const AdminView& view, const json& request) {
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

// The pool that a command means: the one named, or the only one, or "default".
const HostedPool* pool_of(const AdminView& view, const json& request, AdminReply& refusal) {
  const auto is_there = [](const auto& hosted) { return !hosted->is_gone(); };
  std::string name = "default";
  if (std::count_if(view.pools.begin(), view.pools.end(), is_there) == 1)
    name = (*std::find_if(view.pools.begin(), view.pools.end(), is_there))->name();
  if (const auto found = request.find("pool"); found != request.end() && found->is_string())
    name = found->get<std::string>();
  for (const auto& hosted : view.pools) {
    if (hosted->name() != name || hosted->is_gone()) continue;
    if (hosted->serving()) return hosted.get();
    refusal = {hosted->condition() == HostedPool::Condition::kFenced ? EIO : EAGAIN,
               "pool \"" + name + "\" does not serve: it is " + condition_text(hosted->condition()) +
                   (hosted->reason().empty() ? "" : ": " + hosted->reason())};
    return nullptr;
  }
  refusal = {ENOENT, no_pool_text(view, name)};
  return nullptr;
}

// What was counted for this request, or the pages as they are now.
metrics::PageCensus census_of(const AdminView& view, const HostedPool& hosted) {
  for (size_t index = 0; view.censuses && index < view.pools.size(); ++index)
    if (view.pools[index].get() == &hosted) return (*view.censuses)[index];
  metrics::PageCensus census;
  hosted.serving()->take_census(census, UINT64_MAX);
  return census;
}

// Pins, and owners of regions, are listed by the pool, which knows processes by their number alone.
void name_holders(const AdminView& view, const Pool& pool, json& rows) {
  for (json& row : rows)
    for (uint32_t index = 0; index < view.pools.size(); ++index) {
      if (view.pools[index]->serving() != &pool) continue;
      const auto lane = row["lane"].get<uint32_t>();
      const LaneWatch* watch = view.lanes.find_lane(index, lane);
      if (!watch && pool.is_unproven(lane)) row["state"] = "unproven";
      if (!watch) continue;
      row["command"] = watch->command;
      row["uid"] = watch->who.uid;
    }
}

// As marudctl's command is written: "device add" for "device.add". What it has no command for stands as it is.
std::string words_of(const std::string& command) {
  std::string words = printable(command);
  std::replace(words.begin(), words.end(), '.', ' ');
  std::replace(words.begin(), words.end(), '_', '-');
  return "\"" + words + "\"";
}

AdminReply run(const AdminView& view, const std::string& command, const json& request, const std::string& who) {
  json reply;
  // Never another pool than was meant.
  if (const auto pool = request.find("pool"); pool != request.end() && !pool->is_string())
    return {EINVAL, "\"pool\" is the name of a pool"};
  const bool counts_pages = command == "status" || (command == "metrics" && !view.only_for) ||
                            (command == "quota.list" && !request.contains("cursor"));
  if (counts_pages && !view.censuses && view.can_wait) {
    AdminReply later;
    later.needs_census = true;
    return later;
  }
  if (command == "status") {
    reply = status_of(view, request);
  } else if (command == "clients") {
    reply = clients_of(view, request);
  } else if (view.only_for &&
             (command.starts_with("device.") || command.starts_with("client.") || command == "metrics")) {
    return {EACCES, words_of(command) + " is for root, marud's own user and the admin group"};
  } else if (command.starts_with("device.")) {
    reply = view.lifecycle->run(command, request, who, {view.now_unix_ms, view.now_monotonic_ms}, view.is_for_owner);
    if (reply.contains("error"))
      log_warning("{} asked for \"{}\": refused: {}", who, printable(command), printable(json_text(reply)));
  } else if (command == "metrics") {
    if (!view.censuses) return {EAGAIN, "the pages are not counted yet"};
    AdminReply refusal;
    if (request.contains("pool") && !pool_of(view, request, refusal)) return refusal;
    reply = metrics_of(view, request);
  } else if (command == "client.fence") {
    reply = fence_client(view, request, who);
  } else if (command == "client.forget") {
    reply = forget_client(view, request, who);
  } else {
    static constexpr const char* kPoolCommands[] = {
        "regions",          "map",       "which",      "blocks",        "block",         "pins",       "evict",
        "delete_tree",      "clear",     "check",      "memory.poison", "memory.list",   "policy",     "policy.set",
        "quota.set",        "quota.get", "quota.list", "quota.remove",  "quota.default", "quota.mode", "host.list",
        "host.declare_dead"};
    static constexpr const char* kChanging[] = {"evict",      "delete_tree",      "clear",        "memory.poison",
                                                "policy.set", "quota.set",        "quota.remove", "quota.default",
                                                "quota.mode", "host.declare_dead"};
    if (std::find(std::begin(kPoolCommands), std::end(kPoolCommands), command) == std::end(kPoolCommands))
      return {EOPNOTSUPP, "there is no command \"" + printable(command) + "\""};
    AdminReply refusal;
    const HostedPool* hosted = pool_of(view, request, refusal);
    if (!hosted) return refusal;
    if (!is_theirs(view, *hosted))
      return {EACCES, "neither the admin group nor the admins of pool \"" + hosted->name() + "\" name this user"};
    if (command == "policy")
      reply = show_policy(*hosted);
    else if (command == "policy.set")
      reply = set_policy(*hosted, request, view.now_unix_ms, view.removal);
    else
      reply = hosted->serving()->admin(command, request, view.now_unix_ms, view.removal);
    if (view.removal && *view.removal != 0) return reply.is_null() ? AdminReply{} : admin_reply(reply);
    for (const char* held : {"pins", "owners"})
      if (const auto rows = reply.find(held); rows != reply.end()) name_holders(view, *hosted->serving(), *rows);
    if (const uint64_t unproven = hosted->serving()->unproven_lanes(); unproven != 0 && reply.contains("left_blocks"))
      reply["unproven_lanes"] = unproven;  // they may hold the blocks that are left
    if (command == "map") reply["pool"] = hosted->name();
    if (const auto others = reply.find("others_used_bytes"); others != reply.end())
      *others = others->get<uint64_t>() + census_of(view, *hosted).no_tenant_bytes;
    const bool only_asks = (command == "quota.default" || command == "quota.mode") && !request.contains("soft") &&
                           !request.contains("hard") && !request.contains("listed");
    if (!only_asks && std::find(std::begin(kChanging), std::end(kChanging), command) != std::end(kChanging))
      log_write(reply.contains("error") ? LogLevel::kWarning : LogLevel::kInfo,
                fmt::format("{} asked for \"{}\" on pool \"{}\": {}", who, command, hosted->name(),
                            printable(json_text(reply))));
  }
  AdminReply answer = admin_reply(reply);
  if (command.starts_with("device.") && command != "device.list") answer.ticket = view.lifecycle->take_ticket();
  return answer;
}

}  // namespace

const char* condition_text(HostedPool::Condition condition) {
  switch (condition) {
    case HostedPool::Condition::kWaiting: return "waiting";
    case HostedPool::Condition::kServing: return "serving";
    case HostedPool::Condition::kFenced: return "fenced";
    case HostedPool::Condition::kDraining: return "draining";
    case HostedPool::Condition::kLeaving: return "leaving";
    case HostedPool::Condition::kGone: return "gone";
    case HostedPool::Condition::kUnavailable: return "unavailable";
  }
  return "";
}

AdminReply admin_reply(const json& reply) {
  if (reply.is_object()) {
    if (const auto found = reply.find("error"); found != reply.end()) {
      int code = EINVAL;
      if (const auto number = reply.find("errno"); number != reply.end() && number->is_number_integer())
        code = std::clamp(std::abs(number->get<int>()), 1, 4095);
      if (code == EBADMSG) code = EINVAL;
      return {code, found->is_string() ? found->get<std::string>() : json_text(*found)};
    }
  }
  std::string text = json_text(reply);
  if (text.size() > kReplyBytesMax) return {EMSGSIZE, "the reply is too long: ask for less, with \"limit\""};
  return {0, std::move(text)};
}
bool may_administrate(const Config& config, const Peer& peer) {
  return may_use(peer, {}, config.admin_group ? std::vector{*config.admin_group} : std::vector<gid_t>());
}

bool may_administrate(const PoolSpec& spec, const Peer& peer) { return may_use(peer, spec.admins, spec.admin_groups); }

AdminReply run_admin(const AdminView& view, std::string_view request, const std::string& who) {
  // nlohmann::json throws where types do not fit; nothing of that may reach the deciding thread.
  try {
    bool too_deep = false;
    const json parsed = json_of(request, kDepthMax, too_deep);
    if (too_deep) return {EBADMSG, "JSON that is nested too deeply"};
    if (!parsed.is_object()) return {EBADMSG, "not a JSON object"};
    const auto command = parsed.find("command");
    if (command == parsed.end() || !command->is_string()) return {EINVAL, "\"command\" is missing"};
    return run(view, command->get<std::string>(), parsed, who);
  } catch (const std::exception& exception) {
    return {EINVAL, std::string("the request does not fit: ") + exception.what()};
  }
}

}  // namespace maru::daemon
