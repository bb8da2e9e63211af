#include "daemon/pool/hosts/hosts.h"

#include "daemon/base/log.h"
#include "daemon/pool/hosts/host_record.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using shm::HostClaim;
using shm::HostState;

}  // namespace

void Hosts::watch() {
  if (slot_.is_lost()) return;
  now_ms_ = monotonic_ms();
  if (now_ms_ - last_look_ms_ < kHostLookPauseMs) return;
  last_look_ms_ = now_ms_;
  comings_.renew(now_ms_);
  slot_.alarms.renew(now_ms_);
  look_at_regions();
  for (uint32_t host = 0; host < core_.region.hosts(); ++host)
    if (host != core_.host) watch_host(host);
  watch_fencing();
  reclaims_.begin_next();
  wishes_.answer();
}

void Hosts::watch_host(uint32_t host) {
  HostWatch& seen = watches_[host];
  const HostClaim claim = shm::read_claim(core_.region, host);
  const uint64_t heartbeat = core_.region.host(host).heartbeat_ms.load_acquire();  // any change of it is a sign of life
  if (claim != seen.claim) log_change(host, seen.claim, claim);
  if (seen.named_in != claim.generation() && seen.beats(claim, heartbeat)) {
    seen.name = name_in(core_.region.host(host));  // it wrote that before its first beat
    seen.named_in = claim.generation();
    log_debug("pool \"{}\": host {} is met as {}", core_.config.name, host, seen.name);
  }
  seen.look(claim, heartbeat, now_ms_);
  if (claim.is(HostState::kLive)) suspect_if_silent(host);
  if (seen.claim.is(HostState::kSuspect)) fence_if_suspect(host);
  if (claim.is(HostState::kDead)) take_over_reclaim(host);
  if (claim.is(HostState::kAttaching) && seen.is_silent(now_ms_, core_.config.sharing.suspect_after_ms) &&
      shm::end_attach(core_.region, host, claim))
    log_warning("pool \"{}\": host slot {} is free again: a machine that began to attach there did not end it",
                core_.config.name, host);
}

void Hosts::log_change(uint32_t host, HostClaim from, HostClaim to) {
  if (to.is(HostState::kLive))
    comings_.say({}, "pool \"{}\": host {} ({}) is {}", core_.config.name, host, name_in(core_.region.host(host)),
                 from.is(HostState::kSuspect) && from.generation() == to.generation() ? "back" : "attached");
}

void Hosts::suspect_if_silent(uint32_t host) {
  HostWatch& seen = watches_[host];
  if (!seen.is_silent(now_ms_, core_.config.sharing.suspect_after_ms) ||
      !shm::suspect_host(core_.region, host, seen.claim))
    return;
  seen.claim = shm::read_claim(core_.region, host);
  seen.fence_at_ms = now_ms_;
  const bool was_stopped = core_.region.host(host).clean.load_relaxed() != 0;  // it is silent: it does not write this
  log_warning(
      "pool \"{}\": host {} ({}) is suspect: no heartbeat for {:.1f} s{}; its blocks stay readable, and nothing of it "
      "is reused without proof of its death (marudctl host declare-dead {})",
      core_.config.name, host, name_in(core_.region.host(host)), double(now_ms_ - seen.changed_ms) / 1000,
      was_stopped ? ", since its marud was stopped in order and left clients; it is not fenced for that" : "", host);
}

// The host that made it suspect runs the command at once. The others do when it should have ended by now and the host is
// suspect still: perhaps the first host is gone, too.
void Hosts::fence_if_suspect(uint32_t host) {
  HostWatch& seen = watches_[host];
  if (seen.fence_at_ms == 0) seen.fence_at_ms = now_ms_ + core_.config.sharing.fencing_timeout_ms;
  if (now_ms_ < seen.fence_at_ms || !seen.is_silent(now_ms_, core_.config.sharing.suspect_after_ms)) return;
  if (core_.region.host(host).clean.load_relaxed() != 0) return;  // as above; its clients go on, perhaps
  start_fencing(host);
}

// Only the host in the claim, in this life of its own, takes holdings back; so a host that goes on with it enters itself.
void Hosts::take_over_reclaim(uint32_t host) {
  const HostClaim claim = watches_[host].claim;
  const bool is_known = reclaims_.is_known(host);
  const bool is_ours = claim == HostClaim::dead(claim.generation(), core_.host, core_.host_generation);
  const bool is_to_begin =
      is_ours ? !is_known
              : shm::is_reclaimer_gone(core_.region, claim) &&
                    shm::declare_host_dead(core_.region, host, claim, core_.host, core_.host_generation);
  if (!is_to_begin) return;
  if (!is_ours)
    slot_.alarms.say({}, "pool \"{}\": this host goes on with taking back what host {} held", core_.config.name, host);
  watches_[host].claim = shm::read_claim(core_.region, host);
  reclaims_.add(host);
}

// Why the fencing command must not get this name: any client can have written a whole host, name and all, into a free slot.
// Empty: it may.
std::string Hosts::why_not_fenced(uint32_t host, const std::string& name) const {
  const std::vector<std::string>& names = core_.config.sharing.fencing_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return "fencing_names has no such name";
  for (uint32_t other = 0; other < core_.region.hosts(); ++other) {
    const HostWatch& seen = watches_[other];
    if (other == host || !seen.claim.is(HostState::kLive) || !seen.is_met() || seen.name != name) continue;
    if (!seen.is_silent(now_ms_, core_.config.sharing.suspect_after_ms))
      return "host " + std::to_string(other) + " has the same name and is alive";
  }
  return {};
}

// A client that may write to the pool may have written all facts about the host, its silence, too. So the command gets the name
// by which the host was met in this life, and does not cut the power of one machine time after time.
void Hosts::start_fencing(uint32_t host) {
  const SharingConfig& sharing = core_.config.sharing;
  if (sharing.fencing_command.empty() || (fencing_ && fencing_->is_running())) return;
  HostWatch& seen = watches_[host];
  const format::HostRecord& record = core_.region.host(host);
  const std::string written = name_in(record), name = seen.is_met() ? seen.name : written;
  seen.fence_at_ms = now_ms_ + sharing.fencing_timeout_ms + kFencePauseMs;
  if (const std::string why = why_not_fenced(host, name); !why.empty()) {
    slot_.alarms.say({}, "pool \"{}\": host {} ({}) stays suspect and is not fenced: {}", core_.config.name, host, name,
                     why);
    return;
  }
  if (const uint64_t until_ms = rests_until_ms(host, name); until_ms != 0) {
    seen.fence_at_ms = until_ms;
    log_error(
        "pool \"{}\": host {} ({}) stays suspect: the fencing command succeeded for this slot or this name a short "
        "while ago, and is run again in {} s at the earliest",
        core_.config.name, host, name, (until_ms - now_ms_ + 999) / 1000);
    return;
  }
  if (name != written)
    log_error("pool \"{}\": host {} calls itself {} now, and it was {} when it was met: somebody else has written that",
              core_.config.name, host, written, name);
  fencing_ = std::make_unique<Fencing>();
  fenced_host_ = host;
  fenced_name_ = name;
  fenced_generation_ = seen.claim.generation();
  fencing_->start(
      sharing.fencing_command,
      {{"MARU_POOL", core_.config.name},
       {"MARU_HOST_SLOT", std::to_string(host)},
       {"MARU_HOST_NAME", name},
       {"MARU_HOST_BOOT_ID", boot_id_text(record.boot_id_lo.load_relaxed(), record.boot_id_hi.load_relaxed())},
       {"MARU_HOST_GENERATION", std::to_string(fenced_generation_)}},
      now_ms_ + sharing.fencing_timeout_ms);
  log_warning("pool \"{}\": host {} is fenced with {}", core_.config.name, host, sharing.fencing_command.front());
}

void Hosts::watch_fencing() {
  if (!fencing_ || !fencing_->is_running()) return;
  std::string why;
  switch (fencing_->look(now_ms_, &why)) {
    case Fencing::Outcome::kRunning: return;
    case Fencing::Outcome::kProven:
      fenced_.push_back({fenced_host_, fenced_name_, now_ms_ + kFencedRestMs});
      if (!declare_dead(fenced_host_, fenced_generation_, "the fencing command succeeded"))
        log_warning("pool \"{}\": the fencing command succeeded, and host {} is not what it was: nothing is taken back",
                    core_.config.name, fenced_host_);
      break;
    case Fencing::Outcome::kFailed:
      log_error("pool \"{}\": host {} stays suspect: the fencing command failed: {}", core_.config.name, fenced_host_,
                why);
      break;
  }
  fencing_.reset();
}

bool Hosts::declare_dead(uint32_t host, uint32_t generation, const std::string& proof) {
  if (!shm::declare_proven_dead(core_.region, host, generation, core_.host, core_.host_generation)) return false;
  watches_[host].claim = shm::read_claim(core_.region, host);
  log_warning("pool \"{}\": host {} ({}) is dead ({}): what it held is taken back", core_.config.name, host,
              name_in(core_.region.host(host)), proof);
  reclaims_.begin(host);
  return true;
}

void Hosts::look_at_regions() {
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    RegionEntry& entry = regions_[i];
    const shm::RegionWord shown{core_.region.region(i).word.load_acquire()};  // [pairs region.word]
    const uint32_t host = shown.host_in(core_.region);
    if (!entry.is_foreign && (host == core_.host || host == core_.region.hosts())) continue;
    if (!entry.is_foreign) {
      queues_.for_shelves(
          i, [&](uint32_t shelf) { queues_.order.forget(shelf); });  // its new host is at work on the entries already
      regions_.set_counted(i, 0);
      entry = {};
      entry.is_foreign = true;
      entry.state = RegionState::kDraining;
    } else if (host == core_.region.hosts()) {
      entry = {};
      entry.generation = shown.generation();
    } else if (uint32_t generation = 0;
               !drain_.is_on() && shm::inherit_left_region(core_.region, i, core_.host, &generation)) {
      entry = {};
      entry.state = RegionState::kOrphaned;
      entry.generation = generation;
      queues_.for_shelves(i, [&](uint32_t shelf) { queues_.order.forget_copies(shelf); });
      queues_.for_shelves(i, [&](uint32_t shelf) { queues_.mend(shelf); });  // as many in a turn as that has room for
    }
  }
}

// When a host of this slot or this name may be fenced; 0: now.
uint64_t Hosts::rests_until_ms(uint32_t host, const std::string& name) {
  std::erase_if(fenced_, [&](const Fenced& one) { return one.rests_until_ms <= now_ms_; });
  uint64_t until_ms = 0;
  for (const Fenced& one : fenced_)
    if (one.host == host || one.name == name) until_ms = std::max(until_ms, one.rests_until_ms);
  return until_ms;
}

}  // namespace maru::daemon
