// Several hosts on one pool: three maruds, each with a client of two threads, store, read and delete through each other's
// regions. A host dies with all its processes and the lines that are dirty in its caches; the others prove its death,
// one of them takes back what it held, and may die over it. docs/format.md, "Hosts" and "What a host takes with it".
//
// Beside what holds in every schedule: what a host takes with it leaves no entry without its block, no child without its
// parent's count, no pin of a survivor without its page (world.cc, after_loss); a block whose store has returned and that
// nobody took away is there at the end, payload and all; one host is taken back by one marud at a time; and nothing is
// taken back from a host that is only slow.
//
// A marud may also be started anew on a host that lives (host-restart), another machine may attach in the slot of one that died
// while the others hold on to what they know of the dead (host-rejoin), a host may leave in order and another machine attach
// where it was (host-leave), and a host may drain its part of the pool (host-drain).
#include "cast.h"
#include "cast_wishes.h"
#include "libmaru/shm/evict.h"
#include "libmaru/shm/host_claim.h"
#include "libmaru/shm/host_reclaim.h"
#include "libmaru/shm/mutants.h"
#include "libmaru/shm/region_handover.h"
#include "libmaru/shm/touch.h"
#include "scenario.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace maru::sim {
namespace {

using shm::HostClaim;
using shm::HostState;

constexpr uint32_t kHosts = kWorldHosts;
// Processes beyond the lanes' own: the next marud of a host, and the machine that attaches late.
constexpr unsigned kNextMarud = 6, kLateMarud = 8, kLateClient = 9;
constexpr unsigned kLateMachine = kHosts;
constexpr uint32_t kRestarted = 0, kRejoined = 1;  // host slots
constexpr uint32_t kNobodysKeys = 12;              // from here on keys that each is stored by one client alone

bool finished[kWorldKeys];  // a store of this key has returned
bool may_go[kWorldKeys];    // somebody deletes or evicts it
uint32_t
    evictors[kWorldPages];  // who are about to evict what is in a page, whatever that is by then; the dead count, too
unsigned taken_back_by[kHosts];
bool is_declared_by_suspicion[kHosts];
uint16_t attempts[kHosts];
uint32_t lives[kHosts];  // generation of the claim of the marud that is at work in a slot
uint32_t late_life;      // the one in which the late machine has its slot; 0: not yet
uint32_t drains;         // the host that drains its part, or kHosts
bool leaves;             // kRejoined ends in order when its client has, and another machine comes
shm::TouchReader readers[kHosts][kHosts];

uint32_t marud_lane(uint32_t host) { return world().daemon_lane_of(host); }
uint32_t client_lane(uint32_t host) { return marud_lane(host) + 1; }
Client& marud_of(uint32_t host) { return client(marud_lane(host)); }
// Whether the machine is lost that had the slot in this life.
bool life_is_over(uint32_t host, uint32_t life) {
  if (host != kRejoined || late_life == 0 || life < late_life) return host_died(host);
  return host_died(kLateMachine);
}
// Whether nobody is in the slot any more.
bool is_lost(uint32_t host) { return life_is_over(host, lives[host]); }
// Or has left by the end, and no other machine has come.
bool is_gone(uint32_t host) { return is_lost(host) || (leaves && host == kRejoined && late_life == 0); }
uint32_t number_of(void* argument) { return uint32_t(reinterpret_cast<uintptr_t>(argument)); }
void* argument_for(uint32_t number) { return reinterpret_cast<void*>(uintptr_t(number)); }

void note_going(uint32_t page) {
  const format::BlockLine& line = world().block(page);
  for (uint32_t key = 0; key < kWorldKeys; ++key)
    if (Digest{line.digest_lo.raw, line.digest_hi.raw} == key_digest(key)) may_go[key] = true;
}

// -- clients ----------------------------------------------------------------------------------------------------------

void client_life(void* argument) {
  const uint32_t host = number_of(argument);
  Client& who = client(client_lane(host));
  const uint32_t own_key = kNobodysKeys + 2 * host;
  for (uint32_t rounds = 2 + chance().below(5); rounds > 0; --rounds) {
    const uint32_t key = chance().below(6);
    switch (chance().below(7)) {
      case 0: store_chain(who, 0, 1 + chance().below(3)); break;
      case 1: store(who, 3 + chance().below(3), PageRef::none(), 1 + chance().below(2)); break;
      case 2: remove(who, key); break;
      case 3: match_chain(who, 0, 3); break;
      case 4: {
        const uint32_t mine = own_key + chance().below(2);
        if (finished[mine] || may_go[mine]) break;
        const PageRef parent = chance().chance(2) ? visible_block(chance().below(3)) : PageRef::none();
        const Stored stored = store(who, mine, parent);
        if (stored.status == shm::PublishStatus::kStored) {
          settle();  // whoever is told of it is told by a message
          finished[mine] = true;
          if (evictors[stored.block.page()] > 0) may_go[mine] = true;
        }
        break;
      }
      default: retrieve(who, chance().chance(2) ? key : kNobodysKeys + chance().below(2 * kHosts)); break;
    }
  }
}

// -- marud of a host --------------------------------------------------------------------------------------------------

struct Findings final : shm::ReclaimSink {
  std::array<shm::Recount, 4 * kWorldPages> suspects;
  size_t suspect_count = 0;
  std::array<uint32_t, kWorldPages> orphans;
  size_t orphan_count = 0;

  void parent_suspect(PageRef parent) override {
    for (size_t i = 0; i < suspect_count; ++i)
      if (suspects[i].parent == parent) return;
    if (suspect_count < suspects.size()) suspects[suspect_count++].parent = parent;
  }
  void retired_taken(PageRef) override {}  // free_own_retired finds it
  void unregistered(PageRef ref) override { orphans[orphan_count++] = ref.page(); }
  void pages_freed(uint32_t) override {}
};

shm::LaneSet lanes_of(uint32_t host) {
  shm::LaneSet lanes;
  for (uint32_t i = 0; i < world().lanes_per_host(); ++i) lanes.add(marud_lane(host) + i);
  return lanes;
}

void evict_as(uint32_t host, uint32_t page) {
  note_going(page);
  ++evictors[page];
  // What other hosts have handed out is known as of now; the product knows its own lanes and no others at this point.
  const shm::LaneSet known = shm::with_other_hosts(world(), lanes_of(host));
  PageRef retired;
  const size_t count = shm::retire_unpinned(marud_of(host).context, known, &page, 1, &attempts[host], &retired);
  if (count == 1) note_going(page);  // another block may have come into the page meanwhile
  --evictors[page];
  if (count == 1) shm::free_retired(marud_of(host).context, retired, nullptr);
}

void evict_some(uint32_t host) {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    if (shm::host_of_region(world(), world().region_of(page)) != host || !chance().chance(3)) continue;
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.low() == 0) evict_as(host, page);
  }
}

void free_own_retired(uint32_t host) {
  Client& daemon = marud_of(host);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    // Handed over to an older marud of this host: as sweep_page() does.
    const bool is_ours = word.is(PageState::kRetired) && word.lane().lane == daemon.lane.lane;
    const PageRef ref = PageRef::of(page, word.generation());
    if (is_ours && !(word.lane() == daemon.lane)) shm::hand_over_retired(world(), ref, word.lane(), daemon.lane);
    if (is_ours) shm::finish_retired(daemon.context, ref, lanes_of(host), nullptr);
  }
}

// Only parents in regions of this host; the others are asked for with a touch in marud's own lane.
void recount(uint32_t host, Findings& findings) {
  std::array<shm::Recount, 4 * kWorldPages> own;
  size_t count = 0;
  for (size_t i = 0; i < findings.suspect_count; ++i) {
    const PageRef parent = findings.suspects[i].parent;
    if (shm::host_of_region(world(), world().region_of(parent.page())) == host)
      own[count++].parent = parent;
    else
      shm::leave_touch(world().lane(marud_lane(host)), parent.page(), 0);
  }
  std::sort(own.begin(), own.begin() + ptrdiff_t(count),
            [](const shm::Recount& a, const shm::Recount& b) { return a.parent.bits < b.parent.bits; });
  const std::span<shm::Recount> recounts{own.data(), count};
  const shm::HostLanes nobody(world(), kHosts);
  size_t again = count;
  for (uint32_t tries = 0; again > 0 && tries < 20; ++tries) {  // what stays too high is counted at the end
    shm::recount_begin(world(), recounts);
    shm::recount_pages(world(), recounts, nobody, 0, kWorldPages);
    again = shm::recount_commit(world(), recounts, lanes_of(host));
    if (again > 0) yield();
  }
}

void serve_recounts(uint32_t host) {
  Findings findings;
  for (uint32_t other = 0; other < kHosts; ++other) {
    if (other == host) continue;
    shm::Touch touches[8];
    const size_t count =
        readers[host][other].read(world().lane(marud_lane(other)), 1u << 20, kWorldPages, touches, std::size(touches));
    for (size_t i = 0; i < count; ++i) {
      const PageWord word{world().block(touches[i].page).word.load_acquire()};
      if (word.is(PageState::kReady) && word.children() != 0 &&
          shm::host_of_region(world(), world().region_of(touches[i].page)) == host)
        findings.parent_suspect(PageRef::of(touches[i].page, word.generation()));
    }
  }
  if (findings.suspect_count > 0) recount(host, findings);
}

// The numbers of docs/format.md.
void take_back(uint32_t self, uint32_t dead) {
  note("host %u takes back what host %u held", self, dead);
  if (taken_back_by[dead] != kHosts) fail("hosts %u and %u take back host %u at once", taken_back_by[dead], self, dead);
  taken_back_by[dead] = self;
  const shm::ControlRegion& region = world();
  Findings findings;
  for (uint32_t i = 0; i < region.regions(); ++i)  // 1
    if (shm::inherit_region(region, i, dead, self)) inherit_from_the_dead(i, self);
  const uint32_t first = marud_lane(dead), end = first + region.lanes_per_host();
  for (uint32_t lane = first; lane < end; ++lane) shm::end_lane_pins(region, lane, findings);  // 2
  const shm::HostLanes lanes(region, dead);
  for (uint32_t page = 0; page < kWorldPages; ++page) shm::revive_retiring(region, dead, page);  // 3
  shm::reclaim_pages(marud_of(self).context, lanes, 0, kWorldPages, findings);
  free_own_retired(self);
  for (size_t i = 0; i < findings.orphan_count; ++i) evict_as(self, findings.orphans[i]);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{region.block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.children() != 0)
      findings.parent_suspect(PageRef::of(page, word.generation()));
  }
  recount(self, findings);
  shm::repair_entries(region, 0, region.buckets());     // 4
  const uint64_t overflow = region.overflow_buckets();  // 5
  shm::release_host_overflow(region, dead, 0, overflow / 2);
  shm::release_host_overflow(region, dead, overflow / 2, overflow);
  for (uint32_t lane = first; lane < end; ++lane) shm::clear_host_lane(region, lane);
  region.host(dead).wanted.store_release(0);
  settle();
  taken_back_by[dead] = kHosts;
  const HostClaim claim = shm::read_claim(region, dead);  // 6
  if (claim != HostClaim::dead(claim.generation(), self, lives[self]))
    fail("host %u lost the right to take back host %u", self, dead);
  shm::free_host(region, dead, claim);
}

// Whether there is proof of a host's death. The negative control takes a late heartbeat for one.
bool has_proof(uint32_t host, uint32_t life) {
  return life_is_over(host, life) || (mutant(kMutantReclaimOnSuspicion) && is_declared_by_suspicion[host]);
}

// Returns true if this host is to take back what that one held.
bool declare_if_dead(uint32_t self, uint32_t host, HostClaim claim) {
  if (claim.is(HostState::kFree)) return false;
  if (claim.is(HostState::kDead))
    return shm::is_reclaimer_gone(world(), claim) && shm::declare_host_dead(world(), host, claim, self, lives[self]);
  if (!has_proof(host, claim.generation())) return false;
  for (uint32_t waits = late_life != 0 || chance().chance(3) ? chance().below(30) : 0; waits > 0; --waits)
    yield();  // the proof takes its time
  return shm::declare_proven_dead(world(), host, claim.generation(), self, lives[self]);
}

void watch_others(uint32_t self) {
  HostClaim mine = shm::read_claim(world(), marud_lane(self) / world().lanes_per_host());
  if (mine.is(HostState::kSuspect)) shm::host_is_well(world(), self, mine);
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (host == self) continue;
    HostClaim claim = shm::read_claim(world(), host);
    // A clock that runs fast, or a host that is slow: nobody can tell it from death.
    if (claim.is(HostState::kLive) && (is_lost(host) || chance().chance(4))) {
      if (shm::suspect_host(world(), host, claim)) is_declared_by_suspicion[host] = true;
      claim = shm::read_claim(world(), host);
    }
    if (!declare_if_dead(self, host, claim)) continue;
    if (!life_is_over(host, claim.generation()) && !mutant(kMutantReclaimOnSuspicion))
      fail("host %u declares host %u dead, which lives", self, host);
    take_back(self, host);
  }
}

bool is_settled(uint32_t host) {
  if (host == kRejoined && late_life != 0) return process_ended(kLateClient);
  if (!host_died(host)) return process_ended(client_lane(host));
  return shm::read_claim(world(), host).is(HostState::kFree);
}

bool has_work(uint32_t self) {
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (host == self) continue;
    const HostClaim claim = shm::read_claim(world(), host);
    if (claim.is(HostState::kDead) ? shm::is_reclaimer_gone(world(), claim)
                                   : claim.is_in_use() && life_is_over(host, claim.generation()))
      return true;
  }
  return false;
}

bool holds_retired(uint32_t host) {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kRetired) && word.lane().lane == marud_lane(host)) return true;
  }
  return false;
}

// "Detach", as leave_slot() of pool_hosts.cc does.
void leave(uint32_t self) {
  const shm::ControlRegion& region = world();
  wait_for_process(client_lane(self));
  do {  // what others have pinned, they let go, or die
    watch_others(self);
    serve_recounts(self);
    free_own_retired(self);
  } while (holds_retired(self));
  leave_parts(self);
  for (uint32_t lane = marud_lane(self); lane <= client_lane(self); ++lane) shm::clear_host_lane(region, lane);
  note("host %u leaves", self);
  if (!shm::leave_host(region, self, lives[self])) fail("host %u cannot leave, and nobody knows that it is dead", self);
}

void marud_life(void* argument) {
  const uint32_t self = number_of(argument);
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    evict_some(self);
    if (self == drains)
      drain_part(self);
    else
      share_regions(self, lives[self]);
    serve_recounts(self);
    watch_others(self);
    free_own_retired(self);
    if (self == drains && chance().chance(3)) {
      drains = kHosts;
      cancel_drain(self);
    }
  }
  if (leaves && self == kRejoined && late_life == 0) return leave(self);
  const auto all_settled = [] {
    bool settled = true;
    for (uint32_t host = 0; host < kHosts; ++host) settled &= is_settled(host);
    return settled;
  };
  while (!all_settled()) {
    wait_until(
        [](void* host) {
          bool settled = true;
          for (uint32_t other = 0; other < kHosts; ++other) settled &= is_settled(other);
          return settled || has_work(number_of(host));
        },
        argument);
    watch_others(self);
    serve_recounts(self);
    free_own_retired(self);
  }
}

// -- those who come later ---------------------------------------------------------------------------------------------

// A new life in a slot, by the numbers of "Attach of a host". False: the slot was not to be had.
bool attach_host(uint32_t host) {
  HostClaim claim = shm::read_claim(world(), host);
  // Who fails met a change of state by another host, of which there are few. Nobody else ends what is ATTACHING here; that is
  // another scenario's (scenario_attach.cc).
  while (!shm::claim_host(world(), host, claim, 1)) {
    claim = shm::read_claim(world(), host);
    if (claim.is(HostState::kDead)) return false;
  }
  lives[host] = claim.generation() + 1;
  const HostClaim begun = shm::read_claim(world(), host);
  if (begun.is(HostState::kAttaching)) shm::finish_attach(world(), host, begun);
  world().host(host).epoch.fetch_add_seq_cst(1);
  world().host(host).wanted.store_release(0);
  attempts[host] = 0;
  for (shm::TouchReader& reader : readers[host]) reader.restart();
  return true;
}

void make_marud_of(uint32_t host) {
  make_client(marud_lane(host));
  marud_of(host).lane = marud_of(host).context.id = shm::daemon_lane(world(), host);
}

// "marud restarts", for the lanes and regions of one host.
void adopt_host(uint32_t host) {
  struct Dead final : shm::DeadLanes {
    uint32_t host = 0;
    bool is_dead(LaneId lane) const override { return lane.lane == marud_lane(host) && !(lane == marud_of(host).lane); }
  } dead;
  dead.host = host;
  const shm::ControlRegion& region = world();
  Findings findings;
  shm::end_lane_pins(region, marud_lane(host), findings);
  for (uint32_t page = 0; page < kWorldPages && !mutant(kMutantAdoptKeepsRetiring); ++page)
    shm::revive_retiring(region, host, page);
  shm::reclaim_pages(marud_of(host).context, dead, 0, kWorldPages, findings);
  free_own_retired(host);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{region.block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.children() != 0)
      findings.parent_suspect(PageRef::of(page, word.generation()));
  }
  recount(host, findings);
  for (uint32_t epoch = 1; epoch < marud_of(host).lane.generation; ++epoch)
    shm::release_overflow_of(region, {marud_lane(host), epoch});
  adopt_parts(host);
  shm::repair_entries(region, 0, region.buckets());
}

// The next marud of a host whose last one died alone.
void next_marud(void* argument) {
  const uint32_t host = number_of(argument);
  wait_for_process(marud_lane(host));
  if (!process_died(marud_lane(host)) || !attach_host(host)) return;
  note("the next marud of host %u adopts", host);
  make_marud_of(host);
  adopt_host(host);
  marud_life(argument);
}

// Another machine, in the slot of one that died.
void late_machine(void* argument) {
  const uint32_t host = number_of(argument);
  wait_until(
      [](void*) {
        if (process_ended(marud_lane(0)) && process_ended(marud_lane(2))) return true;
        return shm::read_claim(world(), kRejoined).is(HostState::kFree);
      },
      nullptr);
  if (!shm::read_claim(world(), host).is(HostState::kFree)) return;
  late_life = shm::read_claim(world(), host).generation() + 1;  // nobody else takes the slot
  if (!attach_host(host)) fail("a FREE slot is not to be had");
  note("another machine is host %u", host);
  reuse_lane(marud_lane(host), kLateMarud);
  reuse_lane(client_lane(host), kLateClient);
  make_marud_of(host);
  make_client(client_lane(host));
  adopt_parts(host);
  settle();
  spawn("late client", kLateClient, client_life, argument);
  marud_life(argument);
}

// -- the play ---------------------------------------------------------------------------------------------------------

// A lane that its marud hands out in the middle of the play.
void hand_out_late(void* argument) {
  const uint32_t host = number_of(argument);
  for (uint32_t waits = chance().below(40); waits > 0; --waits) yield();
  shm::set_lane_bit(world(), client_lane(host), true);
  settle();
  spawn("late client", client_lane(host), client_life, argument);
}

// `present`: the host whose client is there from the beginning, since nobody waits for another one.
void begin(bool with_wishes = false, uint32_t present = kHosts) {
  make_shared_world();
  make_marud();
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) make_client(lane);
  for (uint32_t host = 0; host < kHosts; ++host) {
    marud_of(host).lane = marud_of(host).context.id = shm::daemon_lane(world(), host);
    taken_back_by[host] = kHosts;
    is_declared_by_suspicion[host] = false;
    attempts[host] = 0;
    lives[host] = 1;
    for (shm::TouchReader& reader : readers[host]) reader.restart();
  }
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    define_key(key, key % 3);
    finished[key] = may_go[key] = false;
  }
  for (uint32_t& count : evictors) count = 0;
  late_life = 0;
  drains = kHosts;
  leaves = false;
  forget_wishes();
  if (with_wishes) begin_wishes(evict_as);
  if (chance().chance(2)) store_chain(client(client_lane(0)), 0, 3);
  uint32_t late = chance().below(2 * kHosts);  // perhaps none
  if (late == present) late = 2 * kHosts;
  for (uint32_t host = 0; host < kHosts; ++host) {
    spawn("marud", marud_lane(host), marud_life, argument_for(host));
    if (host == late) {
      shm::set_lane_bit(world(), client_lane(host), false);
      spawn("hands out", marud_lane(host), hand_out_late, argument_for(host));
      continue;
    }
    spawn("client", client_lane(host), client_life, argument_for(host));
    if (chance().chance(3)) spawn("thread", client_lane(host), client_life, argument_for(host));
  }
  play_shared_world();
}

void store_setup() { begin(); }

void death_setup() {
  begin();
  allow_host_death(0b010);
  if (chance().chance(2)) allow_host_death(0b100);
}

void wanted_setup() {
  begin(true);
  if (chance().chance(3)) return;
  allow_host_death(0b001);  // who is asked
  if (chance().chance(2)) allow_host_death(0b010);
}

void restart_setup() {
  belongs_to_machine(kNextMarud, kRestarted);
  begin(chance().chance(2), kRestarted);
  spawn("next marud", kNextMarud, next_marud, argument_for(kRestarted));
  allow_deaths(1u << marud_lane(kRestarted), 1);
  if (chance().chance(3)) allow_host_death(0b010);
}

void rejoin_setup() {
  belongs_to_machine(kLateMarud, kLateMachine);
  belongs_to_machine(kLateClient, kLateMachine);
  begin(chance().chance(2));
  spawn("late marud", kLateMarud, late_machine, argument_for(kRejoined));
  allow_host_death(0b010);
  if (chance().chance(2)) allow_host_death(0b100);  // perhaps while it takes back what the first one held
}

void drain_setup() {
  belongs_to_machine(kNextMarud, kRestarted);
  begin(true, kRestarted);
  drains = chance().chance(3) ? 1 : kRestarted;
  if (chance().chance(2)) return;
  spawn("next marud", kNextMarud, next_marud, argument_for(kRestarted));
  allow_deaths(1u << marud_lane(kRestarted), 1);
}

void leave_setup() {
  belongs_to_machine(kLateMarud, kLateMachine);
  belongs_to_machine(kLateClient, kLateMachine);
  begin(true, kRejoined);
  leaves = true;
  if (!chance().chance(4)) spawn("late marud", kLateMarud, late_machine, argument_for(kRejoined));
  if (chance().chance(3)) allow_host_death(0b100);
}

void hosts_on_death(unsigned process) {
  forget_process(process);
  for (unsigned& by : taken_back_by)
    if (by == machine_of(process)) by = kHosts;
}

void finish() {
  const uint32_t survivor = host_died(0) ? 2 : 0;     // one of them lives in every play
  while (has_work(survivor)) watch_others(survivor);  // a host that died after everybody else had gone home
  inherit_left(survivor);
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    const PageRef block = visible_block(key);
    if (finished[key] && !may_go[key] && block.is_none())
      fail("key %u was stored, nobody took it away, it is gone", key);
    if (!block.is_none()) check_payload(block.page(), key, "who comes later");
  }
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (is_gone(host)) continue;
    cancel_drain(host);
    free_own_retired(host);
    answer_last_wish(host);
  }
  // What a dead publisher left while somebody was about to evict it goes the ordinary way of eviction.
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    if (word.is(PageState::kReady) && entries_of(page, word.generation()) == 0) evict_as(survivor, page);
  }
  // Counts whose recount was lost on the way.
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (is_gone(host)) continue;
    serve_recounts(host);
    Findings findings;
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      const PageWord word{world().block(page).word.raw};
      if (word.is(PageState::kReady) && word.children() != 0)
        findings.parent_suspect(PageRef::of(page, word.generation()));
    }
    recount(host, findings);
  }
  for (uint32_t host = 0; host < kHosts; ++host) {
    const HostClaim claim = shm::read_claim(world(), host);
    if (is_gone(host) ? !claim.is(HostState::kFree) : !claim.is_in_use())
      fail("at rest host %u is in state %u", host, unsigned(claim.state()));
    for (uint32_t i = 0; is_gone(host) && i < world().regions(); ++i)
      if (shm::host_of_region(world(), i) == host) fail("at rest region %u is host %u's, which is gone", i, host);
  }
  check_rest();
}

constexpr Scenario kScenarios[] = {
    {"host-store", "three hosts store, read, delete and evict in one pool", store_setup, finish, hosts_on_death},
    {"host-death", "hosts die with their caches, and one of the others takes back what they held", death_setup, finish,
     hosts_on_death},
    {"host-wanted", "hosts ask each other for regions, and die over it", wanted_setup, finish, hosts_on_death},
    {"host-restart", "a marud dies on a host that lives, and the next one adopts", restart_setup, finish,
     hosts_on_death},
    {"host-rejoin", "another machine attaches in the slot of one that died", rejoin_setup, finish, hosts_on_death},
    {"host-leave", "a host leaves with its regions, which another one inherits while a machine attaches in its slot",
     leave_setup, finish, hosts_on_death},
    {"host-drain", "a host drains its part of the pool, and its marud dies over it", drain_setup, finish,
     hosts_on_death},
};

}  // namespace

std::span<const Scenario> host_scenarios() { return kScenarios; }

}  // namespace maru::sim
