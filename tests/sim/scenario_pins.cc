// Pins against eviction and deletion.
#include "cast.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kClients = 0b011110;  // processes 1 to 4

void begin(uint32_t keys, uint32_t clients) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < keys; ++key) define_key(key, key % 2);
}

// A reader: several rounds on the keys, some of them held for longer.
void read_keys(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = chance().below(2);
    if (chance().chance(4)) exists(key);
    retrieve(who, key);
  }
}

void evict_everything(void* argument) {
  const uint32_t thread = lane_of(argument);
  const uint32_t rounds = 1 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady)) evict_pages({&page, 1}, thread);
    }
    free_handed_over();
  }
}

void delete_keys(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t key = 0; key < 2; ++key) {
    if (!chance().chance(3)) remove(who, key);
  }
}

// -- pin against evict ------------------------------------------------------------------------------------------------

void pin_evict_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  spawn("reader 1", 1, read_keys, argument_of(1));
  spawn("reader 2", 2, read_keys, argument_of(2));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(0b000110, 1);
}

// -- many pins in one call --------------------------------------------------------------------------------------------

constexpr uint32_t kBatchKeys = 6;

// Two to four keys a call, now and then one of them twice.
void read_many(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    uint32_t keys[4];
    const uint32_t count = 2 + chance().below(3), first = chance().below(kBatchKeys);
    for (uint32_t i = 0; i < count; ++i) keys[i] = (first + i) % kBatchKeys;
    if (chance().chance(4)) keys[1] = keys[0];
    if (chance().chance(4)) exists_batch({keys, count});
    retrieve_batch(who, {keys, count});
  }
}

void delete_and_store(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kBatchKeys);
    remove(who, key);
    if (chance().chance(2)) store(who, key);
  }
}

// `occupied`: slots of each set of eight that other pins of the readers have. What does not fit goes one by one, and to
// the overflow area.
void batch_setup(uint32_t occupied) {
  begin(kBatchKeys, 4);
  for (uint32_t key = 0; key < kBatchKeys; ++key) store(client(4), key);
  for (uint32_t lane = 1; lane <= 2; ++lane) {
    shm::LaneView view = world().lane(lane);
    for (uint32_t i = 0; i < view.pins.size(); ++i)
      if (i % limits::kPinSetSlots < occupied) occupy_pin_slot(lane, i);
  }
  spawn("reader 1", 1, read_many, argument_of(1));
  if (chance().chance(2)) spawn("thread 1b", 1, read_many, argument_of(1));
  spawn("reader 2", 2, chance().chance(2) ? read_many : read_keys, argument_of(2));
  if (chance().chance(2)) spawn("writer", 3, delete_and_store, argument_of(3));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(0b001110, 1);
}
void batch_free_setup() { batch_setup(0); }
void batch_full_setup() { batch_setup(uint32_t(limits::kPinSetSlots) - 1 - chance().below(2)); }

// -- pin against delete -----------------------------------------------------------------------------------------------

void pin_delete_setup() {
  begin(2, 4);
  store(client(4), 0);
  store(client(4), 1);
  spawn("reader 1", 1, read_keys, argument_of(1));
  spawn("reader 2", 2, read_keys, argument_of(2));
  spawn("deleter", 3, delete_keys, argument_of(3));
  if (chance().chance(2)) spawn("deleter 2", 4, delete_keys, argument_of(4));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(kClients, 2);
}

// -- two threads of one client ----------------------------------------------------------------------------------------

void threads_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  spawn("thread 1a", 1, read_keys, argument_of(1));
  spawn("thread 1b", 1, read_keys, argument_of(1));
  if (chance().chance(2)) spawn("thread 1c", 1, read_keys, argument_of(1));
  spawn("reader 2", 2, read_keys, argument_of(2));
  if (chance().chance(2)) spawn("deleter", 3, delete_keys, argument_of(3));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(0b001110, 1);
}

// -- the overflow area ------------------------------------------------------------------------------------------------

// Every slot of the set is taken by pins of other pages, so that the next pin of this set goes to the overflow area.
void overflow_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  for (uint32_t lane = 1; lane <= 2; ++lane) {
    shm::LaneView view = world().lane(lane);
    for (uint32_t i = 0; i < view.pins.size(); ++i) occupy_pin_slot(lane, i);
  }
  spawn("reader 1", 1, read_keys, argument_of(1));
  spawn("reader 2", 2, read_keys, argument_of(2));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(0b000110, 1);
}

// Threads of one client share a slot there, too.
void overflow_threads_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  shm::LaneView view = world().lane(1);
  for (uint32_t i = 0; i < view.pins.size(); ++i) occupy_pin_slot(1, i);
  for (const char* name : {"thread 1a", "thread 1b", "thread 1c"}) spawn(name, 1, read_keys, argument_of(1));
  spawn("deleter", 3, delete_keys, argument_of(3));
  spawn("marud", kMarud, evict_everything);
  allow_deaths(0b001010, 1);
}

// -- a pin that moves -------------------------------------------------------------------------------------------------

void read_and_move(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 1 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = chance().below(2);
    Held held = find_and_hold(who, key);
    if (held.ref.is_none()) continue;
    for (uint32_t moves = 2 + chance().below(8); moves > 0; --moves) held = move_pin(who, held);
    check_payload(held.ref.page(), key, "a reader");
    release(who, held);
  }
}

void move_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  spawn("reader 1", 1, read_and_move, argument_of(1));
  spawn("reader 2", 2, read_and_move, argument_of(2));
  spawn("marud", kMarud, evict_everything);
}

// -- two threads that evict -------------------------------------------------------------------------------------------

void two_evictors_setup() {
  begin(2, 3);
  store(client(3), 0);
  store(client(3), 1);
  spawn("reader 1", 1, read_keys, argument_of(1));
  spawn("reader 2", 2, read_keys, argument_of(2));
  spawn("evictor a", kMarud, evict_everything);
  spawn("evictor b", kMarud, evict_everything, argument_of(1));
}

// -- one view, released by two threads --------------------------------------------------------------------------------

Held released_twice;
uint32_t releases;

void release_the_view(void* argument) {
  releases += client_of(argument).pins.unpin(released_twice.slot, released_twice.ref);
  if (releases > 1) fail("both of two threads released one pin");
}

// Of another block: that a late release may end another pin of the same block is said in maru.h.
void read_the_other(void* argument) {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) retrieve(client_of(argument), 1);
}

void released_twice_setup() {
  begin(2, 3);
  releases = 0;
  store(client(3), 0);
  store(client(3), 1);
  released_twice = find_and_hold(client(1), 0);
  let_go(1, released_twice.ref);
  // Only its slot of each set is left, so that the next pin of lane 1 is in the one of the view.
  shm::LaneView view = world().lane(1);
  for (uint32_t i = 0; i < view.pins.size(); ++i)
    if (i % limits::kPinSetSlots != released_twice.slot % limits::kPinSetSlots) occupy_pin_slot(1, i);
  spawn("thread 1a", 1, release_the_view, argument_of(1));
  spawn("thread 1b", 1, release_the_view, argument_of(1));
  spawn("thread 1c", 1, read_the_other, argument_of(1));
  spawn("marud", kMarud, evict_everything);
}

constexpr Scenario kScenarios[] = {
    {"pin-evict", "readers pin while marud evicts: no page is reused under a pin, no block that stays is missed",
     pin_evict_setup, settle_world, forget_process},
    {"pin-batch", "several blocks pinned in one call, all slots before one barrier, while marud evicts",
     batch_free_setup, settle_world, forget_process},
    {"pin-batch-full", "the same with hardly a slot left in the sets", batch_full_setup, settle_world, forget_process},
    {"pin-delete", "readers pin while others delete the key and marud evicts", pin_delete_setup, settle_world,
     forget_process},
    {"pin-threads", "threads of one client share its slots", threads_setup, settle_world, forget_process},
    {"pin-overflow", "the set is full: pins go to the overflow area", overflow_setup, settle_world, forget_process},
    {"pin-overflow-threads", "threads of a client pin the same blocks in its overflow area", overflow_threads_setup,
     settle_world, forget_process},
    {"pin-move", "a pin goes from slot to slot and holds its block meanwhile", move_setup, settle_world,
     forget_process},
    {"pin-released-twice", "two threads release one view: one of them ends the pin, and none of another block",
     released_twice_setup, settle_world, forget_process},
    {"two-evictors", "two threads with one evictor id mark and let go of the same pages", two_evictors_setup,
     settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> pin_scenarios() { return kScenarios; }

}  // namespace maru::sim
