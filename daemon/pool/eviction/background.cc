// Between the watermarks: when as much of the pool is in use as the high watermark says, blocks are evicted in the order of
// the policy until no more is in use than the low watermark says. So a client that stores finds FREE pages in its own regions
// and asks nobody. The distance between the two keeps this from starting and stopping all the time.
//
// What is in use is counted from the page words, region after region: all of a pool of 32,768 pages every 10 ms, one of a
// million every 0.3 s. Pages that clients keep RESERVED for their next block are in use.
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint64_t kEvictedPerTurn = shm::kEvictBatchMax;         // about a quarter of a millisecond
constexpr uint64_t kEvictedAfterTurns = 4 * shm::kEvictBatchMax;  // when it had to wait for others
constexpr uint64_t kLinesPerPage = 16;                            // that looks may read, also if all are pinned
constexpr uint64_t kNothingGoesPauseMs = 100;

uint64_t share_of(uint64_t pages, double share) { return uint64_t(double(pages) * share); }

}  // namespace

void Pool::State::count_used(uint64_t count) {
  for (uint64_t i = 0; i < std::min(count, core.pages()); ++i) {
    const auto page = uint32_t(count_next++);
    switch (core.word(page).state()) {
      case PageState::kOut:
      case PageState::kFree:
      case PageState::kPoisoned: break;
      default: ++counted_used;
    }
    if (count_next % core.region.region_pages() == 0) {
      regions.set_counted(core.region.region_of(page), counted_used);
      counted_used = 0;
    }
    if (count_next == core.pages()) count_next = 0;
  }
}

// Returns true when there is more to do right away.
bool Pool::State::evict_to_low_watermark() {
  if (core.config.high_watermark <= 0 || core.config.high_watermark >= 1 || !policy->evicts()) {
    is_evicting = false;
    return false;
  }
  // Of several hosts each looks after its own regions, and those that are nobody's count as room.
  const uint64_t whole = regions.own_regions().size() * core.region.region_pages();
  const uint64_t low = share_of(whole, core.config.low_watermark);
  // In a small pool both may be the same page; it must be worth waking up.
  const uint64_t high = std::max(low + 1, share_of(whole, core.config.high_watermark));
  if (!is_evicting && regions.pages_in_use >= high) {
    is_evicting = true;
    evict_round = 0;
    ++core.totals.background_wakes;
  }
  if (is_evicting && regions.pages_in_use <= low) is_evicting = false;
  if (!is_evicting || rests(core.now_ms, evict_again_ms, kNothingGoesPauseMs)) return false;

  // Each batch is as exact as that of a request: what was left until now is read, and held blocks are looked at, first.
  const uint64_t most = evict_round == 0 ? kEvictedPerTurn : kEvictedAfterTurns;
  if (!has_caught_up(evict_round) || is_reordering()) return true;
  evict_round = 0;
  ask_for_tenant(0);
  const std::vector<uint32_t> all = regions.own_regions();
  Shortage room;
  room.reason = EvictReason::kBackground;
  room.runs = std::min(most, regions.pages_in_use - low);
  room.lines_left = kLinesPerPage * most;
  const uint64_t before = regions.pages_in_use;
  evict_coldest(all, room);
  if (regions.pages_in_use < before || room.lines_left == 0) return true;
  evict_again_ms = core.now_ms + kNothingGoesPauseMs;  // pinned, has children, or is unknown yet
  return false;
}

}  // namespace maru::daemon
