// The claim on a host slot of a shared pool: one word, changed by CAS alone. It names the host of the slot and, if this host is
// dead, the host that takes back its holdings. docs/format.md, "Hosts", has the table of its changes and the state after a
// death.
//
// Thread safety: any marud of any host. Progress: every step is one CAS. If the marud dies here: between a claim and its end
// the word names it, and a host with proof of its death goes on from there.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstdint>

namespace maru::shm {

using format::HostState;

struct HostClaim {
  uint64_t bits = 0;

  // `tag`: of the slot's machine, in ATTACHING, LIVE and SUSPECT; 0: an older version wrote the word.
  static constexpr HostClaim of(HostState state, uint32_t generation, uint32_t tag = 0) {
    return {uint64_t(generation) << 32 | uint64_t(tag) << 8 | uint64_t(state)};
  }
  static constexpr uint32_t tag_of(uint64_t machine_id) {
    const auto tag = uint32_t(machine_id >> 40);
    return tag == 0 ? 1 : tag;
  }
  // Of a host that its `reclaimer` takes back in its own life `reclaimer_generation`, of which the low half is in the word.
  static constexpr HostClaim dead(uint32_t generation, uint32_t reclaimer, uint32_t reclaimer_generation) {
    return {of(HostState::kDead, generation).bits | uint64_t(reclaimer_generation & 0xFFFF) << 16 |
            uint64_t(reclaimer + 1) << 8};
  }
  // May be a value that is no state: the word comes from shared memory.
  constexpr HostState state() const { return HostState(bits & 0xFF); }
  constexpr uint32_t generation() const { return uint32_t(bits >> 32); }
  constexpr uint32_t reclaimer() const {
    return uint32_t(bits >> 8 & 0xFF) - 1;
  }  // of DEAD; else a number beyond hosts
  constexpr uint32_t reclaimer_generation() const { return uint32_t(bits >> 16 & 0xFFFF); }
  constexpr uint32_t tag() const { return uint32_t(bits >> 8 & 0xFF'FFFF); }  // of ATTACHING, LIVE and SUSPECT
  constexpr HostClaim in(HostState state) const { return of(state, generation(), tag()); }
  constexpr bool is(HostState wanted) const { return state() == wanted; }
  constexpr bool is_in_use() const { return is(HostState::kLive) || is(HostState::kSuspect); }
  friend constexpr bool operator==(HostClaim, HostClaim) = default;
};

HostClaim read_claim(const ControlRegion& region, uint32_t host);

// The slot that a machine is to claim, and the claim behind this choice. The machine may go on only from that very word, since
// another host may be faster. The choice is its own slot in use. Else a slot that it, or another machine of its tag, is about
// to have; else the first FREE slot; else host is hosts().
struct HostSlot {
  uint32_t host;
  HostClaim claim;
};
HostSlot choose_slot(const ControlRegion& region, uint64_t machine_id);

// Each returns whether the word was `from` and is now changed, in memory, too. From a LIVE or SUSPECT claim of this machine
// whose marud is gone: LIVE of the next generation. From FREE or ATTACHING: ATTACHING of the next generation, with which
// nothing may be held; the machine id is written and flushed, and finish_attach() follows.
bool claim_host(const ControlRegion& region, uint32_t host, HostClaim from, uint64_t machine_id);
// False: it took so long that another marud has ended it.
bool finish_attach(const ControlRegion& region, uint32_t host, HostClaim from);
// Ends an ATTACHING that stands still: its host is dead, or has to begin again. Needs no proof.
bool end_attach(const ControlRegion& region, uint32_t host, HostClaim from);
bool suspect_host(const ControlRegion& region, uint32_t host, HostClaim from);  // its heartbeat is late
bool host_is_well(const ControlRegion& region, uint32_t host, HostClaim from);  // says the host itself
// After proof of its death: only the caller that gets true takes back the host's holdings, in its life `reclaimer_generation`.
// From LIVE or SUSPECT, or from DEAD when is_reclaimer_gone().
bool declare_host_dead(const ControlRegion& region, uint32_t host, HostClaim from, uint32_t reclaimer,
                       uint32_t reclaimer_generation);
// The same after a proof of the death of this `generation`, which took its time: another life in the slot is another host.
// False also if the host is not in use any more.
bool declare_proven_dead(const ControlRegion& region, uint32_t host, uint32_t generation, uint32_t reclaimer,
                         uint32_t reclaimer_generation);
// For a DEAD claim: the life of the reclaimer that it names is over. The reclaimer is dead, has left, or has a new marud by
// now. The next successful declare_host_dead() takes over its unfinished work.
bool is_reclaimer_gone(const ControlRegion& region, HostClaim dead);
// From DEAD, when all was taken back: FREE of the next generation.
bool free_host(const ControlRegion& region, uint32_t host, HostClaim from);
// The same by the host itself, which has given all back. False: it was declared dead meanwhile, and another host is reclaiming
// it.
bool leave_host(const ControlRegion& region, uint32_t host, uint32_t generation);

}  // namespace maru::shm
