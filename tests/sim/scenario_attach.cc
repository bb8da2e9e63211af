// Machines that attach to a shared pool, leave it, and die over both: four of them and three slots.
// docs/format.md, "Attach of a host" and "Detach".
//
// A slot is one machine's at a time, and a machine has one slot; what a marud leaves that dies over attaching is free again
// without a proof, what it leaves over leaving is known to its next marud; and nobody is thrown out who lives, however slow.
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/host_claim.h"
#include "scenario.h"
#include "tests/sim/mutants.h"
#include "world.h"

#include <cstdint>

namespace maru::sim {
namespace {

using shm::HostClaim;
using shm::HostState;

constexpr uint32_t kSlots = kWorldHosts;
constexpr unsigned kMachines = 4, kFirstMarud = kWorldLanes, kNextMarud = kFirstMarud + kMachines;
constexpr unsigned kNone = kMachines;

unsigned holder[kSlots];     // the machine that works in a slot, whose marud may be gone
unsigned last_user[kSlots];  // the one that was LIVE there last

// Whose a slot in use is, by its claim.
unsigned machine_in(HostClaim claim) { return claim.tag() - 1; }
uint64_t id_of(unsigned machine) { return uint64_t(machine + 1) << 40 | (machine + 1); }
void* argument_for(unsigned number) { return reinterpret_cast<void*>(uintptr_t(number)); }
unsigned number_of(void* argument) { return unsigned(reinterpret_cast<uintptr_t>(argument)); }
format::HostRecord& record(uint32_t slot) { return world().host(slot); }

// A machine that was slow has written its id over this slot's, whose marud was gone by then: only a declaration helps.
bool is_overwritten(uint32_t slot) {
  const uint64_t id = record(slot).machine_id.raw;
  return id != 0 && id != id_of(machine_in({record(slot).claim.raw}));
}

void write_id(uint32_t slot, unsigned machine) {
  if (record(slot).machine_id.load_acquire() == id_of(machine)) return;
  record(slot).machine_id.store_release(id_of(machine));
  shm::flush(world(), record(slot));
}

// As OwnSlot::claim() does. The slot, and the generation of the claim; kSlots: there is none.
uint32_t attach(unsigned machine, uint32_t* ret_generation) {
  for (int tries = 0; tries < 20; ++tries) {
    const auto [slot, claim] = shm::choose_slot(world(), id_of(machine));
    if (slot == kSlots) return kSlots;
    if (!shm::claim_host(world(), slot, claim, id_of(machine))) continue;
    const uint32_t generation = claim.generation() + 1;
    write_id(slot, machine);
    const HostClaim begun = shm::read_claim(world(), slot);
    if (begun.generation() != generation && !mutant(kMutantAttachByStore)) continue;
    if (!begun.is_in_use() && !shm::finish_attach(world(), slot, begun)) continue;
    if (holder[slot] != kNone && holder[slot] != machine)
      fail("machine %u has the slot %u of machine %u", machine, slot, holder[slot]);
    for (uint32_t other = 0; other < kSlots; ++other)
      if (other != slot && holder[other] == machine && !is_overwritten(other))
        fail("machine %u has the slots %u and %u", machine, other, slot);
    note("machine %u has slot %u", machine, slot);
    holder[slot] = last_user[slot] = machine;
    *ret_generation = generation;
    return slot;
  }
  return kSlots;
}

// After proof of the death of this life: what it held is of no interest here.
void take_back(uint32_t slot, HostClaim claim, uint32_t self, uint32_t generation) {
  if (claim.is_in_use() && !shm::declare_proven_dead(world(), slot, claim.generation(), self, generation)) return;
  const HostClaim dead = claim.is_in_use() ? HostClaim::dead(claim.generation(), self, generation) : claim;
  if (claim.is(HostState::kDead) && dead != HostClaim::dead(claim.generation(), self, generation)) {
    if (shm::is_reclaimer_gone(world(), dead)) shm::declare_host_dead(world(), slot, dead, self, generation);
    return;  // in the next turn
  }
  record(slot).machine_id.store_release(0);
  shm::flush(world(), record(slot));
  holder[slot] = kNone;
  shm::free_host(world(), slot, dead);
}

void watch_others(uint32_t self, uint32_t generation) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slot == self) continue;
    const HostClaim claim = shm::read_claim(world(), slot);
    // A clock that runs fast, or a host that is slow.
    if (claim.is(HostState::kAttaching) && chance().chance(2)) shm::end_attach(world(), slot, claim);
    if (claim.is(HostState::kLive) && chance().chance(2)) shm::suspect_host(world(), slot, claim);
    const bool is_proven = claim.is_in_use() && host_died(machine_in(claim));
    if (is_proven || claim.is(HostState::kDead)) take_back(slot, claim, self, generation);
  }
}

void leave(uint32_t slot, uint32_t generation, unsigned machine) {
  if (holder[slot] != machine) fail("the slot %u of machine %u is somebody else's", slot, machine);
  holder[slot] = kNone;  // all is given back
  record(slot).machine_id.store_release(0);
  shm::flush(world(), record(slot));
  shm::leave_host(world(), slot, generation);
}

void marud_life(void* argument) {
  const unsigned machine = number_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    uint32_t generation = 0;
    const uint32_t self = attach(machine, &generation);
    if (self == kSlots) {
      yield();
      continue;
    }
    for (uint32_t turns = 1 + chance().below(3); turns > 0; --turns) {
      const HostClaim claim = shm::read_claim(world(), self);
      if (!claim.is_in_use() || claim.generation() != generation)
        fail("machine %u lost slot %u, and lives", machine, self);
      if (claim.is(HostState::kSuspect)) shm::host_is_well(world(), self, claim);
      write_id(self, machine);
      watch_others(self, generation);
    }
    leave(self, generation, machine);
  }
}

void next_marud(void* argument) {
  const unsigned first = kFirstMarud + number_of(argument);
  wait_for_process(first);
  if (process_died(first)) marud_life(argument);
}

void setup() {
  make_shared_world();
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    record(slot).claim.raw = HostClaim::of(HostState::kFree, 1).bits;
    record(slot).machine_id.raw = 0;
    holder[slot] = last_user[slot] = kNone;
  }
  unsigned maruds = 0;
  for (unsigned machine = 0; machine < kMachines; ++machine) {
    belongs_to_machine(kFirstMarud + machine, machine);
    belongs_to_machine(kNextMarud + machine, machine);
    spawn("marud", kFirstMarud + machine, marud_life, argument_for(machine));
    spawn("next marud", kNextMarud + machine, next_marud, argument_for(machine));
    maruds |= 1u << (kFirstMarud + machine);
  }
  play_shared_world();
  allow_deaths(maruds, 2);
  if (chance().chance(3)) allow_host_death(0b0110);
}

void on_death(unsigned process) { forget_process(process); }

void finish() {
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    HostClaim claim = shm::read_claim(world(), slot);
    if (claim.is(HostState::kFree)) continue;
    if (claim.is(HostState::kAttaching)) {
      shm::end_attach(world(), slot, claim);
      continue;
    }
    if (!claim.is_in_use()) continue;  // who took it back died over it
    const unsigned machine = machine_in(claim);
    if (record(slot).machine_id.raw == 0 && last_user[slot] != machine)
      fail("slot %u is machine %u's for ever, whose marud died over attaching", slot, machine);
    // A marud that died, whose next one found its slot and left it.
    const bool came_again = process_ended(kNextMarud + machine) && !process_died(kNextMarud + machine);
    if (!host_died(machine) && came_again && !is_overwritten(slot))
      fail("slot %u stays machine %u's, which has left", slot, machine);
  }
}

constexpr Scenario kScenarios[] = {
    {"host-attach", "machines attach and leave, and their maruds die over it", setup, finish, on_death},
};

}  // namespace

std::span<const Scenario> attach_scenarios() { return kScenarios; }

}  // namespace maru::sim
