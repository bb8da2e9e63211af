// Clients attach, end and die, and marud dies at any step of giving a lane out or of taking one back. docs/format.md, "Attach,
// re-attach, detach" and "marud reclaims".
//
// A lane is one process's at a time; whoever was told of its lane is seen by everybody who looks for pins; and what is left
// of a lane that nobody was told of, or that was half taken back, the next marud takes back.
#include "cast.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <cstdint>

namespace maru::sim {
namespace {

using format::LaneState;

constexpr uint32_t kFirstLane = 1,
                   kLanesEnd = 3;  // for fewer than there are clients; the others are in use all the time
constexpr unsigned kNextMarud = 6, kFirstClient = 8, kClientsEnd = 12;

// What a marud knows by itself; the next one reads it from the identities.
struct Record {
  bool is_live = false;
  uint32_t generation = 0;
  unsigned process = 0;
  bool has_lock = false;  // so its identity says
  bool is_elsewhere =
      false;  // its process is of another pid namespace than this marud: the lock alone tells of its end
};
Record records[kLanesEnd];

// The locks of the lanes' present lives, as the kernel has them: the process with the locked description, open or mapped. A
// lock ends with that process.
unsigned lock_holders[kLanesEnd];

bool is_locked(uint32_t lane) { return lock_holders[lane] != kNobody && !process_ended(lock_holders[lane]); }

// Messages between clients and marud.
enum class Answer : uint8_t { kNone, kRefused, kLane };
struct Talk {
  bool asks = false, waits = false;
  Answer answer = Answer::kNone;
  uint32_t lane = 0;
};
Talk talks[kClientsEnd];
unsigned holders[kLanesEnd];  // the process that was told of a lane

// As LaneTable::show_lane() does.
void show_lane(uint32_t lane, LaneState state) {
  const Record& record = records[lane];
  format::LaneIdentity& identity = world().identity(lane);
  identity.process.store_release(record.process);
  identity.start_time.store_relaxed(record.process);
  const uint64_t flag = record.has_lock && state == LaneState::kLive ? format::kLaneHasLock : 0;
  identity.state.store_release(uint64_t(record.generation) << 48 | flag | uint64_t(state));
}

void attach(unsigned process) {
  Talk& talk = talks[process];
  for (uint32_t lane = kFirstLane; lane < kLanesEnd; ++lane) {
    Record& record = records[lane];
    if (record.is_live) continue;
    record = {true, record.generation + 1, process, !chance().chance(4), false};  // some file systems keep no locks
    lock_holders[lane] = record.has_lock ? current_process() : kNobody;
    yield();
    assign_lane(lane, record.generation, process);
    show_lane(lane, LaneState::kLive);
    if (!mutant(kMutantReplyBeforeBit)) shm::set_lane_bit(world(), lane, true);
    settle();
    talk.lane = lane;
    if (record.has_lock && !mutant(kMutantLockEndsWithMarud))
      lock_holders[lane] = process;  // it travels with the answer
    talk.answer = Answer::kLane;
    if (mutant(kMutantReplyBeforeBit)) shm::set_lane_bit(world(), lane, true);
    return;
  }
  talk.answer = Answer::kRefused;
}

void expect_ended(uint32_t lane) {
  if (holders[lane] != kNobody && !process_ended(holders[lane]))
    fail("lane %u is taken back from process %u, which lives", lane, holders[lane]);
  holders[lane] = kNobody;
}

// Its process has ended, or was never told of it.
void take_back(uint32_t lane) {
  expect_ended(lane);
  reclaim_lane(lane);
  records[lane].is_live = false;
}

// Whether this marud knows that nothing writes the lane any more.
bool is_proven_gone(uint32_t lane) {
  const Record& record = records[lane];
  return record.is_elsewhere && record.has_lock ? !is_locked(lane) : process_ended(record.process);
}

// What the last marud was taking back, adopt() finishes.
void read_lanes() {
  const bool is_elsewhere = chance().chance(2);  // this marud, than the last one
  for (uint32_t lane = kFirstLane; lane < kLanesEnd; ++lane) {
    const uint64_t state = world().identity(lane).state.load_acquire();
    Record& record = records[lane];
    record = {LaneState(state & 0xFF) == LaneState::kLive, uint32_t(state >> 48),
              unsigned(world().identity(lane).process.load_relaxed()), (state & format::kLaneHasLock) != 0,
              is_elsewhere};
    if (record.is_live)
      shm::set_lane_bit(world(), lane, true);
    else
      expect_ended(lane);
  }
}

void serve() {
  for (;;) {
    bool is_over = true;
    for (unsigned process = kFirstClient; process < kClientsEnd; ++process) {
      is_over &= process_ended(process);
      if (!talks[process].asks || process_ended(process)) continue;
      talks[process].asks = false;
      attach(process);
    }
    for (uint32_t lane = kFirstLane; lane < kLanesEnd; ++lane) {
      if (records[lane].is_live && is_proven_gone(lane)) take_back(lane);
      is_over &= !records[lane].is_live;
    }
    for (uint32_t page = 0; page < kWorldPages; ++page)
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(6))
        evict_page(page);
    free_handed_over();
    if (is_over) return;
    yield();
  }
}

void client_life(void* argument) {
  const auto self = unsigned(reinterpret_cast<uintptr_t>(argument));
  Talk& talk = talks[self];
  talk.asks = talk.waits = true;
  wait_until([](void* one) { return static_cast<Talk*>(one)->answer != Answer::kNone; }, &talk);
  talk.waits = false;
  if (talk.answer == Answer::kRefused) return;
  if (holders[talk.lane] != kNobody) fail("processes %u and %u have lane %u", self, holders[talk.lane], talk.lane);
  holders[talk.lane] = self;
  make_client(talk.lane);
  Client& who = client(talk.lane);
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(4);
    switch (chance().below(4)) {
      case 0: remove(who, key); break;
      case 1: store(who, key); break;
      default: retrieve(who, key); break;
    }
  }
}

// A request of which the dead one knew comes again: the client has lost its connection, and names no lane.
void on_death(unsigned process) {
  forget_process(process);
  for (unsigned& holder : holders)
    if (holder == process) holder = kNobody;
  for (Talk& talk : talks)
    if (process == kMarud && talk.waits && talk.answer == Answer::kNone) talk.asks = true;
}

void setup() {
  make_world();
  make_marud();
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
  make_client(4);
  for (uint32_t key = 0; key < 4; ++key) store(client(4), key);
  for (Talk& talk : talks) talk = {};
  for (uint32_t lane = kFirstLane; lane < kLanesEnd; ++lane) {
    holders[lane] = lock_holders[lane] = kNobody;
    records[lane] = {false, 1, 0, false, false};
    world().identity(lane).state.raw = uint64_t(1) << 48 | uint64_t(LaneState::kFree);
    world().lane_bitmap().words[0].raw &= ~(uint64_t(1) << lane);
  }
  unsigned clients = 0;
  for (unsigned process = kFirstClient; process < kClientsEnd; ++process) {
    spawn("client", process, client_life, reinterpret_cast<void*>(uintptr_t(process)));
    clients |= 1u << process;
  }
  spawn("marud", kMarud, [](void*) { serve(); });
  spawn("next marud", kNextMarud, [](void*) {
    if (!make_next_marud()) return;
    read_lanes();
    adopt();
    serve();
  });
  allow_deaths(1u << kMarud, 1);
  allow_deaths(clients, 2);
}

constexpr Scenario kScenarios[] = {
    {"lane-attach", "marud dies at any step of giving a lane out or taking it back, clients at any of theirs", setup,
     settle_world, on_death},
};

}  // namespace

std::span<const Scenario> lane_scenarios() { return kScenarios; }

}  // namespace maru::sim
