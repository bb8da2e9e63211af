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

bool declare_host_dead(const ControlRegion& region, uint32_t host, HostClaim from, uint32_t reclaimer) {
  const HostClaim to = HostClaim::dead(from.generation(), reclaimer);
  if (from.is(HostState::kFree) || from == to) return false;
  if (MARU_MUTANT(kMutantTwoReclaimers)) {
    region.host(host).claim.store_release(to.bits);
    return true;
  }
  return change(region, host, from, to);
}

bool free_host(const ControlRegion& region, uint32_t host, HostClaim from) {
  return change(region, host, from, HostClaim::of(HostState::kFree, from.generation() + 1));
}

}  // namespace maru::shm
