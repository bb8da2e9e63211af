#include "daemon/device_commands.h"

#include "daemon/admin_commands.h"
#include "daemon/admin_request.h"
#include "daemon/log.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kDeadlineDefaultMs = 60'000, kDeadlineMaxMs = 86'400'000;
constexpr size_t kNamedMax = 16;  // clients, in one text

bool is_memory(const PoolSpec& spec) { return spec.backend == Backend::kMemory; }

std::string problems_text(const std::vector<ConfigProblem>& problems) {
  std::string text;
  for (const ConfigProblem& problem : problems)
    text += (text.empty() ? "" : "; ") + (problem.line > 0 ? "line " + std::to_string(problem.line) + ": " : "") +
            problem.text;
  return text;
}

}  // namespace

DeviceCommands::DeviceCommands(const Config& config, HostedPools& pools, const LaneWatches& lanes,
                               const StateDirectory& state, Reread reread, LetIn let_in)
    : config_(config),
      pools_(pools),
      lanes_(lanes),
      state_(state),
      reread_(std::move(reread)),
      let_in_(std::move(let_in)) {}

HostedPool* DeviceCommands::find(const std::string& name) const {
  for (const auto& hosted : pools_)
    if (hosted->name() == name && !hosted->is_gone()) return hosted.get();
  return nullptr;
}

size_t DeviceCommands::index_of(const HostedPool& hosted) const {
  return size_t(std::find_if(pools_.begin(), pools_.end(), [&](const auto& one) { return one.get() == &hosted; }) -
                pools_.begin());
}

std::vector<const LaneWatch*> DeviceCommands::clients_of(const HostedPool& hosted) const {
  const size_t index = index_of(hosted);
  std::vector<const LaneWatch*> clients;
  for (const auto& [id, watch] : lanes_.all())
    if (watch.pool == index) clients.push_back(&watch);
  return clients;
}

// -- adding -----------------------------------------------------------------------------------------------------------

// What stands against one more pool.
std::string DeviceCommands::why_not(const PoolSpec& spec) const {
  size_t there = 0;
  for (const auto& hosted : pools_) {
    if (hosted->is_gone()) continue;
    ++there;
    if (!spec.path.empty() && hosted->spec().path == spec.path)
      return "pool \"" + hosted->name() + "\" uses " + spec.path + " already";
  }
  if (there < limits::kPoolsMax) return {};
  return "found " + std::to_string(there) + " pools, expected fewer than " + std::to_string(limits::kPoolsMax) +
         " before one is added";
}

// Blocks until the pool is formatted or adopted, as at marud's start.
Result<void> DeviceCommands::start(const PoolSpec& spec, Moment now) {
  const bool had_memory = std::any_of(config_.pools.begin(), config_.pools.end(), is_memory);
  if (is_memory(spec) && !had_memory && !state_lock_.is_open()) {
    auto locked = state_.lock();
    if (!locked) return tl::unexpected(locked.error());
    state_lock_ = std::move(*locked);
  }
  std::map<std::string, FileDescriptor> none;
  auto hosted = HostedPool::start(spec, state_, none, now.unix_ms);
  if (!hosted) return tl::unexpected(hosted.error());
  pools_.push_back(std::move(*hosted));
  removed_.erase(spec.pool.name);
  Config all = config_;
  all.pools.clear();
  for (const auto& one : pools_)
    if (!one->is_gone()) all.pools.push_back(one->spec());
  let_in_(others_may_connect(all));
  return {};
}

json DeviceCommands::add(const json& request, const std::string& who, Moment now) {
  std::optional<Config> fresh;
  std::vector<ConfigProblem> problems;
  if (const std::string toml = text_in(request, "toml"); !toml.empty()) {
    fresh = parse_config(toml, problems);
    for (PoolSpec& spec : fresh->pools) spec.pool.policy_dir = config_.policy_dir;
    if (problems.empty()) check_policies(fresh->pools, problems);
    if (!problems.empty()) return refusal(EINVAL, "the file cannot be used: " + problems_text(problems));
  } else {
    fresh = reread_();
    if (!fresh) return refusal(EINVAL, "the configuration cannot be used; marud's log says why (marud --check-config)");
    const std::string name = text_in(request, "name");
    std::erase_if(fresh->pools, [&](const PoolSpec& spec) { return spec.pool.name != name; });
    if (fresh->pools.empty())
      return refusal(ENOENT, "the configuration describes no pool \"" + printable(name) +
                                 "\": write it there, or name a file that does");
  }
  // All or, where one cannot be, those before it: each is said.
  json added = json::array();
  for (const PoolSpec& spec : fresh->pools) {
    const std::string& name = spec.pool.name;
    if (find(name)) return refusal(EEXIST, "there is a pool \"" + name + "\" already");
    if (const std::string why = why_not(spec); !why.empty()) return refusal(EBUSY, why);
  }
  for (const PoolSpec& spec : fresh->pools) {
    if (auto started = start(spec, now); !started) return refusal(started.error().code, started.error().text());
    log_info("{} added pool \"{}\"", who, spec.pool.name);
    added.push_back(spec.pool.name);
  }
  return {{"added", std::move(added)}};
}

void DeviceCommands::rescan(const Config& fresh, Moment now) {
  for (const PoolSpec& spec : fresh.pools) {
    const std::string& name = spec.pool.name;
    if (find(name)) continue;
    if (removed_.contains(name)) {
      log_info("pool \"{}\" was removed and stays so (marudctl device add {} starts it)", name, name);
      continue;
    }
    std::string why = why_not(spec);
    if (why.empty())
      if (auto started = start(spec, now); !started) why = started.error().text();
    if (why.empty())
      log_info("pool \"{}\" is new in the configuration and was started", name);
    else
      log_error("pool \"{}\" is new in the configuration and cannot be started: {}", name, why);
  }
  for (const auto& hosted : pools_) {
    const auto is_same = [&](const PoolSpec& spec) { return spec.pool.name == hosted->name(); };
    if (!hosted->is_gone() && std::none_of(fresh.pools.begin(), fresh.pools.end(), is_same))
      log_warning("pool \"{}\" is not in the configuration and goes on (marudctl device drain {}, then remove)",
                  hosted->name(), hosted->name());
  }
}

// -- removing ---------------------------------------------------------------------------------------------------------

Notice DeviceCommands::leave_notice(uint64_t session, HostedPool& hosted, Moment now) const {
  const uint64_t until_ms = hosted.leaving().deadline_ms;
  const wire::PoolLeaves message = {until_ms > now.monotonic_ms ? until_ms - now.monotonic_ms : 0};
  return {session, {wire::encode(wire::Type::kPoolLeaves, 0, 0, wire::bytes_of(message)), {}}};
}

json DeviceCommands::remove(HostedPool& hosted, const json& request, const std::string& who, Moment now) {
  const uint64_t deadline_ms = std::min(number_in(request, "deadline_ms", kDeadlineDefaultMs), kDeadlineMaxMs);
  Pool* pool = hosted.serving();
  if (pool && is_memory(hosted.spec()) && !flag_in(request, "discard")) {
    const uint64_t blocks = pool->status_json(now.unix_ms).value("blocks", uint64_t{0});
    if (blocks != 0)
      return refusal(ENOTEMPTY, "pool \"" + hosted.name() + "\" holds " + std::to_string(blocks) +
                                    " blocks, which are lost with its memory: drain it first (marudctl device drain " +
                                    hosted.name() + "), or confirm with --yes");
  }
  if (auto left = hosted.leave(now.monotonic_ms + deadline_ms, flag_in(request, "fence")); !left)
    return refusal(left.error().code, left.error().doing);
  const auto clients = clients_of(hosted);
  for (const LaneWatch* client : clients)
    if (client->session != 0) notices_.push_back(leave_notice(client->session, hosted, now));
  log_info("{} removes pool \"{}\": {} clients are asked to leave within {} s", who, hosted.name(), clients.size(),
           deadline_ms / 1000);
  const std::string name = hosted.name();
  if (hosted.is_gone()) removed_.insert(name);  // it was fenced
  step(now);
  return {{"pool", name}, {"clients", clients.size()}, {"deadline_ms", deadline_ms}};
}

void DeviceCommands::end_clients(HostedPool& hosted) {
  hosted.leaving().is_fenced = true;
  for (const LaneWatch* client : clients_of(hosted)) {
    const auto ended = end_process(client->pidfd.get());
    if (ended || ended.error().code == ESRCH)
      log_warning("process {} ({}) did not leave pool \"{}\" in time: it gets SIGKILL", client->who.pid,
                  client->command, hosted.name());
    else
      log_error("process {} ({}) did not leave pool \"{}\" in time and cannot be ended: {}", client->who.pid,
                client->command, hosted.name(), ended.error().text());
  }
}

void DeviceCommands::step(Moment now) {
  for (const auto& hosted : pools_) {
    if (hosted->condition() != HostedPool::Condition::kLeaving) continue;
    const auto clients = clients_of(*hosted);
    HostedPool::Leave& leave = hosted->leaving();
    if (clients.empty()) {
      removed_.insert(hosted->name());
      hosted->end();
      continue;
    }
    if (now.monotonic_ms < leave.deadline_ms) continue;
    if (leave.fences && !leave.is_fenced) {
      end_clients(*hosted);
      leave.deadline_ms = now.monotonic_ms + kDeadlineDefaultMs;  // for their ends to be seen
      continue;
    }
    std::string who;
    for (size_t i = 0; i < std::min(clients.size(), kNamedMax); ++i)
      who += (who.empty() ? "" : ", ") + std::to_string(clients[i]->who.pid) + " (" + clients[i]->command + ")";
    if (clients.size() > kNamedMax) who += " and " + std::to_string(clients.size() - kNamedMax) + " more";
    hosted->stay("at the deadline these processes still used it: " + who);
  }
}

// -- commands ---------------------------------------------------------------------------------------------------------

json DeviceCommands::list(Moment now) const {
  json rows = json::array();
  for (const auto& hosted : pools_) {
    if (hosted->is_gone()) continue;
    json row = {{"pool", hosted->name()},
                {"condition", condition_text(hosted->condition())},
                {"backend", is_memory(hosted->spec()) ? "memory" : "file"},
                {"clients", clients_of(*hosted).size()}};
    if (Pool* pool = hosted->serving()) {
      row["device"] = pool->device().name();
      row["size_bytes"] = pool->device().bytes();
      row.update(pool->drain_json());
    }
    if (hosted->condition() == HostedPool::Condition::kLeaving) {
      const uint64_t until_ms = hosted->leaving().deadline_ms;
      row["deadline_ms"] = until_ms > now.monotonic_ms ? until_ms - now.monotonic_ms : 0;
    }
    if (!hosted->stays_because().empty()) row["note"] = hosted->stays_because();
    if (hosted->condition() == HostedPool::Condition::kFenced) row["note"] = hosted->fenced_because();
    rows.push_back(std::move(row));
  }
  return {{"devices", std::move(rows)}};
}

json DeviceCommands::run(const std::string& command, const json& request, const std::string& who, Moment now) {
  if (command == "device.list") return list(now);
  if (command == "device.add") return add(request, who, now);
  const bool is_known = command == "device.drain" || command == "device.cancel" || command == "device.remove";
  if (!is_known) return refusal(EOPNOTSUPP, "there is no command \"" + printable(command) + "\"");
  const std::string name = text_in(request, "name");
  HostedPool* hosted = find(name);
  if (!hosted) return refusal(ENOENT, "there is no pool \"" + printable(name) + "\" (marudctl device list names them)");
  if (command == "device.remove") return remove(*hosted, request, who, now);
  const auto done = command == "device.drain" ? hosted->drain(now.unix_ms) : hosted->cancel(now.unix_ms);
  if (!done) return refusal(done.error().code, done.error().doing);
  log_info("{} asked for \"{}\" of pool \"{}\"", who, command, name);
  return {{"pool", name}, {"condition", condition_text(hosted->condition())}};
}

}  // namespace maru::daemon
