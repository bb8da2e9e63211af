// A pool that several hosts share, each with a marud of its own: the claim on a slot, the watch over the other hosts, and
// regions that pass from one to another. docs/format.md, "Hosts", has the words and the steps.
//
// A heartbeat that stands still makes a host suspect and nothing more, for a host that is slow or cut off goes on writing into
// pages that it holds. Only proof takes anything from it: the fencing command, an administrator, or its own next boot.
#include "daemon/pool/hosts/pool_hosts.h"

#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"
#include "daemon/system/boot_id.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::daemon {
namespace {

using nlohmann::json;
using shm::HostClaim;
using shm::HostState;

std::string machine_id_text(const SharingConfig& sharing) {
  if (!sharing.machine_id.empty()) return sharing.machine_id;
  std::string line;
  std::ifstream file("/etc/machine-id");
  std::getline(file, line);
  return line;
}

// FNV-1a, keyed with the pool's secret: the id of a machine is nobody's business who may read the pool.
uint64_t machine_hash(const std::string& text, uint64_t secret) {
  uint64_t hash = 0xcbf29ce484222325 ^ secret;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

using OwnName = std::array<char, sizeof(format::HostRecord::name)>;

// Of this machine, as far as a record has room for it.
OwnName own_name() {
  OwnName name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name;
}

void write_name(format::HostRecord& record) {
  const OwnName name = own_name();
  for (size_t i = 0; i < std::size(record.name); ++i) {
    uint64_t word;
    std::memcpy(&word, name.data() + 8 * i, 8);
    record.name[i].store_relaxed(word);  // for people
  }
}

std::string name_in(const format::HostRecord& record) {
  char name[sizeof(record.name) + 1] = {};
  for (size_t i = 0; i < std::size(record.name); ++i) {
    const uint64_t word = record.name[i].load_relaxed();  // for people
    std::memcpy(name + 8 * i, &word, 8);
  }
  return printable(std::string(name));
}

std::string boot_id_text(uint64_t high, uint64_t low) {
  char text[40];
  std::snprintf(text, sizeof(text), "%08x-%04x-%04x-%04x-%012llx", unsigned(high >> 32), unsigned(high >> 16 & 0xFFFF),
                unsigned(high & 0xFFFF), unsigned(low >> 48), static_cast<unsigned long long>(low & 0xFFFF'FFFF'FFFF));
  return text;
}

const char* state_name(HostState state) {
  switch (state) {
    case HostState::kFree: return "free";
    case HostState::kLive: return "live";
    case HostState::kSuspect: return "suspect";
    case HostState::kDead: return "dead";
    case HostState::kAttaching: return "attaching";
  }
  return "damaged";
}

void wait_ms(uint64_t ms) {
  timespec left = {time_t(ms / 1000), long(ms % 1000) * 1'000'000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

uint32_t machine_number(const SharingConfig& sharing) {
  return uint32_t(machine_hash(machine_id_text(sharing), 0) >> 33) + 1;
}

// -- the own slot -----------------------------------------------------------------------------------------------------

// Steps 2 and 3 of "Attach of a host". Blocks for kTwinWatchMs where the machine seems to have been booted again.
Result<void> Pool::State::claim_slot() {
  hosts.watches.assign(core.region.hosts(), {});
  core.epoch = core.region.host(0).epoch.load_relaxed() + 1;  // any value will do: the last marud is gone
  if (!core.region.is_shared()) return {};
  const auto refuse = [&](int code, const std::string& why) {
    return failure(code, "attach this host to shared pool \"" + core.config.name + "\": " + why);
  };
  hosts.machine_text = machine_id_text(core.config.sharing);
  if (hosts.machine_text.empty())
    return refuse(ENOENT, "found no machine id in /etc/machine-id, expected one (systemd-machine-id-setup writes it)");
  hosts.boot_text = core.config.sharing.boot_id.empty() ? current_boot_id() : core.config.sharing.boot_id;
  hosts.machine_id = machine_hash(hosts.machine_text, core.region.secret()[0]);
  for (int tries = 0; tries < 64; ++tries) {  // a failed claim is another host's success, of which there are few
    const auto [slot, claim] = shm::choose_slot(core.region, hosts.machine_id);
    if (slot == core.region.hosts())
      return refuse(EUSERS, "all of its " + std::to_string(core.region.hosts()) +
                                " host slots are taken; see `marudctl host list` on one of the hosts");
    const format::HostRecord& record = core.region.host(slot);
    if (claim.is_in_use() &&
        (record.boot_id_lo.load_relaxed() != core.boot_id[0] || record.boot_id_hi.load_relaxed() != core.boot_id[1])) {
      const uint64_t heartbeat = record.heartbeat_ms.load_acquire();
      wait_ms(kTwinWatchMs);
      if (record.heartbeat_ms.load_acquire() != heartbeat)
        return refuse(EADDRINUSE, "host " + std::to_string(slot) + " (" + name_in(record) +
                                      ") has the same machine id and is alive: two machines have the same "
                                      "/etc/machine-id (remove the copied one and run systemd-machine-id-setup)");
      log_warning("pool \"{}\": this machine was booted again: what it held as host {} before is taken back",
                  core.config.name, slot);
    }
    if (!shm::claim_host(core.region, slot, claim, hosts.machine_id)) continue;
    core.host = slot;
    core.host_generation = claim.generation() + 1;
    format::HostRecord& own = core.region.host(slot);
    write_machine_id();
    const HostClaim begun = shm::read_claim(core.region, slot);
    if (begun.generation() != core.host_generation ||
        (!begun.is_in_use() && !shm::finish_attach(core.region, slot, begun)))
      continue;                                 // it took so long that others ended it
    core.epoch = own.epoch.load_relaxed() + 1;  // as above
    write_name(own);
    own.wanted.store_release(0);
    own.clean.store_release(0);
    hosts.heartbeat = std::make_unique<Heartbeat>(core.region, slot, core.host_generation);
    return {};
  }
  return refuse(EAGAIN, "its host slots change faster than they can be read");
}

// Without it this machine would not know its slot again.
void Pool::State::write_machine_id() {
  format::HostRecord& own = core.region.host(core.host);
  if (own.machine_id.load_acquire() == hosts.machine_id) return;
  own.machine_id.store_release(hosts.machine_id);
  shm::flush(core.region, own);
}

// The end of marud, which holds the slot. With a client left it stays taken, for the next marud of this machine.
void Pool::State::leave_slot() {
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane)
    if (lanes.records[lane].phase != LaneRecord::Phase::kFree) return;
  retired.finish_all();
  if (retired.size() != 0 || hosts.reclaim.host != kNoHost || !hosts.waiting.empty()) return;
  for (uint32_t i : regions.own_regions())
    if (regions[i].state != RegionState::kUnused) grants.settle_region(i);
  shm::clear_lane(core.region, lanes.first);  // its totals are of this host, and the slot may be another one's next
  lanes.show_lane(lanes.first, format::LaneState::kFree);
  shm::set_lane_bit(core.region, lanes.first, false);
  format::HostRecord& own = core.region.host(core.host);
  own.machine_id.store_release(0);
  shm::flush(core.region, own);
  shm::leave_host(core.region, core.host, core.host_generation);
}

bool Pool::State::is_own_slot_lost() {
  const HostClaim claim = shm::read_claim(core.region, core.host);
  if (claim.is_in_use() && claim.generation() == core.host_generation) {
    if (claim.is(HostState::kSuspect) && shm::host_is_well(core.region, core.host, claim))
      hosts.alarms.say({}, "pool \"{}\": another host had taken this one (host {}) for lost, because marud was slow",
                       core.config.name, core.host);
    write_machine_id();  // one that was slow to attach here may have written its own
    return false;
  }
  hosts.lost_because =
      "this host (" + std::to_string(core.host) +
      ") was declared dead by another one, which takes back what it held; end its clients, then restart "
      "marud to attach it again";
  return true;
}

// -- the other hosts --------------------------------------------------------------------------------------------------

void Pool::State::watch_hosts() {
  if (is_own_slot_lost()) return;
  hosts.now_ms = monotonic_ms();
  if (hosts.now_ms - hosts.last_look_ms < kHostLookPauseMs) return;
  hosts.last_look_ms = hosts.now_ms;
  hosts.comings.renew(hosts.now_ms);
  hosts.alarms.renew(hosts.now_ms);
  look_at_regions();
  for (uint32_t host = 0; host < core.region.hosts(); ++host)
    if (host != core.host) watch_host(host);
  watch_fencing();
  if (hosts.reclaim.host == kNoHost && !hosts.waiting.empty()) {
    const uint32_t next = hosts.waiting.back();
    hosts.waiting.pop_back();
    begin_host_reclaim(next);
  }
  answer_wish();
}

void Pool::State::watch_host(uint32_t host) {
  HostWatch& seen = hosts.watches[host];
  const HostClaim claim = shm::read_claim(core.region, host);
  const uint64_t heartbeat = core.region.host(host).heartbeat_ms.load_acquire();  // any change of it is a sign of life
  if (claim != seen.claim) log_host_change(host, seen.claim, claim);
  if (seen.named_in != claim.generation() && seen.beats(claim, heartbeat)) {
    seen.name = name_in(core.region.host(host));  // it wrote that before its first beat
    seen.named_in = claim.generation();
    log_debug("pool \"{}\": host {} is met as {}", core.config.name, host, seen.name);
  }
  seen.look(claim, heartbeat, hosts.now_ms);
  if (claim.is(HostState::kLive)) suspect_if_silent(host);
  if (seen.claim.is(HostState::kSuspect)) fence_if_suspect(host);
  if (claim.is(HostState::kDead)) take_over_reclaim(host);
  if (claim.is(HostState::kAttaching) && seen.is_silent(hosts.now_ms, core.config.sharing.suspect_after_ms) &&
      shm::end_attach(core.region, host, claim))
    log_warning("pool \"{}\": host slot {} is free again: a machine that began to attach there did not end it",
                core.config.name, host);
}

void Pool::State::log_host_change(uint32_t host, HostClaim from, HostClaim to) {
  if (to.is(HostState::kLive))
    hosts.comings.say({}, "pool \"{}\": host {} ({}) is {}", core.config.name, host, name_in(core.region.host(host)),
                      from.is(HostState::kSuspect) && from.generation() == to.generation() ? "back" : "attached");
}

void Pool::State::suspect_if_silent(uint32_t host) {
  HostWatch& seen = hosts.watches[host];
  if (!seen.is_silent(hosts.now_ms, core.config.sharing.suspect_after_ms) ||
      !shm::suspect_host(core.region, host, seen.claim))
    return;
  seen.claim = shm::read_claim(core.region, host);
  seen.fence_at_ms = hosts.now_ms;
  const bool was_stopped = core.region.host(host).clean.load_relaxed() != 0;  // the host is silent: nobody writes it
  log_warning(
      "pool \"{}\": host {} ({}) is suspect: no heartbeat for {:.1f} s{}; its blocks stay readable, and nothing of it "
      "is reused without proof of its death (marudctl host declare-dead {})",
      core.config.name, host, name_in(core.region.host(host)), double(hosts.now_ms - seen.changed_ms) / 1000,
      was_stopped ? ", since its marud was stopped in order and left clients; it is not fenced for that" : "", host);
}

// Who made it suspect runs the command at once. The others do when it should have ended by now and the host is suspect still:
// perhaps nobody is left who runs it.
void Pool::State::fence_if_suspect(uint32_t host) {
  HostWatch& seen = hosts.watches[host];
  if (seen.fence_at_ms == 0) seen.fence_at_ms = hosts.now_ms + core.config.sharing.fencing_timeout_ms;
  if (hosts.now_ms < seen.fence_at_ms || !seen.is_silent(hosts.now_ms, core.config.sharing.suspect_after_ms)) return;
  if (core.region.host(host).clean.load_relaxed() != 0) return;  // as above; its clients go on, perhaps
  start_fencing(host);
}

// Only who is named in the claim, in this life of its own, takes anything back; so whoever else goes on with it enters itself.
void Pool::State::take_over_reclaim(uint32_t host) {
  const HostClaim claim = hosts.watches[host].claim;
  const bool is_known =
      hosts.reclaim.host == host || std::find(hosts.waiting.begin(), hosts.waiting.end(), host) != hosts.waiting.end();
  const bool is_ours = claim == HostClaim::dead(claim.generation(), core.host, core.host_generation);
  const bool is_to_begin = is_ours
                               ? !is_known
                               : shm::is_reclaimer_gone(core.region, claim) &&
                                     shm::declare_host_dead(core.region, host, claim, core.host, core.host_generation);
  if (!is_to_begin) return;
  if (!is_ours)
    hosts.alarms.say({}, "pool \"{}\": this host goes on with taking back what host {} held", core.config.name, host);
  hosts.watches[host].claim = shm::read_claim(core.region, host);
  hosts.waiting.push_back(host);
}

// What stands against giving the fencing command this name: any client can have written a whole host, name and all, into a slot
// that nobody has. Empty: nothing.
std::string Pool::State::why_not_fenced(uint32_t host, const std::string& name) const {
  const std::vector<std::string>& names = core.config.sharing.fencing_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return "fencing_names has no such name";
  for (uint32_t other = 0; other < core.region.hosts(); ++other) {
    const HostWatch& seen = hosts.watches[other];
    if (other == host || !seen.claim.is(HostState::kLive) || !seen.is_met() || seen.name != name) continue;
    if (!seen.is_silent(hosts.now_ms, core.config.sharing.suspect_after_ms))
      return "host " + std::to_string(other) + " has the same name and is alive";
  }
  return {};
}

// Whoever may write to the pool may have written all that is known of the host, its silence, too. So the command is given the
// name by which the host was met in this life, and cuts the power of one machine not time after time.
void Pool::State::start_fencing(uint32_t host) {
  const SharingConfig& sharing = core.config.sharing;
  if (sharing.fencing_command.empty() || (hosts.fencing && hosts.fencing->is_running())) return;
  HostWatch& seen = hosts.watches[host];
  const format::HostRecord& record = core.region.host(host);
  const std::string written = name_in(record), name = seen.is_met() ? seen.name : written;
  seen.fence_at_ms = hosts.now_ms + sharing.fencing_timeout_ms + kFencePauseMs;
  if (const std::string why = why_not_fenced(host, name); !why.empty()) {
    hosts.alarms.say({}, "pool \"{}\": host {} ({}) stays suspect and is not fenced: {}", core.config.name, host, name,
                     why);
    return;
  }
  if (const uint64_t until_ms = hosts.rests_until_ms(host, name); until_ms != 0) {
    seen.fence_at_ms = until_ms;
    log_error(
        "pool \"{}\": host {} ({}) stays suspect: the fencing command succeeded for this slot or this name a short "
        "while ago, and is run again in {} s at the earliest",
        core.config.name, host, name, (until_ms - hosts.now_ms + 999) / 1000);
    return;
  }
  if (name != written)
    log_error("pool \"{}\": host {} calls itself {} now, and it was {} when it was met: somebody else has written that",
              core.config.name, host, written, name);
  hosts.fencing = std::make_unique<Fencing>();
  hosts.fenced_host = host;
  hosts.fenced_name = name;
  hosts.fenced_generation = seen.claim.generation();
  hosts.fencing->start(
      sharing.fencing_command,
      {{"MARU_POOL", core.config.name},
       {"MARU_HOST_SLOT", std::to_string(host)},
       {"MARU_HOST_NAME", name},
       {"MARU_HOST_BOOT_ID", boot_id_text(record.boot_id_lo.load_relaxed(), record.boot_id_hi.load_relaxed())},
       {"MARU_HOST_GENERATION", std::to_string(hosts.fenced_generation)}},
      hosts.now_ms + sharing.fencing_timeout_ms);
  log_warning("pool \"{}\": host {} is fenced with {}", core.config.name, host, sharing.fencing_command.front());
}

void Pool::State::watch_fencing() {
  if (!hosts.fencing || !hosts.fencing->is_running()) return;
  std::string why;
  switch (hosts.fencing->look(hosts.now_ms, &why)) {
    case Fencing::Outcome::kRunning: return;
    case Fencing::Outcome::kProven:
      hosts.fenced.push_back({hosts.fenced_host, hosts.fenced_name, hosts.now_ms + kFencedRestMs});
      if (!declare_dead(hosts.fenced_host, hosts.fenced_generation, "the fencing command succeeded"))
        log_warning("pool \"{}\": the fencing command succeeded, and host {} is not what it was: nothing is taken back",
                    core.config.name, hosts.fenced_host);
      break;
    case Fencing::Outcome::kFailed:
      log_error("pool \"{}\": host {} stays suspect: the fencing command failed: {}", core.config.name,
                hosts.fenced_host, why);
      break;
  }
  hosts.fencing.reset();
}

// After proof of the death of this generation of it. False if that is not in use any more, or another marud was faster: a proof
// takes its time, in which the machine may have come back.
bool Pool::State::declare_dead(uint32_t host, uint32_t generation, const std::string& proof) {
  if (!shm::declare_proven_dead(core.region, host, generation, core.host, core.host_generation)) return false;
  hosts.watches[host].claim = shm::read_claim(core.region, host);
  log_warning("pool \"{}\": host {} ({}) is dead ({}): what it held is taken back", core.config.name, host,
              name_in(core.region.host(host)), proof);
  begin_host_reclaim(host);
  return true;
}

// -- regions ----------------------------------------------------------------------------------------------------------

// What the other hosts have rented and given up since. Words of our own regions are ours; one that says otherwise was inherited
// by whoever took this host for dead, or scribbled on, and is left to that one.
void Pool::State::look_at_regions() {
  for (uint32_t i = 0; i < regions.size(); ++i) {
    RegionEntry& entry = regions[i];
    const shm::RegionWord shown{core.region.region(i).word.load_acquire()};  // [pairs region.word]
    const uint32_t host = shown.host_in(core.region);
    if (!entry.is_foreign && (host == core.host || host == core.region.hosts())) continue;
    if (!entry.is_foreign) {
      queues.for_shelves(
          i, [&](uint32_t shelf) { queues.order.forget(shelf); });  // its new host is at work on the entries already
      regions.set_counted(i, 0);
      entry = {};
      entry.is_foreign = true;
      entry.state = RegionState::kDraining;
    } else if (host == core.region.hosts()) {
      entry = {};
      entry.generation = shown.generation();
    } else if (uint32_t generation = 0;
               !drain.is_on() && shm::inherit_left_region(core.region, i, core.host, &generation)) {
      entry = {};
      entry.state = RegionState::kOrphaned;
      entry.generation = generation;
      queues.for_shelves(i, [&](uint32_t shelf) { queues.mend(shelf); });  // as many in a turn as that has room for
    }
  }
}

// -- administration ---------------------------------------------------------------------------------------------------

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
          {"reclaiming", hosts.reclaim.host == kNoHost ? json(nullptr) : json(hosts.reclaim.host)},
          {"reclaimed_hosts", hosts.reclaimed}};
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
  if (!declare_dead(uint32_t(host), claim.generation(), "an administrator said so"))
    return refusal(EAGAIN, "its state changed at this moment; look at `host list` and try again");
  return {{"host", host}, {"state", "dead"}, {"reclaimer", core.host}};
}

}  // namespace maru::daemon
