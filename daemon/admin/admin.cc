#include "daemon/admin/admin.h"

#include "daemon/admin/commands.h"
#include "daemon/admin/metrics.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/hosting/pool_lifecycle.h"
#include "daemon/system/peer.h"
#include "maru/format/wire.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 8;

// The pool of a command: the named pool, or the only pool, or "default".
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

// The count that was made for this request, or the pages as they are now.
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

// A command as marudctl writes it: "device add" for "device.add".
std::string words_of(const std::string& command) {
  std::string words = printable(command);
  std::replace(words.begin(), words.end(), '.', ' ');
  std::replace(words.begin(), words.end(), '_', '-');
  return "\"" + words + "\"";
}

// -- the commands -----------------------------------------------------------------------------------------------------

// One command as an administrator gave it.
struct Command;
struct Call {
  const AdminView& view;
  const Command& command;
  const json& request;
  const std::string& who;      // for the log
  const HostedPool* hosted{};  // the pool that serves it; null: the command is about marud
};

// The administrators that may give a command.
enum class For : uint8_t {
  kEach,   // each administrator, about the pools that are theirs
  kMarud,  // administrators of marud
  kPool,   // administrators of the pool that it names, which must serve
};

// Whether a command changes something: of a pool such commands stand in the log with their answers.
enum class Changes : uint8_t { kNothing, kSomething, kIfItHasLimits };

// Whether the answer needs a count of all pages, which takes turns.
enum class Counts : uint8_t { kNothing, kPages, kPagesForFirstRows };

struct Command {
  std::string_view name;
  json (*run)(const Call& call);
  For whom;
  Changes changes;
  Counts counts;
};

json on_device(const Call& call) {
  const AdminView& view = call.view;
  const std::string name(call.command.name);
  json reply =
      view.lifecycle->run(name, call.request, call.who, {view.now_unix_ms, view.now_monotonic_ms}, view.is_for_owner);
  if (reply.contains("error"))
    log_warning("{} asked for \"{}\": refused: {}", call.who, name, printable(json_text(reply)));
  return reply;
}

json metrics_now(const Call& call) {
  if (!call.view.censuses) return refusal(EAGAIN, "the pages are not counted yet");
  AdminReply no_pool;
  if (call.request.contains("pool") && !pool_of(call.view, call.request, no_pool))
    return refusal(no_pool.code, no_pool.text);
  return metrics_of(call.view, call.request);
}

json in_pool(const Call& call) {
  return call.hosted->serving()->admin(std::string(call.command.name), call.request, call.view.now_unix_ms,
                                       call.view.removal);
}

constexpr Command kCommands[] = {
    {"status", [](const Call& call) { return show_status(call.view, call.request); }, For::kEach, Changes::kNothing,
     Counts::kPages},
    {"clients", [](const Call& call) { return list_clients(call.view, call.request); }, For::kEach, Changes::kNothing,
     Counts::kNothing},
    {"metrics", metrics_now, For::kMarud, Changes::kNothing, Counts::kPages},
    {"device.list", on_device, For::kMarud, Changes::kNothing, Counts::kNothing},
    {"device.add", on_device, For::kMarud, Changes::kSomething, Counts::kNothing},
    {"device.drain", on_device, For::kMarud, Changes::kSomething, Counts::kNothing},
    {"device.cancel", on_device, For::kMarud, Changes::kSomething, Counts::kNothing},
    {"device.remove", on_device, For::kMarud, Changes::kSomething, Counts::kNothing},
    {"client.fence", [](const Call& call) { return fence_client(call.view, call.request, call.who); }, For::kMarud,
     Changes::kSomething, Counts::kNothing},
    {"client.forget", [](const Call& call) { return forget_client(call.view, call.request, call.who); }, For::kMarud,
     Changes::kSomething, Counts::kNothing},
    {"policy", [](const Call& call) { return show_policy(*call.hosted); }, For::kPool, Changes::kNothing,
     Counts::kNothing},
    {"policy.set",
     [](const Call& call) { return set_policy(*call.hosted, call.request, call.view.now_unix_ms, call.view.removal); },
     For::kPool, Changes::kSomething, Counts::kNothing},
    {"regions", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"map", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"which", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"blocks", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"block", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"pins", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"check", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"evict", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"delete_tree", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"clear", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"memory.list", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"memory.poison", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"quota.get", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"quota.list", in_pool, For::kPool, Changes::kNothing, Counts::kPagesForFirstRows},
    {"quota.set", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"quota.remove", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
    {"quota.default", in_pool, For::kPool, Changes::kIfItHasLimits, Counts::kNothing},
    {"quota.mode", in_pool, For::kPool, Changes::kIfItHasLimits, Counts::kNothing},
    {"host.list", in_pool, For::kPool, Changes::kNothing, Counts::kNothing},
    {"host.declare_dead", in_pool, For::kPool, Changes::kSomething, Counts::kNothing},
};

bool changes(const Command& command, const json& request) {
  if (command.changes != Changes::kIfItHasLimits) return command.changes == Changes::kSomething;
  return request.contains("soft") || request.contains("hard") || request.contains("listed");
}

bool counts_pages(const Command& command, const json& request) {
  if (command.counts != Counts::kPagesForFirstRows) return command.counts == Counts::kPages;
  return !request.contains("cursor");
}

// A pool knows neither the names of processes nor its own, and counts the pages of no tenant only with all others.
void complete(const Call& call, json& reply) {
  const Pool& pool = *call.hosted->serving();
  for (const char* held : {"pins", "owners"})
    if (const auto rows = reply.find(held); rows != reply.end()) name_holders(call.view, pool, *rows);
  if (const uint64_t unproven = pool.unproven_lanes(); unproven != 0 && reply.contains("left_blocks"))
    reply["unproven_lanes"] = unproven;  // they may hold the blocks that are left
  if (call.command.name == "map") reply["pool"] = call.hosted->name();
  if (const auto others = reply.find("others_used_bytes"); others != reply.end())
    *others = others->get<uint64_t>() + census_of(call.view, *call.hosted).no_tenant_bytes;
}

AdminReply run_in_pool(Call call) {
  const AdminView& view = call.view;
  AdminReply no_pool;
  call.hosted = pool_of(view, call.request, no_pool);
  if (!call.hosted) return no_pool;
  if (!is_theirs(view, *call.hosted))
    return {EACCES, "neither the admin group nor the admins of pool \"" + call.hosted->name() + "\" name this user"};
  json reply = call.command.run(call);
  if (view.removal && *view.removal != 0) return reply.is_null() ? AdminReply{} : admin_reply(reply);
  complete(call, reply);
  if (changes(call.command, call.request))
    log_write(reply.contains("error") ? LogLevel::kWarning : LogLevel::kInfo,
              fmt::format("{} asked for \"{}\" on pool \"{}\": {}", call.who, call.command.name, call.hosted->name(),
                          printable(json_text(reply))));
  return admin_reply(reply);
}

AdminReply run(const AdminView& view, const std::string& name, const json& request, const std::string& who) {
  // Never another pool than was meant.
  if (const auto pool = request.find("pool"); pool != request.end() && !pool->is_string())
    return {EINVAL, "\"pool\" is the name of a pool"};
  const auto* const command = std::ranges::find(kCommands, name, &Command::name);
  if (command == std::end(kCommands)) return {EOPNOTSUPP, "there is no command \"" + printable(name) + "\""};
  if (command->whom == For::kMarud && view.only_for)
    return {EACCES, words_of(name) + " is for root, marud's own user and the admin group"};
  if (counts_pages(*command, request) && !view.censuses && view.can_wait) {
    AdminReply later;
    later.needs_census = true;
    return later;
  }
  const Call call = {view, *command, request, who};
  if (command->whom == For::kPool) return run_in_pool(call);
  AdminReply answer = admin_reply(command->run(call));
  if (command->run == on_device) answer.ticket = view.lifecycle->take_ticket();
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
  if (text.size() > wire::kPayloadBytesMax) return {EMSGSIZE, "the reply is too long: ask for less, with \"limit\""};
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
