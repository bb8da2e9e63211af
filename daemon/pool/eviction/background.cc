#include "daemon/pool/eviction/background.h"

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

void Background::count_used(uint64_t count) {
  for (uint64_t i = 0; i < std::min(count, core_.pages()); ++i) {
    const auto page = uint32_t(count_next_++);
    switch (core_.word(page).state()) {
      case PageState::kOut:
      case PageState::kFree:
      case PageState::kPoisoned: break;
      default: ++counted_used_;
    }
    if (count_next_ % core_.region.region_pages() == 0) {
      regions_.set_counted(core_.region.region_of(page), counted_used_);
      counted_used_ = 0;
    }
    if (count_next_ == core_.pages()) count_next_ = 0;
  }
}

bool Background::step() {
  if (core_.config.high_watermark <= 0 || core_.config.high_watermark >= 1 || !queues_.policy->evicts()) {
    is_evicting_ = false;
    return false;
  }
  // With several hosts each looks after its own regions, and unrented regions count as room.
  const uint64_t whole = regions_.own_regions().size() * core_.region.region_pages();
  const uint64_t low = share_of(whole, core_.config.low_watermark);
  // In a small pool both may be the same page; it must be worth waking up.
  const uint64_t high = std::max(low + 1, share_of(whole, core_.config.high_watermark));
  if (!is_evicting_ && regions_.pages_in_use >= high) {
    is_evicting_ = true;
    evict_round_ = 0;
    ++core_.totals.background_wakes;
  }
  if (is_evicting_ && regions_.pages_in_use <= low) is_evicting_ = false;
  if (!is_evicting_ || rests(core_.now_ms, evict_again_ms_, kNothingGoesPauseMs)) return false;

  // Each batch is as exact as a request's batch: first the remaining touches are read, and held blocks are looked at.
  const uint64_t most = evict_round_ == 0 ? kEvictedPerTurn : kEvictedAfterTurns;
  if (!recency_.has_caught_up(evict_round_) || queues_.is_reordering()) return true;
  evict_round_ = 0;
  queues_.ask_for_tenant(0);
  const std::vector<uint32_t> all = regions_.own_regions();
  Shortage room;
  room.reason = EvictReason::kBackground;
  room.runs = std::min(most, regions_.pages_in_use - low);
  room.lines_left = kLinesPerPage * most;
  const uint64_t before = regions_.pages_in_use;
  evictor_.evict_coldest(all, room);
  if (regions_.pages_in_use < before || room.lines_left == 0) return true;
  evict_again_ms_ = core_.now_ms + kNothingGoesPauseMs;  // pinned, has children, or is unknown yet
  return false;
}

}  // namespace maru::daemon
