// marud's part when somebody is gone: what a dead client held is taken back, and what the marud before left is adopted; in the
// steps, and in the slices, of daemon/pool_reclaim.cc and pool_adopt.cc.
#include "cast.h"

#include "libmaru/shm/mutants.h"
#include "libmaru/shm/reclaim.h"

#include <algorithm>
#include <array>

namespace maru::sim {
namespace {

using shm::LaneSet;

unsigned reclaimed_mask;
unsigned begun_mask;  // lanes that some marud has begun to take back, and none has finished
void (*fold_lane)(uint32_t lane);

}  // namespace

void begin_reclaims() {
  reclaimed_mask = begun_mask = 0;
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
    if (lane.lane == kMarud) return !(lane == shm::daemon_lane(world()));
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

void finish_reclaim(Findings& findings) {
  free_handed_over();
  for (size_t i = 0; i < findings.unregistered_count; ++i) evict_page(findings.unregistered_pages[i]);
  recount_all(findings);
}

}  // namespace

void reclaim_lane(uint32_t lane) {
  note("marud reclaims lane %u", lane);
  Findings findings;
  const shm::ControlRegion& region = world();
  const std::array<bool, kWorldPages> before = unregistered_of(lane_id(lane));
  // A marud that died after it had begun has ended the pins that tell; then such a block goes when it is the coldest.
  const bool is_begun = (begun_mask >> lane & 1) != 0;
  begun_mask |= 1u << lane;
  shm::begin_reclaim(region, lane_id(lane), findings);
  const std::array<bool, kWorldPages> after = unregistered_of(lane_id(lane));
  for (uint32_t page = 0; page < kWorldPages; ++page)
    if (before[page] && after[page] && !is_begun && !findings.has_unregistered(page) && !has_early_children())
      fail("lane %u left page %u READY and in no bucket, and marud does not find it", lane, page);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{region.block(page).word.load_acquire()};
    if (word.names_lane() && word.lane() == lane_id(lane))
      shm::reclaim_pages(marud().context, lane_id(lane), page, page + 1, findings);
  }
  finish_reclaim(findings);
  shm::release_overflow_of(region, lane_id(lane));
  shm::clear_pins(region, lane);
  shm::clear_lane(region, lane);
  if (fold_lane != nullptr) fold_lane(lane);
  // The lane may be given out again, and its regions.
  AtomicU64& in_use = region.lane_bitmap().words[0];
  uint64_t found = in_use.load_acquire();
  while ((found >> lane & 1) != 0 && !in_use.cas_seq_cst(found, found & ~(uint64_t(1) << lane))) {
  }
  region.identity(lane).state.store_release(uint64_t(lane_id(lane).generation) << 48 |
                                            uint64_t(format::LaneState::kFree));
  for (uint32_t i = 0; i < region.regions(); ++i) {
    AtomicU64& word = region.region(i).word;
    if ((word.load_acquire() >> 16 & 0xFFF) == lane) word.store_release(uint64_t(format::RegionState::kOrphaned) << 60);
  }
  settle();
  begun_mask &= ~(1u << lane);
  reclaimed_mask |= 1u << lane;
}

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

void adopt() {
  note("a new marud adopts the pool");
  Findings findings;
  shm::clear_pins(world(), kMarud);
  const auto tails = world().is_durable() ? shm::Tails::kAreFreed : shm::Tails::kToFree;
  if (tails == shm::Tails::kAreFreed) shm::free_dead_tails(world(), DeadProcesses(), 0, kWorldPages, findings);
  shm::reclaim_pages(marud().context, DeadProcesses(), 0, kWorldPages, findings, tails);
  shm::reclaim_intents(world(), kMarud, findings);
  // Which parents the last marud was about to count again died with it.
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.children() != 0) {
      findings.parent_suspect(PageRef::of(page, word.generation()));
    }
  }
  finish_reclaim(findings);
}

void settle_world() {
  if (process_died(kMarud)) {
    make_marud_again();
    adopt();
    for (uint32_t page = 0; page < kWorldPages; ++page) {  // what the dead was about to evict
      AtomicU64& word = world().block(page).word;
      const PageWord found{word.raw};
      if (found.is(PageState::kRetiring)) word.raw = PageWord::ready(found.generation(), 0).bits;
    }
  }
  for (uint32_t lane = 1; lane < kWorldLanes; ++lane) {
    if (process_died(lane_process(lane)) && (reclaimed_mask >> lane & 1) == 0) reclaim_lane(lane);
  }
  free_handed_over();
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
