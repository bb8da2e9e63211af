// Pages, runs, keys and touches: the parts below blocks and registry, with owners that die at any step.
#include "cast.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/region/page_run.h"
#include "scenario.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>

namespace maru::sim {
namespace {

void begin(uint32_t clients) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
}

void marud_reclaims(void*) { reclaim_the_dead(0b1110); }

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

// -- pages and runs, not published ------------------------------------------------------------------------------------

// Two neighbours taken one by one and joined, as a thread's cache does; none if either is not FREE.
PageRef take_and_join(Client& who) {
  const uint32_t first = chance().below(kWorldPages / 2) * 2;
  const PageRef head = shm::take_page(world(), who.lane, first);
  if (head.is_none()) return head;
  if (shm::take_page(world(), who.lane, first + 1).is_none()) {
    give_back(who, head);
    return PageRef::none();
  }
  shm::join_run(world(), who.lane, first, 2);
  return head;
}

void take_and_give_back(void* argument) {
  Client& who = client_of(argument);
  PageRef mine[4];
  uint32_t count = 0;
  const uint32_t rounds = 2 + chance().below(5);
  for (uint32_t i = 0; i < rounds; ++i) {
    if (count < 4 && !chance().chance(3)) {
      const uint32_t way = chance().below(4);
      const PageRef page = way == 0   ? take_and_join(who)
                           : way == 1 ? take_run(who, 2 + chance().below(3))
                                      : take_page(who);
      if (page.is_none()) continue;
      for (uint32_t k = 0; k < world().run_pages(page.page()); ++k)
        write_payload(page.page() + k, 100 + who.lane.lane, i);
      mine[count++] = page;
    } else if (count > 0) {
      PageRef page = mine[--count];
      for (uint32_t k = 0; k < world().run_pages(page.page()); ++k) {
        check_payload(page.page() + k, 100 + who.lane.lane, "the owner");
      }
      const PageRef renewed = chance().chance(2) ? shm::renew_page(world(), who.lane, page) : PageRef::none();
      if (!renewed.is_none()) page = renewed;
      give_back(who, page);
    }
  }
  while (count > 0) give_back(who, mine[--count]);
}

void pages_setup() {
  begin(3);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, take_and_give_back, argument_of(lane));
  spawn("marud", kMarud, marud_reclaims);
  allow_deaths(0b1110, 2);
}

void pages_finish() {
  settle_world();
  expect_free_pages(kWorldPages, "after everybody gave everything back or died");
}

// -- two threads give back one run ------------------------------------------------------------------------------------

PageRef given_back_twice;

void give_back_once(void*) { shm::give_back_run(world(), client(1).lane, given_back_twice); }

void store_runs(void* argument) {
  const uint32_t first = 3 * lane_of(argument);
  for (uint32_t key = first; key < first + 3; ++key)
    store(client_of(argument), key, PageRef::none(), 2 + chance().below(3));
}

void twice_setup() {
  begin(3);
  given_back_twice = take_run(client(1), 2 + chance().below(3));
  spawn("thread 1a", 1, give_back_once);
  spawn("thread 1b", 1, give_back_once);
  for (uint32_t lane = 2; lane <= 3; ++lane) spawn("client", lane, store_runs, argument_of(lane));
  spawn("marud", kMarud, marud_reclaims);
  if (chance().chance(3)) allow_deaths(0b0010, 1);
}

// -- runs that are published ------------------------------------------------------------------------------------------

void churn_runs(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(4);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = chance().below(3);
    switch (chance().below(4)) {
      case 0:
      case 1: store(who, key, PageRef::none(), 1 + chance().below(4)); break;
      case 2: remove(who, key); break;
      case 3: retrieve(who, key); break;
    }
  }
}

void runs_setup() {
  begin(4);
  store(client(4), 0, PageRef::none(), 3);
  store(client(4), 1, PageRef::none(), 4);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, churn_runs, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  allow_deaths(0b1110, 2);
}

// -- keys in inline cells and in key cells ------------------------------------------------------------------------------

void read_key_back(Client& who, uint32_t key) {
  const Held held = find_and_hold(who, key);
  if (held.ref.is_none()) return;
  check_key(held.ref, key, "who holds the block");
  release(who, held);
}

void list_keys() {
  // Without a pin, as listings do: a key that is read must be the key of the block it was read for.
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (!word.is(PageState::kReady)) continue;
    const PageRef ref = PageRef::of(page, word.generation());
    shm::KeyBytes copy;
    if (!shm::read_key(world(), ref, &copy)) continue;
    const uint32_t key = key_of_life(ref);
    if (key == kWorldKeys) fail("page %u shows a key in a life in which it was no block", page);
    const std::span<const std::byte> wanted = key_text(key);
    if (copy.size != wanted.size() || !std::equal(wanted.begin(), wanted.end(), copy.data))
      fail("the key of page %u is made of two, or of another block", page);
  }
}

void churn_keys(void* argument) {
  Client& who = client_of(argument);
  const uint32_t rounds = 2 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint32_t key = kFirstLongKey - 3 + chance().below(6);
    switch (chance().below(5)) {
      case 0:
      case 1: store(who, key); break;
      case 2: remove(who, key); break;
      case 3: read_key_back(who, key); break;
      case 4: list_keys(); break;
    }
  }
}

void keys_setup() {
  begin(4);
  store(client(4), kFirstLongKey);
  store(client(4), kFirstLongKey - 1);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, churn_keys, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  allow_deaths(0b1110, 2);
}

// Few pages are FREE, so a page that a listing reads soon belongs to another block.
constexpr uint32_t kPagesInUse = kWorldPages - 3;
PageRef pages_in_use[kPagesInUse];

void replace_keys(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = kFirstLongKey - 2 + chance().below(3);
    if (store(who, key).status != shm::PublishStatus::kStored) continue;
    remove(who, key);
  }
}

void listed_setup() {
  begin(4);
  for (PageRef& page : pages_in_use) page = take_page(client(4));
  for (uint32_t lane = 1; lane <= 2; ++lane) spawn("client", lane, replace_keys, argument_of(lane));
  spawn("lister", 3, [](void*) {
    for (uint32_t rounds = 2 + chance().below(6); rounds > 0; --rounds) list_keys();
  });
  spawn("marud", kMarud, marud_reclaims);
  if (chance().chance(2)) allow_deaths(0b0110, 1);
}

void listed_finish() {
  for (const PageRef page : pages_in_use) give_back(client(4), page);
  settle_world();
}

// -- touches ----------------------------------------------------------------------------------------------------------

uint64_t touches_left[kWorldLanes];  // made by the clients of a lane
uint64_t touches_read[kWorldLanes];
shm::TouchReader touch_readers[kWorldLanes];

// A touch says by its page who left it, and by its tick when.
void leave_touches(void* argument) {
  const uint32_t lane = lane_of(argument);
  for (uint32_t rounds = 4 + chance().below(20); rounds > 0; --rounds) {
    ++touches_left[lane];
    shm::leave_touch(world().lane(lane), lane, steps());
  }
}

void read_touches() {
  for (uint32_t lane = 1; lane <= 2; ++lane) {
    shm::Touch touches[4];
    const uint64_t before = steps();
    const size_t count = touch_readers[lane].read(world().lane(lane), before, kWorldPages, touches, 4);
    for (size_t i = 0; i < count; ++i) {
      if (touches[i].page != lane) fail("a touch of page %u in the ring of lane %u", touches[i].page, lane);
      if (touches[i].tick > before) fail("a touch from the future");
    }
    touches_read[lane] += count;
    if (touches_read[lane] + touch_readers[lane].lost() > touches_left[lane]) fail("more touches than were left");
  }
}

void touch_setup() {
  begin(2);
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) {
    touches_left[lane] = touches_read[lane] = 0;
    touch_readers[lane].restart();
  }
  spawn("client 1", 1, leave_touches, argument_of(1));
  if (chance().chance(2)) spawn("thread 1b", 1, leave_touches, argument_of(1));
  spawn("client 2", 2, leave_touches, argument_of(2));
  spawn("marud", kMarud, [](void*) {
    for (uint32_t rounds = 5 + chance().below(20); rounds > 0; --rounds) read_touches();
  });
  allow_deaths(0b0110, 1);
}

void touch_finish() {
  for (uint32_t i = 0; i < 1000; ++i) read_touches();
  for (uint32_t lane = 1; lane <= 2; ++lane) {
    const uint64_t counted = world().lane(lane).header->touch_count.raw;
    if (touches_read[lane] + touch_readers[lane].lost() != counted) {
      fail("lane %u: %" PRIu64 " touches were counted, %" PRIu64 " read and %" PRIu64 " lost", lane, counted,
           touches_read[lane], touch_readers[lane].lost());
    }
  }
}

// The lane of a dead client goes to another client. A reader must not take touches of the first for the second, which leaves
// touches of page kSecondLife.
constexpr uint32_t kReusedLane = 1, kSecondLife = 5;
constexpr unsigned kNextClient = 9;
bool is_second_life;

void leave_second_touches(void*) {
  for (uint32_t rounds = 2 + chance().below(20); rounds > 0; --rounds)
    shm::leave_touch(world().lane(kReusedLane), kSecondLife, steps());
}

void read_reused() {
  shm::Touch touches[4];
  const size_t count = touch_readers[kReusedLane].read(world().lane(kReusedLane), steps(), kWorldPages, touches, 4);
  for (size_t i = 0; i < count; ++i)
    if (touches[i].page != (is_second_life ? kSecondLife : kReusedLane))
      fail("marud reads a touch of page %u that another client of the lane left", touches[i].page);
}

void marud_gives_ring_again(void*) {
  while (!process_ended(kReusedLane)) {
    read_reused();
    yield();
  }
  read_reused();
  reclaim_lane(kReusedLane);
  touch_readers[kReusedLane].restart();
  is_second_life = true;
  reuse_lane(kReusedLane, kNextClient);
  make_client(kReusedLane);
  spawn("next client", kNextClient, leave_second_touches);
  spawn("its thread", kNextClient, leave_second_touches);
  for (uint32_t rounds = 5 + chance().below(20); rounds > 0; --rounds) read_reused();
}

void touch_reuse_setup() {
  begin(2);
  is_second_life = false;
  touch_readers[kReusedLane].restart();
  spawn("client", kReusedLane, leave_touches, argument_of(kReusedLane));
  spawn("marud", kMarud, marud_gives_ring_again);
  allow_deaths(1u << kReusedLane, 1);
}

// -- a region changes hands -------------------------------------------------------------------------------------------

// marud takes the FREE pages of a region out of use, and later gives them to somebody else.
void hand_over_region(void* argument) {
  const uint32_t first = chance().below(kWorldPages / kWorldRegionPages) * kWorldRegionPages;
  for (uint32_t page = first; page < first + kWorldRegionPages; ++page) {
    AtomicU64& word = world().block(page).word;
    const PageWord found{word.load_acquire()};
    uint64_t expected = found.bits;
    if (found.is(PageState::kFree)) word.cas_seq_cst(expected, PageWord::out(found.generation()).bits);
  }
  marud_works(argument);
  for (uint32_t page = first; page < first + kWorldRegionPages; ++page) {
    AtomicU64& word = world().block(page).word;
    const PageWord found{word.load_acquire()};
    uint64_t expected = found.bits;
    if (found.is(PageState::kOut)) word.cas_seq_cst(expected, PageWord::free(found.generation()).bits);
  }
}

void region_setup() {
  begin(4);
  store(client(4), 5);
  spawn("client", 1, churn_keys, argument_of(1));
  spawn("client", 2, take_and_give_back, argument_of(2));
  spawn("client", 3, churn_runs, argument_of(3));
  spawn("marud", kMarud, hand_over_region);
  allow_deaths(0b1110, 2);
}

constexpr Scenario kScenarios[] = {
    {"run-given-back-twice", "two threads give back one run, whose pages others take: they are not freed under these",
     twice_setup, settle_world, forget_process},
    {"pages", "pages and runs are taken and given back, owners die: every page is FREE again", pages_setup,
     pages_finish, forget_process},
    {"runs", "runs are published, deleted, evicted; owners die at any step", runs_setup, settle_world, forget_process},
    {"keys", "keys in inline cells and extents: read back whole, and of the block that was asked for, or not at all",
     keys_setup, settle_world, forget_process},
    {"keys-listed", "keys are read without a pin while their pages go from block to block", listed_setup, listed_finish,
     forget_process},
    {"touches", "every touch is read or counted as lost, and none is invented", touch_setup, touch_finish, nullptr},
    {"touches-reuse",
     "the ring of a dead client goes to another one: no touch of the first is read as one of the second",
     touch_reuse_setup, settle_world, forget_process},
    {"region", "a region changes hands while its pages are used", region_setup, settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> page_scenarios() { return kScenarios; }

}  // namespace maru::sim
