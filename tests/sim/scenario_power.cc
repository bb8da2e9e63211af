// A pool of one host that outlives the power of its machine: dirty lines are lost with every process at once, the next boot's
// marud adopts the rest, and may lose the power over it. docs/format.md, "A pool that lost power" and "What a host takes with
// it". A quarter of the schedules ends without a loss.
//
// The scenario checks three things more than every scenario does. A block is there afterwards, with its payload, if its store
// returned and no process evicted or deleted it. A key is gone if its deletion returned. The bookkeeping is whole: marud never
// formats the pool because of the loss.
#include "cast.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kNextMarud = 8;                     // the process of the marud of the next boot
constexpr unsigned kNextBoot = 1;                      // its machine
constexpr uint32_t kSharedKeys = 6;                    // that every client stores and removes
constexpr uint32_t kOldKeys = 6;                       // behind them: some of them are there at the beginning
constexpr uint32_t kOwnKeys = kSharedKeys + kOldKeys;  // from here on keys that one client alone stores and removes
constexpr uint32_t kOwnKeysEach = 4;
static_assert(kOwnKeys + 3 * kOwnKeysEach <= kWorldKeys);

enum class OwnKey : uint8_t { kUnknown, kStored, kRemoved };
OwnKey own_keys[kWorldKeys];    // what the last call that returned has made of it
uint32_t own_page[kWorldKeys];  // where it was stored
bool is_evicted[kWorldPages];   // marud is about to evict what is in the page, whatever that is by then

void change_own_key(Client& who, uint32_t key) {
  if (own_keys[key] != OwnKey::kStored) {
    own_keys[key] = OwnKey::kUnknown;
    const Stored stored = store(who, key, chance().chance(2) ? visible_block(chance().below(3)) : PageRef::none());
    if (stored.status != shm::PublishStatus::kStored) return;
    settle();  // whoever is told of it is told by a message
    own_keys[key] = OwnKey::kStored;
    own_page[key] = stored.block.page();
    return;
  }
  own_keys[key] = OwnKey::kUnknown;
  if (remove(who, key) != shm::RetireStatus::kRetired) return;
  settle();
  own_keys[key] = OwnKey::kRemoved;
}

// A store that loses keeps its pages, and the next one uses them in the same life.
void store_either(Client& who, uint32_t key, uint32_t other) {
  const PageRef own = take_page(who);
  if (own.is_none()) return;
  const Stored stored = store_in(who, key, own, PageRef::none(), true);
  if (stored.status == shm::PublishStatus::kStored) return;
  if (PageWord{world().block(own.page()).word.load_acquire()}.is(PageState::kReserved))
    store_in(who, other, own, PageRef::none());
}

void client_life(void* argument) {
  Client& who = client_of(argument);
  const uint32_t own = kOwnKeys + kOwnKeysEach * (lane_of(argument) - 1);
  for (uint32_t rounds = 2 + chance().below(6); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kSharedKeys);
    switch (chance().below(8)) {
      case 0: store_chain(who, 0, 1 + chance().below(3)); break;
      case 1: store(who, 3 + chance().below(3), PageRef::none(), 1 + chance().below(2)); break;
      case 2: remove(who, key); break;
      case 3: store_either(who, key, chance().below(kSharedKeys)); break;
      case 4: retrieve(who, key); break;
      default: change_own_key(who, own + chance().below(kOwnKeysEach)); break;
    }
  }
}

// Publishers of two keys, of whom those that lose drop their claims.
void race_life(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(2);
    if (chance().chance(3))
      remove(who, key);
    else
      store_either(who, key, 2 + lane_of(argument));
  }
}

void marud_works(void*) {
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    const PageRef block = visible_block(chance().below(kOwnKeys));
    if (!block.is_none()) {
      is_evicted[block.page()] = true;
      evict_page(block.page());
    }
    free_handed_over();
  }
  reclaim_the_dead(0b1110);
}

bool has_ended(void*) {
  bool ended = process_ended(kMarud);
  for (unsigned process = 1; process <= 3; ++process) ended &= process_ended(process);
  return ended;
}

// As Restart::verify(): the pins that tell of a dead publisher's block may be lost, so every block is looked for in the
// registry, the leaves first.
void drop_unregistered() {
  for (uint32_t depth = kWorldPages; depth-- > 0;)
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      const PageWord word{world().block(page).word.load_acquire()};
      if (!word.is(PageState::kReady) || world().block(page).shape.load_relaxed() >> 32 != depth) continue;
      if (!shm::is_registered(world(), page)) evict_page(page);
    }
}

// A region's word may be lost that said that its lane has left.
void settle_regions() {
  for (uint32_t i = 0; i < world().regions(); ++i) {
    AtomicU64& word = world().region(i).word;
    const shm::RegionWord found{word.load_acquire()};
    if (found.state() == format::RegionState::kRented && !is_lane_live(found.owner().lane))
      word.store_release(uint64_t(format::RegionState::kOrphaned) << 60);
  }
}

void adopt_pool() {
  begin_reclaims();  // a lane that was taken back may be as it was before
  make_marud_again();
  adopt();
  reclaim_the_dead(0b1110);
  drop_unregistered();
  settle_regions();
}

void next_boot(void*) {
  wait_until(has_ended, nullptr);
  if (host_died(0)) adopt_pool();
}

void begin(bool shares_bucket) {
  belongs_to_machine(kNextMarud, kNextBoot);
  make_durable_world();
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    define_key(key, shares_bucket ? 0 : key % 3);
    own_keys[key] = OwnKey::kUnknown;
  }
  for (bool& page : is_evicted) page = false;
  for (uint32_t key = kSharedKeys; key < kOwnKeys; ++key)
    if (chance().chance(2)) store(client(4), key);
  const auto life = shares_bucket && chance().chance(2) ? race_life : client_life;
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, life, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  spawn("next boot", kNextMarud, next_boot);
  play_shared_world();
  if (chance().chance(3)) allow_deaths(0b1110, 1);
  allow_host_death(0b01);
  if (chance().chance(3)) allow_host_death(0b10);
}

void loss_setup() { begin(false); }
void bucket_setup() { begin(true); }

void finish() {
  if (host_died(kNextBoot)) adopt_pool();
  settle_world();
  for (uint32_t key = 0; key < kWorldKeys; ++key) {
    const PageRef block = visible_block(key);
    if (own_keys[key] == OwnKey::kRemoved && !block.is_none()) fail("key %u was removed, and is there again", key);
    if (own_keys[key] == OwnKey::kStored && !is_evicted[own_page[key]] && block.is_none())
      fail("key %u was stored, nobody took it away, it is gone", key);
    if (block.is_none()) continue;
    check_payload(block.page(), key, "the next boot");
    check_metadata(block.page(), key, "the next boot");
  }
}

constexpr Scenario kScenarios[] = {
    {"power-loss", "a machine loses its power, and the pool outlives it whole", loss_setup, finish, forget_process},
    {"bucket-power-loss", "the same, with all keys in one home bucket and its overflow bucket", bucket_setup, finish,
     forget_process},
};

}  // namespace

std::span<const Scenario> power_scenarios() { return kScenarios; }

}  // namespace maru::sim
