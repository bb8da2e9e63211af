#include "libmaru/shm/host_claim.h"

#include "libmaru/shm/flush.h"
#include "libmaru/shm/mutants.h"

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
  HostSlot free{region.hosts(), {}};
  for (uint32_t i = 0; i < region.hosts(); ++i) {
    const HostClaim claim = read_claim(region, i);
    // Behind the claim. Only this machine writes its id into a slot, and no two maruds of it are at this.
    if (claim.is_in_use() && region.host(i).machine_id.load_acquire() == machine_id) return {i, claim};
    if (claim.is(HostState::kFree) && free.host == region.hosts()) free = {i, claim};
  }
  return free;
}

bool claim_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return !from.is(HostState::kDead) &&
         change(region, host, from, HostClaim::of(HostState::kLive, from.generation() + 1));
}

bool suspect_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kLive) && change(region, host, from, HostClaim::of(HostState::kSuspect, from.generation()));
}

bool host_is_well(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kSuspect) && change(region, host, from, HostClaim::of(HostState::kLive, from.generation()));
}

bool declare_host_dead(const ControlRegion& region, uint32_t host, HostClaim from, uint32_t reclaimer,
                       uint32_t reclaimer_generation) {
  const HostClaim to = HostClaim::dead(from.generation(), reclaimer, reclaimer_generation);
  if (from.is(HostState::kFree) || from == to) return false;
  if (MARU_MUTANT(kMutantTwoReclaimers)) {
    region.host(host).claim.store_release(to.bits);
    return true;
  }
  return change(region, host, from, to);
}

bool declare_proven_dead(const ControlRegion& region, uint32_t host, uint32_t generation, uint32_t reclaimer,
                         uint32_t reclaimer_generation) {
  const HostClaim found = read_claim(region, host);
  if (!found.is_in_use() || (found.generation() != generation && !MARU_MUTANT(kMutantProofOfAnyLife))) return false;
  return declare_host_dead(region, host, found, reclaimer, reclaimer_generation);
}

bool is_reclaimer_gone(const ControlRegion& region, HostClaim dead) {
  if (dead.reclaimer() >= region.hosts()) return true;  // scribbled on
  // A life that is over stays over, so whatever happens before the caller's CAS, the answer is still right.
  const HostClaim reclaimer = read_claim(region, dead.reclaimer());
  if (MARU_MUTANT(kMutantTakeOverBySlot)) return !reclaimer.is_in_use();
  return !reclaimer.is_in_use() || (reclaimer.generation() & 0xFFFF) != dead.reclaimer_generation();
}

bool free_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return from.is(HostState::kDead) &&
         change(region, host, from, HostClaim::of(HostState::kFree, from.generation() + 1));
}

bool leave_host(const ControlRegion& region, uint32_t host, uint32_t generation) {
  const HostClaim free = HostClaim::of(HostState::kFree, generation + 1);
  // Another host may make it SUSPECT between the two, and nobody but this one LIVE again.
  for (const HostState from : {HostState::kLive, HostState::kSuspect})
    if (change(region, host, HostClaim::of(from, generation), free)) return true;
  return false;
}

}  // namespace maru::shm
