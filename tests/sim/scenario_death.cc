// What outlives a process: marud dies in the middle of its work and another one adopts the pool, lanes are used again, blocks
// are cleared or expire under clients that die.
#include "cast.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kNextMarud = 8;   // the process of the second marud
constexpr unsigned kNextClient = 9;  // the process that gets a dead client's lane

void begin(uint32_t clients) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
}

void marud_works(void*) {
  const uint32_t rounds = 1 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(2))
        evict_page(page);
    }
    free_handed_over();
  }
  reclaim_the_dead(0b1110);
}

// -- owners die, what they finished stays -----------------------------------------------------------------------------

bool finished[kWorldKeys];  // a store of this key has returned
uint32_t finished_pages;

void store_for_ever(void* argument) {
  Client& who = client_of(argument);
  const uint32_t first = 4 * lane_of(argument);
  PageRef parent = PageRef::none();
  for (uint32_t key = first; key < first + 1 + chance().below(3); ++key) {
    const uint32_t pages = 1 + chance().below(2);
    const Stored stored = store(who, key, chance().chance(2) ? parent : PageRef::none(), pages);
    if (stored.status != shm::PublishStatus::kStored) continue;
    settle();  // whoever is told of it is told by a message
    finished[key] = true;
    finished_pages += pages;
    parent = stored.block;
  }
}

void owner_setup() {
  begin(3);
  finished_pages = 0;
  for (bool& key : finished) key = false;
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("owner", lane, store_for_ever, argument_of(lane));
  spawn("marud", kMarud, [](void*) { reclaim_the_dead(0b1110); });
  allow_deaths(0b1110, 3);
}

void owner_finish() {
  settle_world();
  uint32_t used = 0;
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    if (finished[key] && !visible_now(key)) fail("key %u was stored, nobody took it away, and it is gone", key);
    if (visible_now(key)) used += world().run_pages(visible_block(key).page());
  }
  if (used < finished_pages) fail("%u pages hold blocks and %u were stored", used, finished_pages);
  expect_free_pages(kWorldPages - used, "when every page that holds no block must be");
}

// -- marud dies and another one adopts --------------------------------------------------------------------------------

void client_life(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    switch (chance().below(6)) {
      case 0: store_chain(who, 0, 3); break;
      case 1: store(who, 4 + chance().below(3)); break;
      case 2: remove(who, chance().below(7)); break;
      case 3: retrieve(who, chance().below(7)); break;
      case 4: match_chain(who, 0, 3); break;
      case 5: exists(chance().below(7)); break;
    }
  }
}

void next_marud(void*) {
  if (!make_next_marud()) return;
  adopt();
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(3)) evict_page(page);
  }
  free_handed_over();
  reclaim_the_dead(0b1110);
}

void restart_setup() {
  begin(4);
  store_chain(client(4), 0, 3);
  store(client(4), 5);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, client_life, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 2);
}

// The same, and the marud that adopts dies over it; settle_world() is the third.
void adopt_restart_setup() {
  restart_setup();
  allow_deaths(1u << kNextMarud, 1);
}

// -- a bucket overflows, and its overflow bucket has a dead owner -------------------------------------------------------

constexpr uint32_t kOverflowKeys = 10;

void churn_overflow(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kOverflowKeys);
    switch (chance().below(5)) {
      case 0:
      case 1: store(who, key); break;
      case 2:
      case 3: remove(who, key); break;
      case 4: retrieve(who, key); break;
    }
  }
}

void overflow_adopt_setup() {
  begin(4);
  for (uint32_t key = 0; key < kOverflowKeys; ++key) define_key(key, 1);
  // The home bucket has seven slots.
  for (uint32_t key = 0; key < 7 + chance().below(3); ++key) store(client(4), key);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, churn_overflow, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 2);
  if (chance().chance(2)) allow_deaths(1u << kNextMarud, 1);
}

// -- marud dies while it evicts children, and their parents are counted again -----------------------------------------

void store_children(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const PageRef parent = visible_block(0);
    store(who, 8 + chance().below(4), parent);
  }
}

void read_children(void* argument) {
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) retrieve(client_of(argument), 1 + chance().below(2));
}

void evict_and_reclaim(void*) {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    for (uint32_t key = 1; key < 3; ++key) {
      const PageRef ref = visible_block(key);
      if (!ref.is_none()) evict_page(ref.page());
    }
  }
  reclaim_the_dead(0b1110);
}

void recount_restart_setup() {
  begin(4);
  store(client(4), 0);
  store(client(4), 1, visible_block(0));
  store(client(4), 2, visible_block(0));
  spawn("publisher", 1, store_children, argument_of(1));
  spawn("reader", 2, read_children, argument_of(2));
  spawn("reader", 3, read_children, argument_of(3));
  spawn("marud", kMarud, evict_and_reclaim);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b0010, 1);
}

// The same with publishers that go on while the next marud counts.
void change_children(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(5); rounds > 0; --rounds) {
    const uint32_t key = 8 + chance().below(4);
    if (chance().chance(2))
      store(who, key, visible_block(0));
    else
      remove(who, key);
  }
}

void recount_adopt_setup() {
  begin(4);
  store(client(4), 0);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("publisher", lane, change_children, argument_of(lane));
  spawn("marud", kMarud, [](void*) { reclaim_the_dead(0b1110); });
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 2);
}

// -- clear, against publishers ----------------------------------------------------------------------------------------

void marud_clears(void*) {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    clear_blocks();
    free_handed_over();
  }
  reclaim_the_dead(0b1110);
}

void clear_setup() {
  begin(4);
  store_chain(client(4), 0, 3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, client_life, argument_of(lane));
  spawn("marud", kMarud, marud_clears);
  allow_deaths(0b1110, 2);
}

// The same, and marud dies over it.
void clear_restart_setup() {
  clear_setup();
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
}

// -- chains in a batch, and blocks that their publisher keeps pinned --------------------------------------------------

void store_batches(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    if (chance().chance(3))
      remove(who, chance().below(4));
    else
      store_chain_batch(who, 0, 2 + chance().below(3));
  }
}

void batch_setup() {
  begin(3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, store_batches, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b1110, 2);
  if (chance().chance(2)) allow_deaths(0b0001, 1);
}

void store_and_keep(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    const uint32_t key = chance().below(3);
    const Held held = store_and_hold(who, key, chance().chance(3) ? visible_block(3) : PageRef::none());
    if (held.ref.is_none()) {
      remove(who, key);
      continue;
    }
    retrieve(who, chance().below(3));
    check_payload(held.ref.page(), key, "who stored it and keeps it pinned");
    check_metadata(held.ref.page(), key, "who stored it and keeps it pinned");
    release(who, held);
  }
}

void pinned_setup() {
  begin(4);
  store(client(4), 3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, store_and_keep, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b1110, 2);
  if (chance().chance(2)) allow_deaths(0b0001, 1);
}

// The same while marud clears the pool: who is told that the pages are still its own has them.
void pinned_clear_setup() {
  begin(4);
  store(client(4), 3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, store_and_keep, argument_of(lane));
  spawn("marud", kMarud, marud_clears);
  allow_deaths(0b1110, 1);
}

// A thread of the publisher stores a child before the store of its parent has returned.
PageRef told_early;

void store_told_early(void* argument) {
  Client& who = client_of(argument);
  told_early = take_page(who);
  store_in(who, 0, told_early, PageRef::none());
}

void store_below_early(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t key = 1; key < 3; ++key) {
    if (!told_early.is_none()) store(who, key, told_early);
  }
}

void early_setup() {
  begin(3);
  allow_early_children();
  told_early = PageRef::none();
  spawn("publisher", 1, store_told_early, argument_of(1));
  spawn("its thread", 1, store_below_early, argument_of(1));
  spawn("other publisher", 2, [](void*) { store(client(2), 0); });
  spawn("reader", 3, [](void*) { retrieve(client(3), chance().below(3)); });
  spawn("marud", kMarud, chance().chance(2) ? marud_works : marud_clears);
  if (chance().chance(3)) allow_deaths(0b0110, 1);
}

void early_finish() {
  for (uint32_t key = 1; key < 3; ++key) remove(client(3), key);
  settle_world();
}

// -- blocks that expire -----------------------------------------------------------------------------------------------

void store_until_it_fits(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    const uint32_t key = chance().below(2);
    for (uint32_t tries = 0; tries < 3; ++tries) {
      const Stored stored = store(who, key, chance().chance(3) ? visible_block(1 - key) : PageRef::none());
      if (stored.status != shm::PublishStatus::kExpiredInTheWay) break;
      if (shm::retire_ref(who.context, stored.block) == shm::RetireStatus::kRetired)
        free_or_hand_over(who, stored.block);
    }
    if (chance().chance(2)) advance_time(5);
    retrieve(who, key);
  }
}

void expiry_setup() {
  begin(4);
  set_time_to_live(10);  // a multiple of the steps of the clock, so that a look may fall into the last millisecond
  store(client(4), 0);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, store_until_it_fits, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  allow_deaths(0b1110, 1);
}

// -- a lane is used again ---------------------------------------------------------------------------------------------

void marud_gives_lane_again(void*) {
  wait_for_process(1);
  if (process_died(1)) {
    reclaim_lane(1);
    reuse_lane(1, kNextClient);
    make_client(1);
    spawn("next client", kNextClient, client_life, argument_of(1));
  }
  marud_works(nullptr);
}

void reuse_setup() {
  begin(4);
  store_chain(client(4), 0, 3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, client_life, argument_of(lane));
  spawn("marud", kMarud, marud_gives_lane_again);
  allow_deaths(0b0010, 1);
  allow_deaths(0b1100, 1);
}

constexpr Scenario kScenarios[] = {
    {"owner-death", "owners die at any step: what they finished stays, everything else is FREE again", owner_setup,
     owner_finish, forget_process},
    {"restart", "marud dies in the middle of eviction or reclaim and another one adopts", restart_setup, settle_world,
     forget_process},
    {"adopt-restart", "marud dies, the one that adopts dies over that, and a third one adopts", adopt_restart_setup,
     settle_world, forget_process},
    {"overflow-adopt", "marud and clients die while an overflow bucket comes and goes, and other maruds adopt",
     overflow_adopt_setup, settle_world, forget_process},
    {"recount-restart", "marud dies while it evicts children whose parent must be counted again", recount_restart_setup,
     settle_world, forget_process},
    {"recount-adopt", "marud dies over taking back a publisher, and the next one counts while others publish",
     recount_adopt_setup, settle_world, forget_process},
    {"clear", "marud clears the pool while clients publish into it", clear_setup, settle_world, forget_process},
    {"clear-restart", "marud dies while it clears the pool, and another one adopts", clear_restart_setup, settle_world,
     forget_process},
    {"chain-batch", "clients store chains in pages that they took ahead, and die between any two steps", batch_setup,
     settle_world, forget_process},
    {"store-pinned", "who stores a block under its own pin keeps it; clients and marud die", pinned_setup, settle_world,
     forget_process},
    {"store-pinned-clear",
     "who stores under its own pin while marud clears: told that the pages are its own, it has them",
     pinned_clear_setup, settle_world, forget_process},
    {"early-child", "a child is stored before its parent's store has returned, which may lose its key", early_setup,
     early_finish, forget_process},
    {"expiry", "blocks expire and are replaced: nobody finds one that is too old", expiry_setup, settle_world,
     forget_process},
    {"lane-reuse", "a dead client's lane is reclaimed and given to another process", reuse_setup, settle_world,
     forget_process},
};

}  // namespace

std::span<const Scenario> death_scenarios() { return kScenarios; }

}  // namespace maru::sim
