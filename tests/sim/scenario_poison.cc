// Bad memory: pages become POISONED in whatever state they are, while clients take, fill, publish, read, delete and match, and
// marud evicts, or dies and another one adopts.
#include "cast.h"
#include "libmaru/shm/region/page_run.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kNextMarud = 8;  // the process of the second marud

void begin() {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
}

void client_life(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    switch (chance().below(7)) {
      case 0: store_chain(who, 0, 3); break;
      case 1: store(who, 4 + chance().below(3), PageRef::none(), 1 + chance().below(3)); break;
      case 2: remove(who, chance().below(7)); break;
      case 3: retrieve(who, chance().below(7)); break;
      case 4: match_chain(who, 0, 3); break;
      case 5: {
        const PageRef run = take_run(who, 2);
        if (!run.is_none()) give_back(who, run);
        break;
      }
      case 6: store(who, 8 + chance().below(2), visible_block(chance().below(3))); break;
    }
  }
}

void poison_something() {
  const PageRef block = visible_block(chance().below(7));
  poison(chance().chance(2) && !block.is_none() ? block.page() : chance().below(kWorldPages));
}

void marud_life(void*) {
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    poison_something();
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(3))
        evict_page(page);
    }
    free_handed_over();
    settle_poison(false);
  }
  reclaim_the_dead(0b1110);
}

void next_marud(void*) {
  if (!make_next_marud()) return;
  adopt();
  settle_poison(false);
  free_handed_over();
  reclaim_the_dead(0b1110);
}

void poison_setup() {
  begin();
  store_chain(client(4), 0, 3);
  store(client(4), 5, PageRef::none(), 3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, client_life, argument_of(lane));
  spawn("marud", kMarud, marud_life);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b1110, 1);
}

// -- a reader below a block that becomes POISONED ---------------------------------------------------------------------

void match_often(void* argument) {
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) match_chain(client_of(argument), 0, 4);
}

void poison_the_middle(void*) {
  const PageRef middle = visible_block(1 + chance().below(3));
  if (!middle.is_none()) poison(middle.page());
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    settle_poison(false);
    // As after a death of somebody who had lowered, or was about to lower, the root's count.
    const PageRef root = visible_block(0);
    if (!root.is_none() && chance().chance(2)) recount(root);
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady)) evict_page(page);
    }
  }
  reclaim_the_dead(0b0110);
}

void hold_setup() {
  begin();
  store_chain(client(4), 0, 4);
  for (uint32_t lane = 1; lane <= 2; ++lane) spawn("reader", lane, match_often, argument_of(lane));
  spawn("marud", kMarud, poison_the_middle);
  allow_deaths(0b0110, 1);
}

constexpr Scenario kScenarios[] = {
    {"poison", "pages become POISONED in any state: their blocks are missed, nothing else is lost", poison_setup,
     settle_world, forget_process},
    {"poison-hold", "a block in the middle of a chain is POISONED: who pins below keeps the ancestors", hold_setup,
     settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> poison_scenarios() { return kScenarios; }

}  // namespace maru::sim
