// marud's lane has the low bits of the epoch for its generation, and any client may write the epoch. No value of it makes marud
// look like nobody to an overflow bucket, and a marud that has the identity of the one before it takes back what that one held.
#include "cast.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kNextMarud = 8;
constexpr uint32_t kKeys = 9;  // two more than the home bucket has room for

void flap(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(5); rounds > 0; --rounds) {
    const uint32_t key = chance().below(3);
    if (chance().chance(2))
      store(who, key);
    else
      remove(who, key);
  }
}

void evict_some(uint32_t rounds) {
  for (; rounds > 0; --rounds) {
    const PageRef block = visible_block(chance().below(2));
    if (!block.is_none()) evict_page(block.page());
    free_handed_over();
  }
}

void marud_works(void*) {
  evict_some(1 + chance().below(5));
  reclaim_the_dead(0b1110);
}

void next_marud(void*) {
  if (!make_next_marud()) return;
  adopt();
  marud_works(nullptr);
}

uint64_t some_epoch() {
  const uint64_t around = uint64_t(chance().below(3)) << 16;
  return around + chance().below(3) - 1;  // one below a multiple of 65,536, one, or one above; also 2^64 - 1
}

// A client writes the epoch: back to what it was, so that the next marud is called as the last one is, or any other value.
void scribble(void*) {
  AtomicU64& epoch = world().host(0).epoch;
  if (chance().chance(2)) yield();
  epoch.store_release(chance().chance(4) ? some_epoch() : epoch.load_acquire() - 1);
}

void begin(uint64_t epoch) {
  make_world();
  start_at_epoch(epoch);
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kKeys; ++key) define_key(key, 1);
  for (uint32_t key = 2; key < kKeys; ++key) store(client(4), key);
  if (chance().chance(2)) store(client(4), chance().below(2));
  for (uint32_t lane = 1; lane <= 2; ++lane) spawn("client", lane, flap, argument_of(lane));
  spawn("marud", kMarud, marud_works);
}

void epoch_setup() {
  begin(some_epoch());
  spawn("client", 3, flap, argument_of(3));
  allow_deaths(0b1110, 2);
}

void epoch_written_setup() {
  begin(chance().chance(2) ? 1 : some_epoch());
  spawn("scribbler", 3, scribble);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b0001, 1);
  allow_deaths(0b0110, 1);
}

constexpr Scenario kScenarios[] = {
    {"epoch", "epochs around multiples of 65,536: marud's lane is not taken for nobody's", epoch_setup, settle_world,
     forget_process},
    {"epoch-written", "a client writes the epoch, and the next marud is called as the last one", epoch_written_setup,
     settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> epoch_scenarios() { return kScenarios; }

}  // namespace maru::sim
