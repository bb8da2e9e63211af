// Publishing, removing and looking up in one bucket.
#include "cast.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

uint32_t winners;  // stores of key 0 that said kStored
uint32_t key_count;

void begin(uint32_t clients, uint32_t keys, bool same_tag) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  winners = 0;
  key_count = keys;
  for (uint32_t key = 0; key < keys; ++key) define_key(key, 1, same_tag);
}

// -- one key, several publishers --------------------------------------------------------------------------------------

void publish_once(void* argument) {
  Client& who = client_of(argument);
  winners += store(who, 0).status == shm::PublishStatus::kStored;
  if (chance().chance(2)) retrieve(who, 0);
}

void same_key_setup() {
  begin(3, 1, false);
  spawn("publisher 1", 1, publish_once, argument_of(1));
  spawn("publisher 2", 2, publish_once, argument_of(2));
  if (chance().chance(2)) spawn("publisher 3", 3, publish_once, argument_of(3));
  allow_deaths(0b1110, 1);
}

void same_key_finish() {
  settle_world();
  if (deaths() == 0 && winners != 1) fail("%u publishers of one key won", winners);
  if (winners > 1) fail("%u publishers of one key won", winners);
  if (deaths() == 0) expect_free_pages(kWorldPages - 1, "after one key was stored by several");
}

// -- churn in one bucket ----------------------------------------------------------------------------------------------

void churn(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = chance().below(key_count);
    switch (chance().below(5)) {
      case 0:
      case 1: store(who, key); break;
      case 2: remove(who, key); break;
      case 3: retrieve(who, key); break;
      case 4: exists(key); break;
    }
  }
}

void look(void*) {
  const uint32_t rounds = 2 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) exists(chance().below(key_count));
}

void marud_evicts(void*) {
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    evict_page(chance().below(kWorldPages));
    free_handed_over();
  }
  reclaim_the_dead(0b1110);
}

void churn_setup() {
  begin(4, 3, chance().chance(4));
  for (uint32_t key = 0; key < key_count; ++key) {
    if (chance().chance(2)) store(client(4), key);
  }
  spawn("client 1", 1, churn, argument_of(1));
  spawn("client 2", 2, churn, argument_of(2));
  spawn("client 3", 3, chance().chance(2) ? churn : look, argument_of(3));
  spawn("marud", kMarud, marud_evicts);
  allow_deaths(0b1110, 2);
}

// -- a slot changes its key while somebody looks ----------------------------------------------------------------------

void replace(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(2); rounds > 0; --rounds) {
    remove(who, 0);
    store(who, 1);
    remove(who, 1);
    store(who, 0);
  }
}

void look_for_both(void*) {
  for (uint32_t rounds = 4 + chance().below(4); rounds > 0; --rounds) exists(rounds % 2);
}

void look_for_both_at_once(void*) {
  const uint32_t keys[] = {0, 1, chance().below(8), 0};
  for (uint32_t rounds = 2 + chance().below(3); rounds > 0; --rounds) exists_batch({keys, 2 + chance().below(3)});
}

void replace_while(void (*look)(void*)) {
  begin(4, 8, false);
  // The last slot of the home bucket, so that there is time between a look at the header and one at the slot.
  for (uint32_t key = 2; key < 8; ++key) store(client(4), key);
  store(client(4), 0);
  spawn("writer", 1, replace, argument_of(1));
  spawn("looker 2", 2, look, argument_of(2));
  spawn("looker 3", 3, look, argument_of(3));
  allow_deaths(0b0010, 1);
}
void replace_setup() { replace_while(look_for_both); }
void replace_many_setup() { replace_while(look_for_both_at_once); }

// -- a key is deleted and stored again at once ------------------------------------------------------------------------

void store_again(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) store(who, 0);
}

void delete_again(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) remove(who, 0);
}

void store_delete_setup() {
  begin(4, 1, false);
  store(client(4), 0);
  spawn("deleter", 1, delete_again, argument_of(1));
  spawn("publisher 2", 2, store_again, argument_of(2));
  spawn("publisher 3", 3, store_again, argument_of(3));
  spawn("marud", kMarud, marud_evicts);
  if (chance().chance(2)) allow_deaths(0b1110, 1);
}

// The smallest case: one goes, the others help its entry out of sight and take the slot.
void help_setup() {
  begin(4, 1, false);
  store(client(4), 0);
  spawn("deleter", 1, [](void*) { remove(client(1), 0); });
  spawn("publisher 2", 2, [](void*) { store(client(2), 0); });
  spawn("publisher 3", 3, [](void*) { store(client(3), 0); });
}

// -- a bucket that overflows ------------------------------------------------------------------------------------------

void overflow_setup() {
  begin(4, 10, chance().chance(8));
  // Around the seven slots of the home bucket, so that the overflow bucket comes and goes.
  for (uint32_t key = 3; key < 10; ++key) store(client(4), key);
  spawn("client 1", 1, churn, argument_of(1));
  spawn("client 2", 2, churn, argument_of(2));
  spawn("client 3", 3, churn, argument_of(3));
  spawn("marud", kMarud, marud_evicts);
  allow_deaths(0b1110, 2);
}

// Seven keys stay in the home bucket and two come and go: the overflow bucket is linked and released all the time.
void flap(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(5);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = chance().below(2);
    if (chance().chance(2))
      store(who, key);
    else
      remove(who, key);
  }
}

void flap_setup() {
  begin(4, 9, false);
  for (uint32_t key = 2; key < 9; ++key) store(client(4), key);
  if (chance().chance(2)) store(client(4), 1);
  spawn("client 1", 1, flap, argument_of(1));
  spawn("client 2", 2, flap, argument_of(2));
  spawn("client 3", 3, flap, argument_of(3));
  spawn("marud", kMarud, marud_evicts);
  allow_deaths(0b1110, 2);
}

// Two home buckets and their overflow buckets.
void two_overflows_setup() {
  begin(4, 16, false);
  for (uint32_t key = 0; key < 16; ++key) define_key(key, key % 2);
  for (uint32_t key = 2; key < 16; ++key) store(client(4), key);
  spawn("client 1", 1, churn, argument_of(1));
  spawn("client 2", 2, churn, argument_of(2));
  spawn("client 3", 3, churn, argument_of(3));
  spawn("marud", kMarud, marud_evicts);
  allow_deaths(0b1110, 2);
}

// -- both levels full -------------------------------------------------------------------------------------------------

void full_setup() {
  begin(4, 16, false);
  for (uint32_t key = 2; key < 16; ++key) {
    if (store(client(4), key).status != shm::PublishStatus::kStored)
      fail("key %u did not fit into an empty bucket", key);
  }
  if (store(client(4), 0).status != shm::PublishStatus::kRegistryFull)
    fail("a fifteenth key fitted into fourteen slots");
  spawn("client 1", 1, churn, argument_of(1));
  spawn("client 2", 2, churn, argument_of(2));
  spawn("marud", kMarud, marud_evicts);
  spawn("client 3", 3, look, argument_of(3));
  allow_deaths(0b1110, 1);
}

constexpr Scenario kScenarios[] = {
    {"same-key", "several publishers of one key: exactly one wins, the others' pages come back", same_key_setup,
     same_key_finish, forget_process},
    {"bucket-churn", "store, delete, evict, look up, all in one bucket", churn_setup, settle_world, forget_process},
    {"store-delete", "one key is deleted and stored again by several at once", store_delete_setup, settle_world,
     forget_process},
    {"entry-helped", "publishers help a deleted entry out of sight and take its slot", help_setup, settle_world,
     forget_process},
    {"slot-replaced", "a slot changes its key while others ask whether either is there", replace_setup, settle_world,
     forget_process},
    {"slots-replaced", "the same, while others ask for several keys in one call", replace_many_setup, settle_world,
     forget_process},
    {"bucket-overflow", "an overflow bucket comes and goes under stores, deletes and lookups", overflow_setup,
     settle_world, forget_process},
    {"overflow-flap", "the overflow bucket is linked and released all the time: it is never lost", flap_setup,
     settle_world, forget_process},
    {"two-overflows", "two home buckets compete for overflow buckets", two_overflows_setup, settle_world,
     forget_process},
    {"bucket-full", "both levels are full: an error of its own, and nothing else goes wrong", full_setup, settle_world,
     forget_process},
};

}  // namespace

std::span<const Scenario> registry_scenarios() { return kScenarios; }

}  // namespace maru::sim
