// Chains: children against the eviction and deletion of their parents, prefix search, recounts after deaths.
#include "cast.h"
#include "libmaru/shm/blocks/block_store.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint32_t kChain = 4;   // keys 0 to 3 are the chain
constexpr uint32_t kFork = 8;    // keys 8 to 11 fork off it
constexpr uint32_t kMatch = 18;  // keys asked of match_prefix: more than one round of sixteen

void begin(uint32_t clients) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kFirstLongKey; ++key) define_key(key, key % 3);
}

void evict_some(void*) {
  const uint32_t rounds = 1 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    uint32_t pages[kWorldPages];
    uint32_t count = 0;
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady)) pages[count++] = page;
    }
    evict_pages({pages, count});
    free_handed_over();
  }
}

void evict_and_reclaim(void* argument) {
  evict_some(argument);
  reclaim_the_dead(0b1110);
}

void delete_some(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t i = 1 + chance().below(4); i > 0; --i) {
    // From the deepest key up, as somebody who removes a chain does, or anywhere.
    remove(who, chance().chance(2) ? chance().below(kChain) : i - 1);
  }
}

void store_fork(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t above = chance().below(kChain);
    const PageRef parent = shm::find_unpinned(world(), key_digest(above));
    store(who, kFork + chance().below(3), parent);
  }
}

void store_the_chain(void* argument) { store_chain(client_of(argument), 0, kChain); }

// -- the use of a deleted child -----------------------------------------------------------------------------------------

PageRef watched_parent;

void delete_the_child(void* argument) { remove(client_of(argument), 1); }

// marud may evict the parent as soon as it has no child: by then the child's last use must be in the ring of who deleted it.
void watch_the_parent(void*) {
  for (uint32_t rounds = 60; rounds > 0; --rounds) {
    const PageWord found{world().block(watched_parent.page()).word.load_acquire()};
    if (!found.is(PageState::kReady) || found.children() != 0) continue;
    bool is_touched = false;
    for (const AtomicU64& entry : world().lane(1).touches)
      is_touched |= entry.load_acquire() >> 32 == uint64_t(watched_parent.page()) + 1;
    if (!is_touched) fail("page %u has no child any more, and no touch of it was left", watched_parent.page());
    return;
  }
}

void deleted_child_setup() {
  begin(4);
  watched_parent = store(client(4), 0).block;
  store(client(4), 1, watched_parent);
  spawn("client", 1, delete_the_child, argument_of(1));
  spawn("marud", kMarud, watch_the_parent);
  if (chance().chance(2)) spawn("reader", 2, [](void* argument) { retrieve(client_of(argument), 1); }, argument_of(2));
  allow_deaths(0b0110, 1);
}

void match_the_chain(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(2);
  for (uint32_t i = 0; i < rounds; ++i) match_chain(who, 0, chance().chance(2) ? kChain : kMatch);
}

// Whatever a client does with chains.
void anything(void* argument) {
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    switch (chance().below(5)) {
      case 0: store_the_chain(argument); break;
      case 1: store_fork(argument); break;
      case 2: delete_some(argument); break;
      case 3: match_the_chain(argument); break;
      case 4: retrieve(client_of(argument), chance().below(kChain)); break;
    }
  }
}

// -- a child is stored while its parent is evicted or deleted ---------------------------------------------------------

void child_setup() {
  begin(4);
  store_chain(client(4), 0, 1 + chance().below(2));
  spawn("child 1", 1, store_fork, argument_of(1));
  spawn("child 2", 2, chance().chance(2) ? store_fork : store_the_chain, argument_of(2));
  if (chance().chance(2)) spawn("deleter", 3, delete_some, argument_of(3));
  spawn("marud", kMarud, evict_some);
}

// -- a pin on the deepest block holds the chain -----------------------------------------------------------------------

void hold_setup() {
  begin(4);
  store_chain(client(4), 0, kChain);
  spawn("reader 1", 1, match_the_chain, argument_of(1));
  if (chance().chance(2)) spawn("reader 2", 2, match_the_chain, argument_of(2));
  spawn("deleter", 3, delete_some, argument_of(3));
  spawn("marud", kMarud, evict_some);
}

// -- the same chain by several clients --------------------------------------------------------------------------------

void chain_race_setup() {
  begin(4);
  spawn("client 1", 1, store_the_chain, argument_of(1));
  spawn("client 2", 2, store_the_chain, argument_of(2));
  if (chance().chance(2)) spawn("client 3", 3, delete_some, argument_of(3));
  spawn("marud", kMarud, evict_some);
}

// -- counts after deaths ----------------------------------------------------------------------------------------------

void recount_setup() {
  begin(4);
  store_chain(client(4), 0, 1 + chance().below(3));
  spawn("client 1", 1, store_fork, argument_of(1));
  spawn("client 2", 2, chance().chance(2) ? store_fork : delete_some, argument_of(2));
  spawn("client 3", 3, delete_some, argument_of(3));
  spawn("marud", kMarud, evict_and_reclaim);
  allow_deaths(0b0010, 1);
  allow_deaths(0b1100, 1);
}

// -- a recount while one child goes and another comes -----------------------------------------------------------------

void die_with_intent(void* argument) {
  const PageRef parent = visible_block(0);
  world().lane(lane_of(argument)).header->parent_intent[0].store_release(parent.bits);
  settle();
  die_here();
}

void swap_children_setup() {
  begin(4);
  store(client(4), 0);
  store(client(4), 1, visible_block(0));
  spawn("dead", 1, die_with_intent, argument_of(1));
  spawn("deleter", 2, [](void*) { remove(client(2), 1); });
  spawn("publisher", 3, [](void*) { store(client(3), 2, visible_block(0)); });
  spawn("marud", kMarud, [](void*) {
    wait_for_process(1);
    reclaim_lane(1);
  });
}

// -- prefix matching under churn --------------------------------------------------------------------------------------

// Some of the keys belong to no chain or to another one: presence alone proves nothing.
void foreign_blocks(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = 1 + chance().below(3);
    if (chance().chance(2))
      store(who, key);
    else
      remove(who, key);
  }
}

void prefix_setup() {
  begin(4);
  if (chance().chance(2)) store_chain(client(4), 0, chance().below(kChain + 1));
  spawn("reader 1", 1, match_the_chain, argument_of(1));
  spawn("writer 2", 2, chance().chance(2) ? store_the_chain : foreign_blocks, argument_of(2));
  spawn("writer 3", 3, chance().chance(2) ? delete_some : foreign_blocks, argument_of(3));
  spawn("marud", kMarud, evict_some);
  if (chance().chance(2)) allow_deaths(0b1110, 1);
}

// -- everything, with deaths ------------------------------------------------------------------------------------------

void storm_setup() {
  begin(4);
  if (chance().chance(2)) store_chain(client(4), 0, kChain);
  spawn("client 1", 1, anything, argument_of(1));
  spawn("client 2", 2, anything, argument_of(2));
  spawn("client 3", 3, anything, argument_of(3));
  if (chance().chance(3)) spawn("thread 3b", 3, anything, argument_of(3));
  spawn("marud", kMarud, evict_and_reclaim);
  allow_deaths(0b1110, 3);
}

constexpr Scenario kScenarios[] = {
    {"child-evict", "a child is stored while its parent is evicted or deleted: no child without a parent", child_setup,
     settle_world, forget_process},
    {"chain-hold", "a pin on the deepest block holds its ancestors, also when the block is deleted", hold_setup,
     settle_world, forget_process},
    {"deleted-child",
     "a client deletes a child and may die: whoever sees the parent without it finds its use in the ring",
     deleted_child_setup, settle_world, forget_process},
    {"chain-race", "several clients store one chain, going on with the winner", chain_race_setup, settle_world,
     forget_process},
    {"recount", "publishers and deleters of children die: counts are right again, and never too low", recount_setup,
     settle_world, forget_process},
    {"recount-swap", "one child goes and another comes while their parent is counted again", swap_children_setup,
     settle_world, forget_process},
    {"prefix", "match_prefix by search and walk, under churn and foreign blocks", prefix_setup, settle_world,
     forget_process},
    {"chain-storm", "clients do anything with chains and die", storm_setup, settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> chain_scenarios() { return kScenarios; }

}  // namespace maru::sim
