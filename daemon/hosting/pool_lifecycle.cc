#include "daemon/hosting/pool_lifecycle.h"

#include "daemon/admin/commands.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/hosting/survey.h"
#include "daemon/memory/medium.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kDeadlineDefaultMs = 60'000, kDeadlineMaxMs = 86'400'000;
// A pool that is unavailable is tried again after so long, and then after twice as long each time.
constexpr uint64_t kRetryMs = 1'000, kRetryMaxMs = 60'000;
constexpr size_t kNamedMax = 16;      // clients, in one text
constexpr size_t kAdditionsMax = 64;  // threads that read descriptions of pools

bool is_memory(const PoolSpec& spec) { return spec.backend == Backend::kMemory; }
bool is_unavailable(const HostedPool* hosted) {
  return hosted && hosted->condition() == HostedPool::Condition::kUnavailable;
}

// The configured place of a pool: paths, in one spelling, and "uuid:..." alone, since several pools may want to have
// any device.
std::vector<std::string> places_of(const PoolSpec& spec) {
  std::vector<std::string> places;
  for (const std::string& place : {spec.path, spec.control_path, spec.dax.device, spec.dax.control_device})
    if (place.starts_with("/") || place.starts_with("uuid:"))
      places.push_back(place.starts_with("/") ? normal_path(place) : place);
  return places;
}

// The pool of this name, as the configuration describes it now, or as it is `known` where it describes none.
Result<std::vector<PoolSpec>> in_configuration(const std::string& name, Reading reading,
                                               const std::optional<PoolSpec>& known) {
  std::optional<Config> fresh = usable(std::move(reading));
  if (!fresh) return failure(EINVAL, "the configuration cannot be used; marud's log says why (marud --check-config)");
  std::erase_if(fresh->pools, [&](const PoolSpec& spec) { return spec.pool.name != name; });
  if (fresh->pools.empty() && known) fresh->pools.push_back(*known);
  if (fresh->pools.empty())
    return failure(ENOENT, "the configuration describes no pool \"" + printable(name) +
                               "\": write it there, or name a file that does");
  return std::move(fresh->pools);
}

std::string shared_place(const PoolSpec& one, const PoolSpec& other) {
  const auto places = places_of(other);
  for (const std::string& place : places_of(one))
    if (std::find(places.begin(), places.end(), place) != places.end()) return place;
  return {};
}

}  // namespace

PoolLifecycle::PoolLifecycle(const Config& config, HostedPools& pools, const LaneWatches& lanes,
                             const StateDirectory& state, Reread reread, LetIn let_in)
    : config_(config),
      pools_(pools),
      lanes_(lanes),
      state_(state),
      reread_(std::move(reread)),
      let_in_(std::move(let_in)) {}

HostedPool* PoolLifecycle::find(const std::string& name) const {
  for (const auto& hosted : pools_)
    if (hosted->name() == name && !hosted->is_gone()) return hosted.get();
  return nullptr;
}

size_t PoolLifecycle::index_of(const HostedPool& hosted) const {
  return size_t(std::find_if(pools_.begin(), pools_.end(), [&](const auto& one) { return one.get() == &hosted; }) -
                pools_.begin());
}

std::string PoolLifecycle::Client::text() const {
  return std::to_string(who.pid) + " (" +
         (watch          ? watch->command
          : is_elsewhere ? "of another pid namespace"
                         : command_of(who.pid)) +
         ")";
}

// The watches, and the lanes that have none.
std::vector<PoolLifecycle::Client> PoolLifecycle::clients_of(const HostedPool& hosted) const {
  const size_t index = index_of(hosted);
  std::vector<Client> clients;
  for (const auto& [id, watch] : lanes_.all())
    if (watch.pool == index) clients.push_back({watch.who, &watch});
  if (const Pool* pool = hosted.known())
    for (const Pool::AdoptedLane& lane : pool->live_lanes())
      if (!lanes_.find_lane(uint32_t(index), lane.lane)) clients.push_back({lane.who, nullptr, lane.is_elsewhere});
  return clients;
}

// -- adding -----------------------------------------------------------------------------------------------------------

// The reason against one more pool, or nothing.
std::string PoolLifecycle::why_not(const PoolSpec& spec) const {
  size_t there = 0;
  const auto used_by = [&](const PoolSpec& other) {
    const std::string place = shared_place(spec, other);
    return place.empty() ? place : "pool \"" + other.pool.name + "\" uses " + place + " already";
  };
  for (const auto& hosted : pools_) {
    if (hosted->is_gone() || hosted->name() == spec.pool.name) continue;
    ++there;
    if (std::string why = used_by(hosted->spec()); !why.empty()) return why;
  }
  for (const PoolSpec* opening : openings_.specs()) {
    if (!find(opening->pool.name)) ++there;
    if (std::string why = used_by(*opening); !why.empty()) return why;
  }
  if (there < limits::kPoolsMax) return {};
  return "found " + std::to_string(there) + " pools, expected fewer than " + std::to_string(limits::kPoolsMax) +
         " before one is added";
}

void PoolLifecycle::let_in() {
  Config all;
  all.admin_group = config_.admin_group;
  for (const auto& one : pools_)
    if (!one->is_gone()) all.pools.push_back(one->spec());
  let_in_(others_may_connect(all));
}

// The description names users and groups, and a name service answers when it likes.
json PoolLifecycle::add(const json& request, const std::string& who, bool of_owner) {
  if (additions_.size() >= kAdditionsMax) return refusal(EBUSY, "too many pools are being added already: try again");
  json reply = {{"reading", true}};
  additions_.reserve(kAdditionsMax);
  Addition addition = {};
  addition.who = who;
  addition.toml = text_in(request, "toml");
  Wanted failed = failure(ENOMEM, "read what is to be added");
  if (!addition.toml.empty()) {
    addition.wanted.begin(
        [toml = addition.toml, config = config_, of_owner] { return read_addition(toml, config, of_owner); },
        std::move(failed));
  } else {
    const std::string name = text_in(request, "name");
    const HostedPool* there = find(name);
    // It came from a file, unless the configuration has it.
    auto known = is_unavailable(there) ? std::optional(there->spec()) : std::nullopt;
    addition.wanted.begin([name, reread = reread_, known] { return in_configuration(name, reread(), known); },
                          std::move(failed));
  }
  // Nothing is thrown from here on: a ticket of an addition that was not begun would wait for ever.
  addition.ticket = ticket_ = ++last_ticket_;
  additions_.push_back(std::move(addition));
  return reply;
}

void PoolLifecycle::step_additions() {
  for (size_t i = 0; i < additions_.size();) {
    auto wanted = additions_[i].wanted.take();
    if (!wanted) {
      ++i;
      continue;
    }
    Addition addition = std::move(additions_[i]);
    additions_.erase(additions_.begin() + std::ptrdiff_t(i));
    const json reply = *wanted
                           ? open_added(addition.ticket, addition.who, std::move(addition.toml), std::move(**wanted))
                           : refusal(wanted->error().code, wanted->error().doing);
    if (!reply.contains("error")) continue;
    log_warning("{} asked for \"device.add\": refused: {}", addition.who, printable(reply.value("error", "")));
    answers_.push_back({addition.ticket, admin_reply(reply)});
  }
}

json PoolLifecycle::open_added(uint64_t ticket, const std::string& who, std::string toml, std::vector<PoolSpec> specs) {
  PoolOpenings::Opening opening;
  opening.specs = std::move(specs);
  for (PoolSpec& spec : opening.specs) {
    complete_spec(config_, spec);
    const std::string& name = spec.pool.name;
    opening.tries_again = toml.empty() && is_unavailable(find(name));
    if (find(name) && !opening.tries_again) return refusal(EEXIST, "there is a pool \"" + name + "\" already");
    if (openings_.find(name)) return refusal(EALREADY, "pool \"" + name + "\" is being opened already");
    if (const std::string why = why_not(spec); !why.empty()) return refusal(EBUSY, why);
  }
  if (auto held = state_.hold(); !held) return refusal(held.error().code, held.error().text());
  opening.ticket = ticket;
  opening.who = who;
  opening.added_as = std::move(toml);
  openings_.begin(std::move(opening), state_);
  return json::object();
}

// All pools of a request, or where one cannot be, those before it: each is said.
void PoolLifecycle::take_opened() {
  auto ended = openings_.take_ended(state_);
  for (PoolOpenings::Opening& opening : ended) {
    json added = json::array();
    for (auto& hosted : opening.opened) {
      if (opening.tries_again) log_info("pool \"{}\" is available", hosted->name());
      if (opening.tries_again) added.push_back(hosted->name());
      if (opening.record) refused_said_.clear();
      if (opening.takes_place()) {
        take_place(std::move(hosted));
        continue;
      }
      log_info("{} added pool \"{}\"", opening.who, hosted->name());
      added.push_back(hosted->name());
      removed_.erase(hosted->name());
      pools_.push_back(std::move(hosted));
    }
    json reply = {{"added", added}};
    if (opening.error) {
      const std::string text = opening.error->text();
      for (size_t i = added.size(); i < opening.specs.size(); ++i) {
        const std::string& name = opening.specs[i].pool.name;
        if (opening.record) {
          if (std::exchange(refused_said_, text) != text)
            log_warning("pool \"{}\" waits on: the memory that {} handed back is refused: {}", name, opening.who, text);
          continue;
        }
        if (opening.begins_anew) {
          log_error("pool \"{}\" cannot begin anew, its clients go on waiting: {}", name, text);
          continue;
        }
        if (opening.tries_again) {
          if (find(name)->set_unavailable(opening.specs[i], *opening.error))
            log_error("pool \"{}\" stays unavailable: {}", name, text);
          continue;
        }
        if (opening.is_configured && opening.error->code != ECANCELED) {  // as at marud's start
          say_that_it_is_without(opening.specs[i], *opening.error);
          pools_.push_back(HostedPool::unavailable(opening.specs[i], state_, *opening.error));
          continue;
        }
        log_error("{} cannot add pool \"{}\": {}", opening.who, name, text);
        if (opening.error->code == ECANCELED) continue;  // marud was told to stop: the next one goes on
        if (auto forgotten = state_.forget_added(name); !forgotten) log_warning("{}", forgotten.error().text());
      }
      reply = refusal(opening.error->code, added.empty() ? text : "added " + json_text(added) + ", and then: " + text);
    }
    if (opening.ticket != 0) answers_.push_back({opening.ticket, admin_reply(reply)});
  }
  if (!ended.empty()) let_in();
}

std::vector<HostedPool*> PoolLifecycle::end_openings() {
  std::vector<HostedPool*> came;
  // The next marud begins again with a pool that was cut off, if it was written down.
  for (PoolOpenings::Opening& opening : openings_.end())
    for (auto& hosted : opening.opened) {
      came.push_back(hosted.get());
      opening.takes_place() ? take_place(std::move(hosted)) : pools_.push_back(std::move(hosted));
    }
  return came;
}

void PoolLifecycle::begin_anew(const HostedPool& waiting) {
  openings_.begin({.who = "marud", .specs = {waiting.spec()}, .begins_anew = true}, state_);
}

void PoolLifecycle::begin_adoption(const HostedPool& waiting, std::unique_ptr<Device> memory, const std::string& who) {
  PoolOpenings::Opening opening = {.who = who, .specs = {waiting.spec()}};
  opening.memory = std::move(memory);
  opening.record = waiting.record();
  openings_.begin(std::move(opening), state_);
}

// Only a pool that is unavailable; it stays in its place until it is open.
void PoolLifecycle::try_again(const PoolSpec& spec) {
  openings_.begin({.who = "marud", .specs = {spec}, .tries_again = true}, state_);
}

void PoolLifecycle::step_unavailable(Moment now) {
  for (const auto& hosted : pools_) {
    if (!is_unavailable(hosted.get()) || !hosted->may_become_available() || openings_.find(hosted->name())) continue;
    Retry& retry = retries_[hosted->name()];
    const bool is_first = retry.pause_ms == 0;
    if (!is_first && now.monotonic_ms < retry.due_ms) continue;
    retry.pause_ms = is_first ? kRetryMs : std::min(2 * retry.pause_ms, kRetryMaxMs);
    retry.due_ms = now.monotonic_ms + retry.pause_ms;
    if (!is_first) try_again(hosted->spec());
  }
}

// No command removes a pool that waits, or hands it memory while it begins anew; but its access lists may be others by
// now.
void PoolLifecycle::take_place(std::unique_ptr<HostedPool> hosted) {
  std::unique_ptr<HostedPool>& place = pools_[index_of(*find(hosted->name()))];
  hosted->set_access(place->spec());
  retries_.erase(hosted->name());
  place = std::move(hosted);
}

std::vector<std::string> PoolLifecycle::rescan(const Config& fresh) {
  std::vector<std::string> left;
  for (const PoolSpec& wanted : fresh.pools) {
    PoolSpec spec = wanted;
    complete_spec(config_, spec);
    const std::string& name = spec.pool.name;
    if (openings_.find(name)) continue;
    if (is_unavailable(find(name))) try_again(spec);
    if (find(name)) continue;
    if (removed_.contains(name)) {
      log_info("pool \"{}\" was removed and stays so (marudctl device add {} starts it)", name, name);
      continue;
    }
    std::string why = why_not(spec);
    if (why.empty())
      if (auto held = state_.hold(); !held) why = held.error().text();
    if (why.empty()) {
      log_info("pool \"{}\" is new in the configuration and is started", name);
      openings_.begin({.who = "SIGHUP", .specs = {spec}, .is_configured = true}, state_);
    } else {
      left.push_back("pool \"" + name + "\" is new in the configuration and cannot be started: " + why);
    }
  }
  for (const auto& hosted : pools_) {
    const auto is_same = [&](const PoolSpec& spec) { return spec.pool.name == hosted->name(); };
    if (!hosted->is_gone() && !state_.is_added(hosted->name()) &&
        std::none_of(fresh.pools.begin(), fresh.pools.end(), is_same))
      left.push_back("pool \"" + hosted->name() + "\" is not in the configuration and goes on (marudctl device drain " +
                     hosted->name() + ", then remove)");
  }
  return left;
}

// -- removing ---------------------------------------------------------------------------------------------------------

Notice PoolLifecycle::leave_notice(uint64_t session, HostedPool& hosted, Moment now) const {
  const uint64_t until_ms = hosted.leaving().deadline_ms;
  const wire::PoolLeaves message = {until_ms > now.monotonic_ms ? until_ms - now.monotonic_ms : 0};
  return {session, {wire::encode(wire::Type::kPoolLeaves, 0, 0, wire::bytes_of(message)), {}}};
}

json PoolLifecycle::remove(HostedPool& hosted, const json& request, const std::string& who, Moment now) {
  PoolRemoval removal = {0, &hosted, std::min(number_in(request, "deadline_ms", kDeadlineDefaultMs), kDeadlineMaxMs),
                         flag_in(request, "fence"), who};
  if (hosted.condition() == HostedPool::Condition::kWaiting) {
    const std::string name = hosted.name();
    if (openings_.find(name))
      return refusal(EBUSY, "pool \"" + name + "\" is being opened: wait until it serves (marudctl device list)");
    if (!flag_in(request, "discard"))
      return refusal(ENOTEMPTY, "pool \"" + name +
                                    "\" waits for its memory, and its blocks would be lost: remove it when a client "
                                    "has handed that back, or confirm with --yes");
  }
  if (!hosted.serving() || !is_memory(hosted.spec()) || flag_in(request, "discard")) return ask_to_leave(removal, now);
  removal.ticket = ticket_ = ++last_ticket_;
  removals_.push_back(std::move(removal));
  return {{"looking", true}};
}

// One removal after the other. A pool whose memory went away meanwhile has no blocks.
bool PoolLifecycle::step_removals(Moment now) {
  if (removals_.empty()) return false;
  PoolRemoval& removal = removals_.front();
  HostedPool& hosted = *removal.hosted;
  const Pool* pool = hosted.serving();
  const auto& states = removal.census.states;
  const bool is_complete = !pool || pool->take_census(removal.census, Survey::kPagesPerTurn);
  const bool has_blocks = states[size_t(format::PageState::kReady)] + states[size_t(format::PageState::kRetiring)] != 0;
  if (!has_blocks && !is_complete) return true;
  json reply;
  if (hosted.is_gone())
    reply = refusal(ENOENT, "pool \"" + hosted.name() + "\" was removed meanwhile");
  else if (has_blocks)
    reply = refusal(ENOTEMPTY, "pool \"" + hosted.name() +
                                   "\" holds blocks, which are lost with its memory: drain it first (marudctl device "
                                   "drain " +
                                   hosted.name() + "), or confirm with --yes");
  else
    reply = ask_to_leave(removal, now);
  if (reply.contains("error")) log_warning("{} asked to remove pool \"{}\": refused", removal.who, hosted.name());
  answers_.push_back({removal.ticket, admin_reply(reply)});
  removals_.erase(removals_.begin());
  return !removals_.empty();
}

json PoolLifecycle::ask_to_leave(const PoolRemoval& removal, Moment now) {
  HostedPool& hosted = *removal.hosted;
  const uint64_t deadline_ms = removal.deadline_ms;
  if (auto left = hosted.leave(now.monotonic_ms + deadline_ms, removal.fences); !left)
    return refusal(left.error().code, left.error().doing);
  const auto clients = clients_of(hosted);
  for (const Client& client : clients)
    if (client.watch && client.watch->session != 0)
      notices_.push_back(leave_notice(client.watch->session, hosted, now));
  log_info("{} removes pool \"{}\": {} clients are asked to leave within {} s", removal.who, hosted.name(),
           clients.size(), deadline_ms / 1000);
  const std::string name = hosted.name();
  step_leaving(now);
  return {{"pool", name}, {"clients", clients.size()}, {"deadline_ms", deadline_ms}};
}

// A pool that was added at run time and could not be started again.
json PoolLifecycle::forget(const std::string& name, const std::string& who) {
  if (auto forgotten = state_.forget_added(name); !forgotten)
    return refusal(forgotten.error().code, forgotten.error().text());
  log_info("{} removes pool \"{}\", which did not serve: it is not started again", who, name);
  return {{"pool", name}, {"clients", 0}, {"forgotten", true}};
}

void PoolLifecycle::end_clients(HostedPool& hosted) {
  hosted.leaving().is_fenced = true;
  for (const Client& client : clients_of(hosted)) {
    // Any process that may write to the pool may have written its words: they are no reason to end a process.
    const auto ended = client.has_attached() ? end_process(client.watch->pidfd.get())
                                             : failure(EACCES,
                                                       "end a process that has not attached since marud was "
                                                       "started: only the pool says that it is a client");
    if (ended || ended.error().code == ESRCH)
      log_warning("process {} did not leave pool \"{}\" in time: it gets SIGKILL", client.text(), hosted.name());
    else
      log_error("process {} did not leave pool \"{}\" in time and cannot be ended: {}", client.text(), hosted.name(),
                ended.error().text());
  }
}

bool PoolLifecycle::step(Moment now) {
  step_additions();
  step_changes(now);
  take_opened();
  step_unavailable(now);
  const bool more_to_do = step_removals(now);
  step_leaving(now);
  return more_to_do;
}

void PoolLifecycle::step_leaving(Moment now) {
  for (const auto& hosted : pools_) {
    if (hosted->condition() != HostedPool::Condition::kLeaving) continue;
    if (is_changing(*hosted)) continue;  // it may stay after all: that is being written down
    const auto clients = clients_of(*hosted);
    HostedPool::Leave& leave = hosted->leaving();
    if (clients.empty()) {
      if (hosted->serving() && hosted->serving()->is_reclaiming()) continue;  // its turns go on with it
      if (hosted->is_writing_limits()) continue;
      if (!hosted->is_written_out()) continue;
      removed_.insert(hosted->name());
      hosted->has_ended();
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
      who += (who.empty() ? "" : ", ") + clients[i].text();
    if (clients.size() > kNamedMax) who += " and " + std::to_string(clients.size() - kNamedMax) + " more";
    const bool is_all = std::all_of(clients.begin(), clients.end(), [](const Client& c) { return c.has_attached(); });
    hosted->stay("at the deadline these processes still used it: " + who +
                 (leave.is_fenced && !is_all ? "; marud does not end processes that have not attached since it was "
                                               "started, since only the pool says that they are clients"
                                             : ""));
  }
}

// -- commands ---------------------------------------------------------------------------------------------------------

json PoolLifecycle::list(Moment now) const {
  json rows = json::array();
  for (const auto& hosted : pools_) {
    if (hosted->is_gone()) continue;
    json row = {{"pool", hosted->name()},
                {"condition", condition_text(hosted->condition())},
                {"backend", backend_text(hosted->spec().backend)},
                {"clients", clients_of(*hosted).size()}};
    if (Pool* pool = hosted->serving()) {
      row["medium"] = medium_of(pool->device());
      row["device"] = pool->device().name();
      row["size_bytes"] = pool->device().bytes();
      row.update(pool->drain_json());
    }
    if (hosted->condition() == HostedPool::Condition::kLeaving) {
      const uint64_t until_ms = hosted->leaving().deadline_ms;
      row["deadline_ms"] = until_ms > now.monotonic_ms ? until_ms - now.monotonic_ms : 0;
    }
    if (is_adopting(*hosted))
      row["note"] = "its memory was handed back, and is looked through";
    else if (begins_anew(*hosted))
      row["note"] = "nobody handed its memory back: it begins anew";
    else if (hosted->condition() == HostedPool::Condition::kLeaving && hosted->is_writing_limits())
      row["note"] = "limits of its tenants are being written down";
    if (!hosted->stays_because().empty()) row["note"] = hosted->stays_because();
    if (const std::string& reason = hosted->reason(); !reason.empty())
      row["note"] = hosted->stays_because().empty() ? reason : reason + "; " + hosted->stays_because();
    rows.push_back(std::move(row));
  }
  for (const PoolSpec* spec : openings_.specs())
    if (!find(spec->pool.name))
      rows.push_back({{"pool", spec->pool.name},
                      {"condition", "opening"},
                      {"backend", backend_text(spec->backend)},
                      {"clients", 0},
                      {"note", "it is looked at, formatted or verified; marud's log says how far that is"}});
  return {{"devices", std::move(rows)}};
}

json PoolLifecycle::run(const std::string& command, const json& request, const std::string& who, Moment now,
                        bool of_owner) {
  ticket_ = 0;  // of an earlier command that ended with an exception: no caller has taken it
  if (command == "device.list") return list(now);
  if (command == "device.add") return add(request, who, of_owner);
  const bool is_known = command == "device.drain" || command == "device.cancel" || command == "device.remove";
  if (!is_known) return refusal(EOPNOTSUPP, "there is no command \"" + printable(command) + "\"");
  const std::string name = text_in(request, "name");
  HostedPool* hosted = find(name);
  if ((!hosted || is_unavailable(hosted)) && openings_.find(name))
    return refusal(EBUSY, "pool \"" + name + "\" is being opened: wait until it serves (marudctl device list)");
  if (!hosted && command == "device.remove" && state_.is_added(name)) return forget(name, who);
  if (!hosted) return refusal(ENOENT, "there is no pool \"" + printable(name) + "\" (marudctl device list names them)");
  if (is_changing(*hosted))
    return refusal(EBUSY, "pool \"" + name + "\" is being drained or called back just now: try again");
  if (command == "device.remove") return remove(*hosted, request, who, now);
  return change(*hosted, command == "device.drain", who);
}

// -- draining ---------------------------------------------------------------------------------------------------------

bool PoolLifecycle::is_changing(const HostedPool& hosted) const {
  return std::any_of(changes_.begin(), changes_.end(), [&](const Change& one) { return one.hosted == &hosted; });
}

void PoolLifecycle::save_draining(Change& change) {
  change.saved.begin([state = state_, name = change.hosted->name(),
                      drains = change.drains] { return state.save_draining(name, drains); },
                     failure(ENOMEM, "write down whether the pool is drained"));
}

json PoolLifecycle::change(HostedPool& hosted, bool drains, const std::string& who) {
  const auto may = drains ? hosted.may_drain() : hosted.may_cancel();
  if (!may) return refusal(may.error().code, may.error().doing);
  const auto condition = drains ? HostedPool::Condition::kDraining : HostedPool::Condition::kServing;
  if (hosted.condition() == condition) return {{"pool", hosted.name()}, {"condition", condition_text(condition)}};
  changes_.reserve(changes_.size() + 1);
  json reply = {{"pool", hosted.name()}};
  Change begun = {last_ticket_ + 1, &hosted, drains, who, {}};
  save_draining(begun);
  // Nothing is thrown from here on: a change that is not begun would never end, and the pool would be changing for
  // ever. This turn still looks whether it is written down.
  ticket_ = ++last_ticket_;
  changes_.push_back(std::move(begun));
  return reply;
}

void PoolLifecycle::step_changes(Moment now) {
  for (size_t i = 0; i < changes_.size();) {
    Change& change = changes_[i];
    if (!change.saved.is_begun()) save_draining(change);  // an exception came after it had been taken
    const auto saved = change.saved.take();
    if (!saved) {
      ++i;
      continue;
    }
    HostedPool& hosted = *change.hosted;
    const char* command = change.drains ? "device.drain" : "device.cancel";
    const auto done = !*saved              ? *saved
                      : change.ticket == 0 ? Result<void>()
                      : change.drains      ? hosted.drain(now.unix_ms)
                                           : hosted.cancel(now.unix_ms);
    json reply = {{"pool", hosted.name()}, {"condition", condition_text(hosted.condition())}};
    if (!done)  // only a pool that is not in the condition for it is said in full
      reply = refusal(done.error().code, *saved ? done.error().doing : done.error().text());
    if (change.ticket == 0) {
      if (!done) log_error("pool \"{}\": {}", hosted.name(), done.error().text());
    } else {
      if (done)
        log_info("{} asked for \"{}\" of pool \"{}\"", change.who, command, hosted.name());
      else
        log_warning("{} asked for \"{}\": refused: {}", change.who, command, printable(reply.value("error", "")));
      answers_.push_back({change.ticket, admin_reply(reply)});
    }
    if (!done && *saved && change.drains) {  // it went another way meanwhile, and the file must not say that it drains
      change.ticket = 0;
      change.drains = false;
      save_draining(change);
      continue;
    }
    changes_.erase(changes_.begin() + std::ptrdiff_t(i));
  }
}

}  // namespace maru::daemon
