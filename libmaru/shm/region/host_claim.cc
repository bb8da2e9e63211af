#include "libmaru/shm/region/host_claim.h"

#include "libmaru/shm/region/flush.h"

namespace maru::shm {
namespace {

bool change(const ControlRegion& region, uint32_t host, HostClaim from, HostClaim to) {
  AtomicU64& claim = region.host(host).claim;
  if (!claim.cas_seq_cst(from.bits, to.bits)) return false;  // [pairs host.claim]
  flush(region, claim);  // a claim that is lost with its host would hide all that the host holds
  return true;
}

}  // namespace

HostClaim read_claim(const ControlRegion& region, uint32_t host) {
  return {region.host(host).claim.load_acquire()};  // [pairs host.claim]
}

HostSlot choose_slot(const ControlRegion& region, uint64_t machine_id) {
  const uint32_t tag = HostClaim::tag_of(machine_id);
  HostSlot begun{region.hosts(), {}}, free = begun;
  for (uint32_t i = 0; i < region.hosts(); ++i) {
    const HostClaim claim = read_claim(region, i);
    const uint64_t id = region.host(i).machine_id.load_acquire();  // behind the claim
    // Before it detaches it takes its id away. Without a tag the id alone tells: an older version writes it so.
    const bool is_own = id == machine_id ? claim.tag() == tag || claim.tag() == 0 : id == 0 && claim.tag() == tag;
    if (claim.is_in_use() && is_own) return {i, claim};
    if (claim.is(HostState::kAttaching) && claim.tag() == tag) begun = {i, claim};
    if (claim.is(HostState::kFree) && free.host == region.hosts()) free = {i, claim};
  }
  return begun.host != region.hosts() ? begun : free;
}

bool claim_host(const ControlRegion& region, uint32_t host, HostClaim from, uint64_t machine_id) {
  if (from.is(HostState::kDead)) return false;
  const bool is_new = !from.is_in_use();
  return change(region, host, from,
                HostClaim::of(is_new ? HostState::kAttaching : HostState::kLive, from.generation() + 1,
                              HostClaim::tag_of(machine_id)));
}

bool finish_attach(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kAttaching) && change(region, host, from, from.in(HostState::kLive));
}

bool end_attach(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kAttaching) &&
         change(region, host, from, HostClaim::of(HostState::kFree, from.generation() + 1));
}

bool suspect_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kLive) && change(region, host, from, from.in(HostState::kSuspect));
}

bool host_is_well(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kSuspect) && change(region, host, from, from.in(HostState::kLive));
}

bool declare_host_dead(const ControlRegion& region, uint32_t host, HostClaim from, uint32_t reclaimer,
                       uint32_t reclaimer_generation) {
  const HostClaim to = HostClaim::dead(from.generation(), reclaimer, reclaimer_generation);
  if (from.is(HostState::kFree) || from == to) return false;
  return change(region, host, from, to);
}

bool declare_proven_dead(const ControlRegion& region, uint32_t host, uint32_t generation, uint32_t reclaimer,
                         uint32_t reclaimer_generation) {
  const HostClaim found = read_claim(region, host);
  if (!found.is_in_use() || found.generation() != generation) return false;
  return declare_host_dead(region, host, found, reclaimer, reclaimer_generation);
}

bool is_reclaimer_gone(const ControlRegion& region, HostClaim dead) {
  if (dead.reclaimer() >= region.hosts()) return true;  // scribbled on
  // A life that is over stays over, so the answer is still right at the caller's CAS.
  const HostClaim reclaimer = read_claim(region, dead.reclaimer());
  return !reclaimer.is_in_use() || (reclaimer.generation() & 0xFFFF) != dead.reclaimer_generation();
}

bool free_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kDead) &&
         change(region, host, from, HostClaim::of(HostState::kFree, from.generation() + 1));
}

bool leave_host(const ControlRegion& region, uint32_t host, uint32_t generation) {
  const HostClaim free = HostClaim::of(HostState::kFree, generation + 1);
  // Another host may make it SUSPECT between the two looks, and only this host makes it LIVE again. A host of an older version
  // drops the tag when it does, and no host puts a tag back.
  for (int tries = 0; tries < 3; ++tries) {
    const HostClaim found = read_claim(region, host);
    if (!found.is_in_use() || found.generation() != generation) return false;
    if (change(region, host, found, free)) return true;
  }
  return false;
}

}  // namespace maru::shm
