// Both buckets of a key are full, and its publisher asks marud for room: one block of those buckets goes, and no other; a block
// that somebody reads stays; and where there is a slot already, nothing goes. docs/format.md, "Overflow buckets".
#include "cast.h"
#include "libmaru/shm/blocks/registry.h"
#include "libmaru/shm/recovery/evict.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint32_t kSlots = 2 * uint32_t(limits::kBucketSlots);
constexpr uint32_t kElsewhere = 16;  // a key of another bucket
constexpr uint32_t kAskers = 2;

struct Request {
  uint32_t key = 0;
  bool is_asked = false, is_answered = false;
} requests[kAskers];
uint16_t attempts;

// The message and its answer.
void ask_for_room(uint32_t asker, uint32_t key) {
  requests[asker] = {key, true, false};
  settle();
  wait_until(
      [](void* argument) {
        const Request& request = requests[reinterpret_cast<uintptr_t>(argument)];
        return request.is_answered || process_died(kMarud);
      },
      argument_of(asker));
}

void store_with_room(void* argument) {
  Client& who = client_of(argument);
  const uint32_t asker = lane_of(argument) - 1;
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    const uint32_t key = chance().below(3);
    if (chance().chance(4)) remove(who, 2 + chance().below(kSlots));
    for (uint32_t tries = 0; tries < 3; ++tries) {
      if (store(who, key).status != shm::PublishStatus::kRegistryFull) break;
      ask_for_room(asker, key);
    }
  }
}

void read_some(void* argument) {
  for (uint32_t rounds = 2 + chance().below(6); rounds > 0; --rounds)
    retrieve(client_of(argument), chance().below(kElsewhere + 1));
}

// As BucketRoom does; chance is the policy.
void make_room(uint32_t key) {
  const shm::BucketContent content = shm::registry_content(world(), key_digest(key));
  if (!content.is_full && !mutant(kMutantRoomWithoutLook)) return;
  for (uint32_t i = 0; i < content.count; ++i) {
    const PageRef ref = content.ref((i + 3) % content.count);
    if (!PageWord{world().block(ref.page()).word.load_acquire()}.is(PageState::kReady, ref.generation())) continue;
    const uint32_t page = ref.page();
    PageRef retired;
    if (shm::retire_unpinned(marud().context, shm::LaneSet::in_use(world()), &page, 1, &attempts, &retired) == 0)
      continue;
    shm::free_retired(marud().context, retired, nullptr);
    return;
  }
}

bool is_wanted(void*) {
  bool wanted = process_ended(1) && process_ended(2) && process_ended(3);
  for (const Request& request : requests) wanted |= request.is_asked && !request.is_answered;
  return wanted;
}

void answer_requests(void*) {
  for (;;) {
    wait_until(is_wanted, nullptr);
    bool has_answered = false;
    for (Request& request : requests) {
      if (!request.is_asked || request.is_answered) continue;
      make_room(request.key);
      settle();
      request.is_answered = has_answered = true;
    }
    if (!has_answered) break;
  }
  reclaim_the_dead(0b1110);
}

void next_marud(void*) {
  if (!make_next_marud()) return;
  adopt();
  reclaim_the_dead(0b1110);
}

void begin() {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key <= kElsewhere; ++key) define_key(key, key == kElsewhere ? 2 : 1);
  attempts = 0;
  for (Request& request : requests) request = {};
  store(client(4), kElsewhere);
}

void room_setup() {
  begin();
  const uint32_t blocks = kSlots - (chance().chance(3) ? 1 : 0);
  for (uint32_t key = 2; key < 2 + blocks; ++key) store(client(4), key);
  for (uint32_t lane = 1; lane <= kAskers; ++lane) spawn("publisher", lane, store_with_room, argument_of(lane));
  spawn("reader", 3, read_some, argument_of(3));
  spawn("marud", kMarud, answer_requests);
  spawn("next marud", 8, next_marud);
  allow_deaths(0b1110, 1);
  if (chance().chance(3)) allow_deaths(0b0001, 1);
}

void room_finish() {
  settle_world();
  if (!visible_now(kElsewhere)) fail("a block of another bucket made room");
}

// One publisher, and a slot that is free by the time of its request.
void free_slot_setup() {
  begin();
  for (uint32_t key = 2; key < 2 + kSlots; ++key) store(client(4), key);
  requests[0] = {0, true, false};
  remove(client(4), 2);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("reader", lane, read_some, argument_of(lane));
  spawn("marud", kMarud, answer_requests);
}

void free_slot_finish() {
  settle_world();
  for (uint32_t key = 3; key < 2 + kSlots; ++key)
    if (!visible_now(key)) fail("key %u made room where there was some", key);
}

constexpr Scenario kScenarios[] = {
    {"bucket-room", "publishers ask for room in a full bucket: a block of it goes, and no other", room_setup,
     room_finish, forget_process},
    {"bucket-room-there", "marud is asked for room where a slot is free: nothing goes", free_slot_setup,
     free_slot_finish, forget_process},
};

}  // namespace

std::span<const Scenario> room_scenarios() { return kScenarios; }

}  // namespace maru::sim
