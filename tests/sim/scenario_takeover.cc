// A region is taken from its owner while the owner stores and caches pages in it: marud, the old owner, the new one and a
// reader, each of which may die at any step. docs/format.md, "A region is taken from its owner", has the steps.
//
// Beside what holds in every schedule: a block whose store has returned and that marud did not evict is there at the end; no
// page is lost, which means that no page of a RENTED region is OUT and every page that holds no block is FREE or OUT; and
// what an owner writes into a page that it has reserved nobody else touches.
//
// The same with a marud that drains the whole pool while they are at it, and is told to stop that (memory/drain.cc).
#include "cast.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/page_run.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

using format::RegionState;
using shm::RegionWord;

constexpr uint32_t kOwner = 1, kHeir = 2, kReader = 3;  // lanes, and processes
constexpr unsigned kNextMarud = 8;
constexpr uint32_t kContested = 1u << 0 | 1u << 1;  // regions that the owner rents at first
constexpr uint32_t kCacheMax = 3;

// What a client knows, in its private memory; its threads do not meet in the middle of a line here.
struct Tenure {
  uint32_t regions = 0;      // bit by index: what it believes to rent
  PageRef cache[kCacheMax];  // RESERVED ahead
  uint32_t cached = 0;
  uint32_t told = 0;       // a message of marud that was not looked at yet: regions given
  uint32_t told_lost = 0;  //   and taken
};
Tenure tenures[kWorldLanes];
bool finished[kWorldKeys];     // a store of this key has returned
bool was_evicted[kWorldKeys];  // somebody set about evicting it, so it may be gone
bool takes_no_more;            // marud is through with taking

uint32_t first_page(uint32_t index) { return index * kWorldRegionPages; }

// -- clients ----------------------------------------------------------------------------------------------------------

// What libmaru does when it was told of a region's loss, or has read its word.
void drop_region(Client& who, uint32_t index) {
  Tenure& tenure = tenures[who.lane.lane];
  tenure.regions &= ~(1u << index);
  for (uint32_t i = 0; i < tenure.cached;) {
    const PageRef page = tenure.cache[i];
    if (world().region_of(page.page()) != index) {
      ++i;
      continue;
    }
    tenure.cache[i] = tenure.cache[--tenure.cached];
    check_payload(page.page(), 100 + who.lane.lane, "the old owner");
    give_back(who, page);
    world().lane(who.lane.lane).header->frees.fetch_add_relaxed(1);
  }
}

void read_messages(Client& who) {
  Tenure& tenure = tenures[who.lane.lane];
  tenure.regions |= tenure.told;
  tenure.told = 0;
  const uint32_t lost = tenure.told_lost;
  tenure.told_lost = 0;
  for (uint32_t index = 0; index < world().regions(); ++index) {
    if ((lost >> index & 1) != 0 && !shm::owns_region(world(), index, who.lane)) drop_region(who, index);
  }
}

// A FREE page of a region that the client rents, as far as it knows and its word says.
PageRef take_own_page(Client& who) {
  Tenure& tenure = tenures[who.lane.lane];
  for (uint32_t index = 0; index < world().regions(); ++index) {
    if ((tenure.regions >> index & 1) == 0) continue;
    if (!shm::owns_region(world(), index, who.lane)) {
      drop_region(who, index);
      continue;
    }
    const uint32_t start = chance().below(kWorldRegionPages);
    for (uint32_t i = 0; i < kWorldRegionPages; ++i) {
      const PageRef page = shm::take_page(world(), who.lane, first_page(index) + (start + i) % kWorldRegionPages);
      if (!page.is_none()) return page;
    }
  }
  return PageRef::none();
}

PageRef take_cached_or_own(Client& who) {
  Tenure& tenure = tenures[who.lane.lane];
  if (tenure.cached == 0) return take_own_page(who);
  const PageRef page = tenure.cache[--tenure.cached];
  check_payload(page.page(), 100 + who.lane.lane, "who reserved it ahead");
  return page;
}

void cache_a_page(Client& who) {
  Tenure& tenure = tenures[who.lane.lane];
  if (tenure.cached == kCacheMax) return;
  const PageRef page = take_own_page(who);
  if (page.is_none()) return;
  write_payload(page.page(), 100 + who.lane.lane, page.generation());
  settle();  // the cache's lock: another thread may take the page from it
  if (tenure.cached == kCacheMax) return give_back(who, page);  // another thread was faster
  tenure.cache[tenure.cached++] = page;
}

void store_own(Client& who, uint32_t key, PageRef parent) {
  const PageRef own = take_cached_or_own(who);
  if (own.is_none()) return;
  write_payload(own.page(), key, own.generation());
  write_metadata(own.page(), key, own.generation());
  yield();
  check_payload(own.page(), key, "who fills the page");
  if (chance().chance(5)) return give_back(who, own);  // aborted; the region may be another's by now
  shm::NewBlock block;
  block.digest = key_digest(key);
  block.key = key_text(key);
  block.length = kPayloadWords * 8;
  block.metadata_bytes = metadata_bytes(key, own.generation());
  block.parent = parent;
  block.now_ms = now_ms();
  const shm::PublishResult result = shm::publish(who.context, own, block);
  if (result.status != shm::PublishStatus::kStored) return give_back(who, own);
  settle();  // whoever is told of it is told by a message
  if (entries_of(own.page(), own.generation()) != 0) finished[key] = true;
}

// Keys 4 * lane to 4 * lane + 3 are this client's own, each stored at most once.
void live(Client& who, uint32_t rounds) {
  const uint32_t first = 4 * who.lane.lane;
  uint32_t next = 0;
  PageRef parent = PageRef::none();
  for (uint32_t i = 0; i < rounds; ++i) {
    read_messages(who);
    switch (chance().below(4)) {
      case 0: cache_a_page(who); break;
      case 3: retrieve(who, 4 + chance().below(8)); break;
      default:
        if (next == 4) break;
        store_own(who, first + next, chance().chance(2) ? parent : PageRef::none());
        parent = visible_block(first + next++);
        break;
    }
  }
}

void give_caches_back(Client& who) {
  Tenure& tenure = tenures[who.lane.lane];
  while (tenure.cached > 0) give_back(who, tenure.cache[--tenure.cached]);
}

void owner_life(void* argument) {
  Client& who = client_of(argument);
  live(who, 3 + chance().below(6));
  read_messages(who);
  give_caches_back(who);
}

// The session thread of the owner's process: looks at messages while the other thread is anywhere.
void owner_session(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t i = 0; i < 6; ++i) {
    yield();
    read_messages(who);
  }
}

void heir_life(void* argument) {
  Client& who = client_of(argument);
  wait_until([](void*) { return tenures[kHeir].told != 0 || takes_no_more || process_ended(kMarud); }, nullptr);
  live(who, 3 + chance().below(5));
  give_caches_back(who);
}

// A hot block of the owner's is read all the time, and its children are in other regions.
void reader_life(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(5); rounds > 0; --rounds) {
    const uint32_t key = 4 + chance().below(4);
    const Held held = find_and_hold(who, key);
    if (held.ref.is_none()) continue;
    const uint32_t child = 4 * kReader + chance().below(4);
    if (!finished[child] && chance().chance(2) && store(who, child, held.ref).status == shm::PublishStatus::kStored) {
      settle();
      finished[child] = true;
    }
    check_payload(held.ref.page(), key, "a reader in a region that is taken");
    check_metadata(held.ref.page(), key, "a reader in a region that is taken");
    release(who, held);
  }
}

// -- marud ------------------------------------------------------------------------------------------------------------

// By its line: it may be READY and on its way into the registry.
void note_evicted(uint32_t page) {
  const format::BlockLine& line = world().block(page);
  for (uint32_t key = 0; key < kWorldKeys; ++key)
    if (Digest{line.digest_lo.raw, line.digest_hi.raw} == key_digest(key)) was_evicted[key] = true;
}

bool has_pinned_block(uint32_t index) {
  const shm::LaneSet lanes = shm::LaneSet::in_use(world());
  for (uint32_t page = first_page(index); page < first_page(index + 1); ++page)
    if (shm::is_pinned(world(), lanes, page)) return true;
  return false;
}

void set_region(uint32_t index, RegionState state, LaneId owner) {
  const RegionWord before{world().region(index).word.load_acquire()};
  shm::show_region(world(), index, RegionWord::of(state, before.generation() + 1, owner));
}

void evict_childless(uint32_t index) {
  for (uint32_t page = first_page(index); page < first_page(index + 1); ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (!word.is(PageState::kReady) || word.low() != 0) continue;
    note_evicted(page);
    evict_page(page);
  }
}

// The next request gets regions that nobody rents.
void rent_to_heir() {
  if (!is_lane_live(kHeir)) return;
  for (uint32_t index = 0; index < world().regions(); ++index) {
    const RegionState state = RegionWord{world().region(index).word.load_acquire()}.state();
    if ((state != RegionState::kUnused && state != RegionState::kOrphaned) || chance().chance(2)) continue;
    set_region(index, RegionState::kRented, client(kHeir).lane);
    shm::open_region_pages(world(), index);
    settle();
    tenures[kHeir].told |= 1u << index;
  }
}

// marud takes a region over several turns. Between two of them the asker may end, give up, or have got memory otherwise.
bool is_request_over() { return !is_lane_live(kHeir) || chance().chance(8); }

void take_region(uint32_t index) {
  if (has_pinned_block(index) || !is_lane_live(kHeir)) return;
  note("marud takes region %u", index);
  set_region(index, RegionState::kDraining, {});
  shm::close_region_pages(world(), index);
  for (uint32_t wave = 0; wave < kWorldRegionPages; ++wave) {
    if (is_request_over()) return set_region(index, RegionState::kOrphaned, {});
    evict_childless(index);
  }
  shm::close_region_pages(world(), index);
  set_region(index, RegionState::kRented, client(kHeir).lane);
  shm::open_region_pages(world(), index);
  settle();  // the answer to one and the message to the other
  tenures[kHeir].told |= 1u << index;
  if (!chance().chance(3)) tenures[kOwner].told_lost |= 1u << index;  // the others' messages are dropped
}

void marud_takes(void*) {
  for (uint32_t waits = chance().below(30); waits > 0; --waits) yield();
  for (uint32_t rounds = 1 + chance().below(2); rounds > 0; --rounds) {
    const uint32_t index = chance().below(2);
    if (shm::owns_region(world(), index, client(kOwner).lane)) take_region(index);
    free_handed_over();
    rent_to_heir();
  }
  takes_no_more = true;
  reclaim_the_dead(0b1110);
}

// What a marud makes of the region words that it finds.
void adopt_regions() {
  for (uint32_t index = 0; index < world().regions(); ++index) {
    const RegionWord word{world().region(index).word.load_acquire()};
    if (word.state() == RegionState::kRented && !process_died(lane_process(word.owner().lane))) {
      shm::open_region_pages(world(), index);
      continue;
    }
    const bool is_empty = shm::vacate_region(world(), index);
    set_region(index, is_empty ? RegionState::kUnused : RegionState::kOrphaned, {});
  }
}

// -- draining ---------------------------------------------------------------------------------------------------------

void drain_region(uint32_t index) {
  const RegionWord found{world().region(index).word.load_acquire()};
  if (found.state() != RegionState::kDraining) {
    set_region(index, RegionState::kDraining, {});
    settle();  // the message, which may be dropped
    if (found.state() == RegionState::kRented && !chance().chance(3))
      tenures[found.owner().lane].told_lost |= 1u << index;
  }
  evict_childless(index);
  shm::close_region_pages(world(), index);
}

void cancel_drain() {
  for (uint32_t index = 0; index < world().regions(); ++index) {
    if (RegionWord{world().region(index).word.load_acquire()}.state() != RegionState::kDraining) continue;
    set_region(index, shm::vacate_region(world(), index) ? RegionState::kUnused : RegionState::kOrphaned, {});
  }
}

void drain_and_cancel() {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    for (uint32_t index = 0; index < world().regions(); ++index) drain_region(index);
    free_handed_over();
  }
  cancel_drain();
  rent_to_heir();
}

void marud_drains(void*) {
  for (uint32_t waits = chance().below(30); waits > 0; --waits) yield();
  for (uint32_t rounds = 1 + chance().below(2); rounds > 0; --rounds) drain_and_cancel();
  takes_no_more = true;
  reclaim_the_dead(0b1110);
}

// -- after the death of marud -----------------------------------------------------------------------------------------

bool goes_on_draining;  // the state file says so

void next_marud(void*) {
  if (!make_next_marud()) return;
  adopt();
  adopt_regions();
  free_handed_over();
  if (goes_on_draining) drain_and_cancel();
  reclaim_the_dead(0b1110);
}

// -- the play ---------------------------------------------------------------------------------------------------------

void begin(void (*marud_life)(void*) = marud_takes) {
  goes_on_draining = marud_life == marud_drains && chance().chance(2);
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
  for (Tenure& tenure : tenures) tenure = {};
  for (bool& key : finished) key = false;
  for (bool& key : was_evicted) key = false;
  takes_no_more = false;
  tenures[kOwner].regions = kContested;
  for (uint32_t index = 0; index < world().regions(); ++index) {
    const LaneId owner = (kContested >> index & 1) != 0 ? client(kOwner).lane : client(4).lane;
    world().region(index).word.store_release(RegionWord::of(RegionState::kRented, 0, owner).bits);
  }
  spawn("owner", kOwner, owner_life, argument_of(kOwner));
  if (chance().chance(2)) spawn("owner's session", kOwner, owner_session, argument_of(kOwner));
  spawn("heir", kHeir, heir_life, argument_of(kHeir));
  spawn("reader", kReader, reader_life, argument_of(kReader));
  spawn("marud", kMarud, marud_life);
}

void takeover_setup() {
  begin();
  allow_deaths(0b1110, 2);
}

void takeover_restart_setup() {
  begin();
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 1);
}

void drain_setup() {
  begin(marud_drains);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 1);
}

void takeover_finish() {
  settle_world();
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    if (finished[key] && !was_evicted[key] && !visible_now(key))
      fail("key %u was stored, nobody evicted it, and it is gone", key);
  }
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    const RegionWord region_word{world().region(world().region_of(page)).word.raw};
    if (region_word.state() == RegionState::kDraining) fail("region %u drains for ever", world().region_of(page));
    if (word.is(PageState::kOut) && region_word.state() == RegionState::kRented)
      fail("page %u is OUT and lane %u rents its region: it is lost", page, region_word.owner().lane);
  }
}

constexpr Scenario kScenarios[] = {
    {"takeover", "a region is taken while its owner stores and caches pages in it; clients die", takeover_setup,
     takeover_finish, forget_process},
    {"takeover-restart", "marud dies while it takes a region, and another one adopts", takeover_restart_setup,
     takeover_finish, forget_process},
    {"drain", "marud drains the pool while clients store, read and cache pages, is told to stop, and dies over it",
     drain_setup, takeover_finish, forget_process},
};

}  // namespace

std::span<const Scenario> takeover_scenarios() { return kScenarios; }

}  // namespace maru::sim
