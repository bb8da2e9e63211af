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
// where it was (host-leave), a host may drain its part of the pool (host-drain), and pages may have bad memory (host-poison).
#include "cast.h"
#include "cast_hosts.h"
#include "cast_wishes.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/adopt.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/poison.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/host_claim.h"
#include "scenario.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace maru::sim {
namespace {

using namespace hosts;
using shm::HostClaim;
using shm::HostState;

constexpr unsigned kNextMarud = 6;  // the process of the next marud of a host
constexpr uint32_t kRestarted = 0;  // its slot
// From here on each key has one client that stores it: two keys for each host. The keys of hosts 1 and 2 need a key cell.
constexpr uint32_t kNobodysKeys = kFirstLongKey - 2;

bool finished[kWorldKeys];        // a store of this key has returned
uint32_t drains;                  // the host that drains its part, or kHosts
bool has_bad_memory;              // pages are POISONED, by any host
bool is_out_of_use[kWorldPages];  // some marud was told, and has done so
PoisonKnowledge poison_known[kHosts];
bool leaves;  // kRejoined ends in order when its client has, and another machine comes
// Where the keys of this schedule lie, and of the next one.
struct Keys {
  bool share_bucket = false;  // every key has the same home bucket, whose overflow bucket comes and goes
  bool flap = false;          // nothing else happens, and seven keys of the bucket stay
} keys_lie, next_keys;

// Lost, or it has left by the end and no other machine has come.
bool is_gone(uint32_t host) { return is_lost(host) || (leaves && host == kRejoined && late_life == 0); }

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
      default: {
        const uint32_t wanted = chance().chance(2) ? key : kNobodysKeys + chance().below(2 * kHosts);
        const Held held = find_and_hold(who, wanted);
        if (held.ref.is_none()) break;
        check_payload(held.ref.page(), wanted, "a reader");
        check_metadata(held.ref.page(), wanted, "a reader");
        if (chance().chance(2)) check_key(held.ref, wanted, "a reader");
        release(who, held);
        break;
      }
    }
  }
}

constexpr uint32_t kStayingKeys = 2;  // from here on the seven of bucket-flap

void flap_life(void* argument) {
  Client& who = client(client_lane(number_of(argument)));
  for (uint32_t rounds = 2 + chance().below(6); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kStayingKeys);
    if (chance().chance(2))
      store(who, key);
    else
      remove(who, key);
  }
}

// -- marud of a host --------------------------------------------------------------------------------------------------

// "Detach", as leave_slot() of daemon/pool/pool.cc does.
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
  if (!shm::leave_host(region, self, plays[self].life))
    fail("host %u cannot leave, and nobody knows that it is dead", self);
}

// -- bad memory, as removal/poison.cc has it -----------------------------------------------------------------------------

// Whoever is told of a bad page takes it out of use, whatever host looks after its region.
void poison_something(uint32_t self) {
  const PageRef block = visible_block(chance().below(6));
  const uint32_t page = chance().chance(2) && !block.is_none() ? block.page() : chance().below(kWorldPages);
  if (poison_as(marud_of(self), page, poison_known[self])) is_out_of_use[page] = true;
}

// What is POISONED in its own regions and in nobody's, and what it has POISONED itself. A host does not know what a page was
// that it did not take out of use, so it waits for everybody who may be filling the pages behind.
void settle_poison_of(uint32_t self, bool at_rest) {
  PoisonKnowledge& known = poison_known[self];
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    const uint32_t host = shm::host_of_region(world(), world().region_of(page));
    const bool is_own = host == self || host == kHosts;
    if (is_own && word.is_findable(word.generation()) && shm::has_poisoned_tail(world(), page)) {
      if (poison_as(marud_of(self), page, known)) is_out_of_use[page] = true;
      continue;
    }
    if (!word.is(PageState::kPoisoned) || known.was_let_go[page]) continue;
    if (is_own && !known.is_held[page]) {
      known.is_held[page] = true;
      known.filled_by[page] = ~0u;
    }
    if (!known.is_held[page]) continue;
    const bool has_none_below = take_descendants(marud_of(self), PageRef::of(page, word.generation()), known);
    if (!shm::is_poison_unpinned(marud_of(self).context, lanes_of(self), page) || !has_none_below) continue;
    if (!at_rest && has_filler(page, known)) continue;
    PageRef parent;
    shm::let_poison_go(world(), page, &parent);
    known.was_let_go[page] = true;
    Findings findings;
    if (!parent.is_none()) findings.parent_suspect(parent);
    recount(self, findings);
  }
  free_own_retired(self);
}

void marud_life(void* argument) {
  const uint32_t self = number_of(argument);
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    if (!keys_lie.flap) evict_some(self);
    if (has_bad_memory) {
      if (chance().chance(2)) poison_something(self);
      settle_poison_of(self, false);
    }
    if (self == drains)
      drain_part(self);
    else
      share_regions(self, plays[self].life);
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
  plays[host].life = claim.generation() + 1;
  const HostClaim begun = shm::read_claim(world(), host);
  if (begun.is(HostState::kAttaching)) shm::finish_attach(world(), host, begun);
  world().host(host).epoch.fetch_add_seq_cst(1);
  world().host(host).wanted.store_release(0);
  plays[host].attempts = 0;
  for (shm::TouchReader& reader : plays[host].readers) reader.restart();
  return true;
}

void make_marud_of(uint32_t host) {
  make_client(marud_lane(host));
  marud_of(host).lane = marud_of(host).context.id = shm::daemon_lane(world(), host);
}

// "marud restarts", for the lanes and regions of one host: as Pool::adopt() does it.
void adopt_host(uint32_t host) {
  struct Dead final : shm::DeadLanes {
    uint32_t host = 0;
    bool is_dead(LaneId lane) const override { return lane.lane == marud_lane(host); }
  } dead;
  dead.host = host;
  const shm::ControlRegion& region = world();
  Findings findings;
  shm::adopt_lane(region, marud_lane(host), findings);
  std::array<bool, kWorldPages> is_own;
  for (uint32_t page = 0; page < kWorldPages; ++page)
    is_own[page] = shm::host_of_region(region, region.region_of(page)) == host;
  std::array<uint32_t, kWorldPages> children = {};
  shm::Adoption adoption = {.daemon = &marud_of(host).context, .dead = &dead, .sink = &findings, .children = children};
  for (uint32_t page = 0; page < kWorldPages; ++page)
    if (is_own[page]) shm::flag_count(region, page);
  for (uint32_t page = 0; page < kWorldPages; ++page) shm::adopt_page(adoption, page);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    if (const PageRef parent = shm::suspect_of(adoption, page, is_own[page]); !parent.is_none())
      findings.parent_suspect(parent);
  }
  recount(host, findings);
  shm::adopt_overflow(region, dead);
  adopt_parts(host);
  free_own_retired(host);
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
  keys_lie = next_keys;
  next_keys = {};
  make_shared_world();
  make_marud();
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) make_client(lane);
  for (uint32_t host = 0; host < kHosts; ++host)
    marud_of(host).lane = marud_of(host).context.id = shm::daemon_lane(world(), host);
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    define_key(key, keys_lie.share_bucket ? 0 : key % 3);
    finished[key] = false;
  }
  begin_hosts();
  drains = kHosts;
  leaves = has_bad_memory = false;
  for (bool& is_bad : is_out_of_use) is_bad = false;
  for (PoisonKnowledge& known : poison_known) known = {};
  forget_wishes();
  if (with_wishes) begin_wishes(evict_as);
  for (uint32_t key = kStayingKeys; keys_lie.flap && key < kStayingKeys + 7; ++key) store(client(client_lane(0)), key);
  if (!keys_lie.flap && chance().chance(2)) store_chain(client(client_lane(0)), 0, 3);
  const auto life = keys_lie.flap ? flap_life : client_life;
  uint32_t late = chance().below(2 * kHosts);  // perhaps none
  if (late == present) late = 2 * kHosts;
  for (uint32_t host = 0; host < kHosts; ++host) {
    spawn("marud", marud_lane(host), marud_life, argument_for(host));
    if (host == late) {
      shm::set_lane_bit(world(), client_lane(host), false);
      spawn("hands out", marud_lane(host), hand_out_late, argument_for(host));
      continue;
    }
    spawn("client", client_lane(host), life, argument_for(host));
    if (chance().chance(3)) spawn("thread", client_lane(host), life, argument_for(host));
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

void poison_setup() {
  begin(chance().chance(2));
  has_bad_memory = true;
  if (chance().chance(3)) return;
  allow_host_death(0b010);
  if (chance().chance(2)) allow_host_death(0b100);
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

// Any of these plays with all keys in one bucket.
template <void (*setup)(), bool only_flaps = false>
void in_one_bucket() {
  next_keys = {true, only_flaps};
  setup();
}

void hosts_on_death(unsigned process) {
  forget_process(process);
  for (HostPlay& play : plays)
    if (play.taken_back_by == machine_of(process)) play.taken_back_by = kHosts;
}

void finish() {
  const uint32_t survivor = host_died(0) ? 2 : 0;     // one of them lives in every play
  while (has_work(survivor)) watch_others(survivor);  // a host that died after everybody else had gone home
  inherit_left(survivor);
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    const PageRef block = visible_block(key);
    if (finished[key] && !may_go[key] && !poisons() && block.is_none())
      fail("key %u was stored, nobody took it away, it is gone", key);
    if (block.is_none()) continue;
    check_payload(block.page(), key, "who comes later");
    check_metadata(block.page(), key, "who comes later");
    check_key(block, key, "who comes later");
  }
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (is_gone(host)) continue;
    cancel_drain(host);
    free_own_retired(host);
    answer_last_wish(host);
  }
  for (uint32_t rounds = has_bad_memory ? kWorldPages : 0; rounds > 0; --rounds)
    for (uint32_t host = 0; host < kHosts; ++host) {
      if (is_gone(host)) continue;
      settle_poison_of(host, true);
      serve_recounts(host);
    }
  for (uint32_t page = 0; page < kWorldPages; ++page)
    if (is_out_of_use[page] && !PageWord{world().block(page).word.raw}.is(PageState::kPoisoned))
      fail("page %u has bad memory, and is in use again", page);
  // What a dead publisher left while somebody was about to evict it goes the ordinary way of eviction. A block of a publisher
  // that lives keeps its entry, or is RETIRED for good: nobody would look for it.
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    const auto publisher = LaneId::from_low(uint32_t(world().detail(page).owner.raw));
    const bool lives = publisher == lane_id(publisher.lane) && !process_died(lane_process(publisher.lane));
    if (word.is(PageState::kReady) && entries_of(page, word.generation()) == 0 && !lives) evict_as(survivor, page);
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
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const shm::RegionWord word{world().region(world().region_of(page)).word.raw};
    if (word.state() == format::RegionState::kRented && PageWord{world().block(page).word.raw}.is(PageState::kOut))
      fail("page %u is OUT and lane %u rents its region: it is lost", page, word.owner().lane);
  }
  check_rest();
}

constexpr Scenario kScenarios[] = {
    {"host-store", "three hosts store, read, delete and evict in one pool", store_setup, finish, hosts_on_death},
    {"host-death", "hosts die with their caches, and one of the others takes back what they held", death_setup, finish,
     hosts_on_death},
    {"host-wanted", "hosts ask each other for regions, and die over it", wanted_setup, finish, hosts_on_death},
    {"host-poison", "hosts take bad pages out of use, in each other's regions, too, and die over it", poison_setup,
     finish, hosts_on_death},
    {"host-restart", "a marud dies on a host that lives, and the next one adopts", restart_setup, finish,
     hosts_on_death},
    {"host-rejoin", "another machine attaches in the slot of one that died", rejoin_setup, finish, hosts_on_death},
    {"host-leave", "a host leaves with its regions, which another one inherits while a machine attaches in its slot",
     leave_setup, finish, hosts_on_death},
    {"host-drain", "a host drains its part of the pool, and its marud dies over it", drain_setup, finish,
     hosts_on_death},
    {"bucket-death", "as host-death, with all keys in one home bucket and its overflow bucket",
     in_one_bucket<death_setup>, finish, hosts_on_death},
    {"bucket-wanted", "as host-wanted, in one bucket", in_one_bucket<wanted_setup>, finish, hosts_on_death},
    {"bucket-poison", "as host-poison, in one bucket", in_one_bucket<poison_setup>, finish, hosts_on_death},
    {"bucket-restart", "as host-restart, in one bucket", in_one_bucket<restart_setup>, finish, hosts_on_death},
    {"bucket-flap", "hosts link and release one overflow bucket all the time, and die over it",
     in_one_bucket<death_setup, true>, finish, hosts_on_death},
    {"bucket-rejoin", "as host-rejoin, in one bucket", in_one_bucket<rejoin_setup>, finish, hosts_on_death},
};

}  // namespace

std::span<const Scenario> host_scenarios() { return kScenarios; }

}  // namespace maru::sim
