// marud's part when somebody is gone: what a dead client held is taken back, and what the marud before left is adopted; in the
// steps, and in the slices, of daemon/pool/reclaim and restart/adopt.cc.
#include "cast.h"

#include "libmaru/shm/recovery/adopt.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "tests/sim/mutants.h"

#include <algorithm>
#include <array>

namespace maru::sim {
namespace {

using format::LaneState;
using shm::LaneSet;

unsigned reclaimed_mask;
unsigned marud_process;  // of the marud that serves, or died: there is none after it yet that has adopted the pool
void (*fold_lane)(uint32_t lane);

}  // namespace

void begin_reclaims() {
  reclaimed_mask = 0;
  marud_process = kMarud;
  fold_lane = nullptr;
}

void fold_lanes_with(void (*fold)(uint32_t lane)) { fold_lane = fold; }

LaneSet live_lanes() {
  LaneSet live;
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) {
    if (lane == kMarud || !process_died(lane_process(lane))) live.add(lane);
  }
  return live;
}

namespace {

// What reclaim finds, in arrays of the simulated marud: it may die, and then nobody frees anything.
struct Findings final : shm::ReclaimSink {
  std::array<shm::Recount, 2 * kWorldPages> suspects;
  size_t suspect_count = 0;
  std::array<uint32_t, kWorldPages> unregistered_pages;
  size_t unregistered_count = 0;

  void parent_suspect(PageRef parent) override {
    for (size_t i = 0; i < suspect_count; ++i) {
      if (suspects[i].parent == parent) return;
    }
    suspects[suspect_count++].parent = parent;
  }
  void retired_taken(PageRef) override {}  // free_handed_over finds it
  void unregistered(PageRef ref) override {
    if (!has_unregistered(ref.page())) unregistered_pages[unregistered_count++] = ref.page();  // one may have two pins
  }
  void pages_freed(uint32_t) override {}
  bool has_unregistered(uint32_t page) const {
    const auto* const end = unregistered_pages.begin() + ptrdiff_t(unregistered_count);
    return std::find(unregistered_pages.begin(), end, page) != end;
  }
  std::span<shm::Recount> sorted() {
    std::sort(suspects.begin(), suspects.begin() + ptrdiff_t(suspect_count),
              [](const shm::Recount& a, const shm::Recount& b) { return a.parent.bits < b.parent.bits; });
    return {suspects.data(), suspect_count};
  }
};

struct DeadProcesses final : shm::DeadLanes {
  bool is_dead(LaneId lane) const override {
    if (lane.lane == kMarud) return !(lane == marud().lane);
    return lane.lane >= kWorldLanes || !(lane == lane_id(lane.lane)) || process_died(lane_process(lane.lane));
  }
  bool is_let_go(uint32_t page) const override { return is_poison_let_go(page); }
};

// Counts again until every count is in; somebody who postpones it has to get on.
void recount_all(Findings& findings) {
  const DeadProcesses dead;
  const std::span<shm::Recount> recounts = findings.sorted();
  size_t again = recounts.size();
  while (again > 0) {
    shm::recount_begin(world(), recounts);
    shm::recount_pages(world(), recounts, dead, 0, kWorldPages);
    again = shm::recount_commit(world(), recounts, live_lanes());
    if (again > 0) yield();
  }
}

}  // namespace

void recount(PageRef parent) {
  Findings findings;
  findings.parent_suspect(parent);
  recount_all(findings);
}

namespace {

// Blocks that a publisher of this lane left between READY and their entry, as nobody but the simulator sees at once.
std::array<bool, kWorldPages> unregistered_of(LaneId dead) {
  std::array<bool, kWorldPages> found{};
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    found[page] = word.is(PageState::kReady) && LaneId::from_low(uint32_t(world().detail(page).owner.raw)) == dead &&
                  entries_of(page, word.generation()) == 0;
  }
  return found;
}

// Whoever takes the lane back has to find those that were there before and are now.
void expect_found(LaneId dead, const std::array<bool, kWorldPages>& before, const Findings& findings) {
  if (host_died(machine_of(lane_process(dead.lane)))) return;  // its pins went with the caches
  const std::array<bool, kWorldPages> after = unregistered_of(dead);
  for (uint32_t page = 0; page < kWorldPages; ++page)
    if (before[page] && after[page] && !findings.has_unregistered(page) && !has_early_children())
      fail("lane %u left page %u READY and in no bucket, and marud does not find it", dead.lane, page);
}

void finish_reclaim(Findings& findings) {
  free_handed_over();
  for (size_t i = 0; i < findings.unregistered_count; ++i) evict_page(findings.unregistered_pages[i]);
  recount_all(findings);
}

}  // namespace

namespace {

LaneState shown_state(uint32_t lane) { return LaneState(world().identity(lane).state.load_acquire() & 0xFF); }
bool is_lane_shown(uint32_t lane) { return (world().lane_bitmap().words[0].load_seq_cst() >> lane & 1) != 0; }

void show_state(LaneId id, LaneState state) {
  world().identity(id.lane).state.store_release(uint64_t(id.generation) << 48 | uint64_t(state));
}

// The lane may be given out again, and its regions.
void finish_lane(LaneId id) {
  const shm::ControlRegion& region = world();
  for (uint32_t i = 0; i < region.regions(); ++i) {
    AtomicU64& word = region.region(i).word;
    if ((word.load_acquire() >> 16 & 0xFFF) == id.lane)
      word.store_release(uint64_t(format::RegionState::kOrphaned) << 60);
  }
  shm::clear_pins(region, id.lane);
  shm::clear_lane(region, id.lane);
  if (fold_lane != nullptr) fold_lane(id.lane);
  show_state(id, LaneState::kFree);
  shm::set_lane_bit(region, id.lane, false);
  settle();
  reclaimed_mask |= 1u << id.lane;
}

}  // namespace

void reclaim_lane(uint32_t lane) {
  if (shown_state(lane) == LaneState::kFree) return;  // the marud before had begun, and to adopt was to finish it
  note("marud reclaims lane %u", lane);
  Findings findings;
  const shm::ControlRegion& region = world();
  const LaneId id = lane_id(lane);
  const std::array<bool, kWorldPages> before = unregistered_of(id);
  show_state(id, LaneState::kDead);
  shm::begin_reclaim(region, id, findings);
  expect_found(id, before, findings);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{region.block(page).word.load_acquire()};
    if (word.names_lane() && word.lane() == id) shm::reclaim_pages(marud().context, id, page, page + 1, findings);
  }
  finish_reclaim(findings);
  shm::release_overflow_of(region, id);
  finish_lane(id);
}

bool is_lane_live(uint32_t lane) { return shown_state(lane) == LaneState::kLive; }

void reclaim_the_dead(unsigned process_mask) {
  unsigned done = 0;
  while (done != process_mask) {
    for (unsigned process = 0; process < kWorldLanes; ++process) {
      if ((process_mask >> process & 1) == 0 || (done >> process & 1) != 0 || !process_ended(process)) continue;
      done |= 1u << process;
      if (process_died(process) && (reclaimed_mask >> process & 1) == 0) reclaim_lane(process);
    }
    if (done != process_mask) {
      // Whoever ends next.
      static unsigned waiting_for;
      waiting_for = process_mask & ~done;
      wait_until(
          [](void*) {
            for (unsigned process = 0; process < kWorldLanes; ++process) {
              if ((waiting_for >> process & 1) != 0 && process_ended(process)) return true;
            }
            return false;
          },
          nullptr);
    }
  }
}

namespace {

// What a new marud knows of the lanes: which the identities call live.
struct AdoptedLanes final : shm::DeadLanes {
  std::array<uint64_t, kWorldLanes> states;
  std::array<LaneId, kWorldLanes> begun;
  std::array<std::array<bool, kWorldPages>, kWorldLanes> left;  // by the lanes of `begun`
  size_t begun_count = 0;

  bool is_dead(LaneId lane) const override {
    // This marud holds nothing yet, even if it has the identity of the one before.
    if (lane.lane == kMarud) return !mutant(kMutantMarudOfAnyEpoch) || !(lane == marud().lane);
    return lane.lane >= kWorldLanes || LaneState(states[lane.lane] & 0xFF) != LaneState::kLive ||
           states[lane.lane] >> 48 != lane.generation;
  }
  bool is_let_go(uint32_t page) const override { return is_poison_let_go(page); }
};

// As adopt_lanes() of daemon/pool/restart/adopt.cc.
void adopt_lanes(AdoptedLanes& lanes, Findings& findings) {
  for (uint32_t lane = 1; lane < kWorldLanes; ++lane) {
    const uint64_t state = lanes.states[lane] = world().identity(lane).state.load_acquire();
    const bool is_free = LaneState(state & 0xFF) == LaneState::kFree;
    if (LaneState(state & 0xFF) == LaneState::kLive || (is_free && !is_lane_shown(lane))) continue;
    const LaneId id = lanes.begun[lanes.begun_count] = {lane, uint32_t(state >> 48)};
    lanes.left[lanes.begun_count++] = unregistered_of(id);
    show_state(id, LaneState::kDead);
    shm::adopt_lane(world(), lane, findings);
  }
  shm::adopt_lane(world(), kMarud, findings);
}

}  // namespace

void adopt() {
  note("a new marud adopts the pool");
  Findings findings;
  AdoptedLanes lanes;
  adopt_lanes(lanes, findings);
  std::array<uint32_t, kWorldPages> children = {};
  shm::Adoption adoption = {.daemon = &marud().context,
                            .dead = &lanes,
                            .sink = &findings,
                            .begun = {lanes.begun.data(), lanes.begun_count},
                            .children = children};
  for (uint32_t page = 0; page < kWorldPages; ++page) shm::flag_count(world(), page);
  for (uint32_t page = 0; page < kWorldPages; ++page) shm::adopt_page(adoption, page);
  shm::adopt_overflow(world(), lanes);
  for (size_t i = 0; i < lanes.begun_count; ++i) expect_found(lanes.begun[i], lanes.left[i], findings);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    if (const PageRef parent = shm::suspect_of(adoption, page, true); !parent.is_none())
      findings.parent_suspect(parent);
  }
  finish_reclaim(findings);
  for (size_t i = 0; i < lanes.begun_count; ++i) finish_lane(lanes.begun[i]);
  marud_process = current_process();
}

namespace {

// As sweep_page() of daemon/pool/memory/sweep.cc: words that a dead client left, after its lane was taken back. A client
// that was about to hand a page over may have named the marud before.
void sweep(Findings& findings) {
  const DeadProcesses dead;
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord found{world().block(page).word.load_acquire()};
    if (found.names_lane() && dead.is_dead(found.lane()))
      shm::reclaim_pages(marud().context, dead, page, page + 1, findings);
  }
}

}  // namespace

void settle_world() {
  if (marud_process != kNobody && process_died(marud_process)) {
    make_marud_again();
    adopt();
  }
  for (uint32_t lane = 1; lane < kWorldLanes; ++lane) {
    if (process_died(lane_process(lane)) && (reclaimed_mask >> lane & 1) == 0) reclaim_lane(lane);
  }
  Findings findings;
  sweep(findings);
  finish_reclaim(findings);
  // What a publisher left that died between READY and its entry, or could not withdraw, goes the ordinary way of eviction.
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    if ((deaths() > 0 || has_early_children()) && word.is(PageState::kReady) &&
        entries_of(page, word.generation()) == 0)
      evict_page(page);
  }
  if (poisons()) settle_poison(true);
  check_rest();
}

}  // namespace maru::sim
