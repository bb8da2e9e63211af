#include "daemon/admin/commands.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/system/peer.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

namespace maru::daemon {
namespace {

using nlohmann::json;

// The first adopted lane without a watch that the request means, and its pool.
struct Unwatched {
  HostedPool* hosted = nullptr;
  Pool::AdoptedLane lane = {};
};
std::optional<Unwatched> unwatched_of(const AdminView& view, const json& request) {
  const std::string pool = text_in(request, "pool");
  for (const auto& hosted : view.pools) {
    if (!hosted->serving() || (!pool.empty() && hosted->name() != pool)) continue;
    for (const Pool::AdoptedLane& lane : hosted->serving()->adopted_lanes())
      if (request.contains("pid") ? uint64_t(lane.who.pid) == number_in(request, "pid", 0)
                                  : lane.lane == number_in(request, "lane", 0))
        return Unwatched{hosted.get(), lane};
  }
  return std::nullopt;
}

std::string name_of(const Unwatched& unwatched) {
  const Pool::AdoptedLane& lane = unwatched.lane;
  return "lane " + std::to_string(lane.lane) + " of pool \"" + unwatched.hosted->name() + "\", of process " +
         std::to_string(lane.who.pid) +
         (lane.is_elsewhere ? " of pid namespace " + std::to_string(lane.pid_namespace) : std::string());
}

// A lane of the meant process, with which it has attached if there is such a lane; or null with the refusal.
const LaneWatch* watch_of(const AdminView& view, const json& request, json& ret_refusal) {
  if (!request.contains("pid") && !request.contains("lane")) {
    ret_refusal = refusal(EINVAL, "\"pid\", or \"pool\" and \"lane\", say which client is meant");
    return nullptr;
  }
  const uint64_t pid = number_in(request, "pid", 0), lane = number_in(request, "lane", 0);
  const std::string pool = text_in(request, "pool");
  // Of the wrong one of two clients nothing can be made good.
  const auto is_there = [](const auto& hosted) { return hosted->known() != nullptr; };
  if (!request.contains("pid") && pool.empty() && std::count_if(view.pools.begin(), view.pools.end(), is_there) > 1) {
    ret_refusal =
        refusal(EINVAL, "there are several pools: \"pool\" and \"lane\", or \"pid\", say which client is meant");
    return nullptr;
  }
  const LaneWatch *other_life = nullptr, *without_proof = nullptr;
  for (const auto& [id, watch] : view.lanes.all()) {
    if (request.contains("pid") && uint64_t(watch.who.pid) != pid) continue;
    if (request.contains("lane") && watch.lane != lane) continue;
    if (!pool.empty() && view.pools[watch.pool]->name() != pool) continue;
    if (request.contains("start_time") && number_in(request, "start_time", 0) != watch.who.start_time) {
      other_life = &watch;
      continue;
    }
    if (watch.has_attached) return &watch;
    without_proof = &watch;
  }
  if (without_proof) return without_proof;
  if (const auto unwatched = unwatched_of(view, request)) {
    const bool is_unproven = unwatched->hosted->serving()->is_unproven(unwatched->lane.lane);
    ret_refusal = refusal(
        EACCES, name_of(*unwatched) +
                    " has not attached since marud was started, and marud does not see that process, so it cannot end "
                    "it. " +
                    (is_unproven ? "Marud cannot know either when that process has ended. If it has: marudctl client "
                                   "forget " +
                                       std::to_string(unwatched->lane.lane)
                                 : "End that process where it is seen; marud takes back what it holds as soon as it "
                                   "has ended."));
    return nullptr;
  }
  const std::string meant =
      request.contains("pid") ? "process " + std::to_string(pid) : "a process on lane " + std::to_string(lane);
  ret_refusal = refusal(ESRCH, other_life ? meant + " is another one now than the one that was looked at: look again"
                                          : meant +
                                                " is no client of marud: it has ended, and what it held was taken "
                                                "back, or it never attached");
  return nullptr;
}

// Every lane of the process, in all pools, and its holdings there.
json lanes_of(const AdminView& view, const ClientIdentity& who) {
  json lanes = json::array();
  for (const auto& [id, watch] : view.lanes.all()) {
    if (watch.who.pid != who.pid || watch.who.start_time != who.start_time) continue;
    const HostedPool& hosted = *view.pools[watch.pool];
    json row = hosted.serving() ? hosted.serving()->lane_json(watch.lane, view.now_unix_ms) : json::object();
    row.erase("counters");
    row["pool"] = hosted.name();
    row["lane"] = watch.lane;
    lanes.push_back(std::move(row));
  }
  return lanes;
}

}  // namespace

json fence_client(const AdminView& view, const json& request, const std::string& who) {
  json none;
  const LaneWatch* watch = watch_of(view, request, none);
  if (!watch) return none;
  const std::string pid = std::to_string(watch->who.pid);
  const std::string name = "process " + pid + " (" + watch->command + ", user " + std::to_string(watch->who.uid) + ")";
  if (!watch->has_attached) {
    log_warning("{} asked to fence {}, which has not attached since marud was started: it is not ended", who, name);
    return refusal(EACCES,
                   name +
                       " has not attached since marud was started, so only the pool says that it is a client, "
                       "and any client can have written that there: marud does not end it. End it if it is one: "
                       "kill -KILL " +
                       pid + ". marud takes back what it holds as soon as it has ended.");
  }
  json lanes = lanes_of(view, watch->who);
  const auto ended = end_process(watch->pidfd.get());
  if (!ended && ended.error().code == EPERM) {
    log_warning("{} asked to fence {}: marud, user {}, may not signal it", who, name, ::geteuid());
    return refusal(EPERM, "marud runs as user " + std::to_string(::geteuid()) + " and may not signal " + name +
                              ". End it as root or as its user: kill -KILL " + pid +
                              ". marud takes back what it holds as soon as it has ended. (The capability CAP_KILL lets "
                              "marud do it, see marudctl(1).)");
  }
  if (!ended && ended.error().code != ESRCH) return refusal(ended.error().code, ended.error().text());
  if (ended)
    log_warning("{} asked to fence {}: it gets SIGKILL", who, name);
  else
    log_info("{} asked to fence {}, which has ended already", who, name);
  return {{"pid", int64_t(watch->who.pid)},
          {"start_time", watch->who.start_time},
          {"command", watch->command},
          {"uid", watch->who.uid},
          {"had_ended", !ended},
          {"lanes", std::move(lanes)}};
}

json forget_client(const AdminView& view, const json& request, const std::string& who) {
  if (!request.contains("pool") || !request.contains("lane"))
    return refusal(EINVAL, "\"pool\" and \"lane\" say which lane is meant");
  json by_lane = request;
  by_lane.erase("pid");
  const auto unwatched = unwatched_of(view, by_lane);
  const uint64_t lane = number_in(request, "lane", 0);
  const std::string pool = text_in(request, "pool");
  if (!unwatched) {
    for (const auto& [id, watch] : view.lanes.all())
      if (watch.lane == lane && view.pools[watch.pool]->name() == pool)
        return refusal(EBUSY, "process " + std::to_string(watch.who.pid) + " (" + watch.command + ") holds lane " +
                                  std::to_string(lane) + " of pool \"" + pool +
                                  "\" and lives: marud knows by itself when it ends (marudctl client fence ends it)");
    return refusal(ESRCH, "nobody holds lane " + std::to_string(lane) + " of a pool \"" + pool + "\" that serves");
  }
  Pool& serving = *unwatched->hosted->serving();
  const std::string name = name_of(*unwatched);
  if (!serving.is_unproven(unwatched->lane.lane))
    return refusal(EBUSY, serving.lock_of(unwatched->lane.lane) == LaneLock::kHeld
                              ? name +
                                    ": found that a process has the pool mapped through this lane, expected that none "
                                    "does; end that process, and marud takes the lane back by itself"
                              : name +
                                    ": found that marud can tell by itself when this process ends, expected one of "
                                    "another pid namespace; end it");
  json row = serving.lane_json(unwatched->lane.lane, view.now_unix_ms);
  const uint64_t generation = row.value("generation", uint64_t{0});
  if (request.contains("generation") && number_in(request, "generation", 0) != generation)
    return refusal(ESRCH, name + " is another one now than the one that was looked at: look again");
  row.erase("counters");
  row["pool"] = pool;
  row["lane"] = lane;
  row["pid"] = int64_t(unwatched->lane.who.pid);
  row["pid_namespace"] = unwatched->lane.pid_namespace;
  log_warning("{} says that the process of {} is gone: what it held is taken back", who, name);
  unwatched->hosted->lane_ended(unwatched->lane.lane, false);
  return row;
}

}  // namespace maru::daemon
