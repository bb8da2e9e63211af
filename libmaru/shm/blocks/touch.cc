#include "libmaru/shm/blocks/touch.h"

namespace maru::shm {
namespace {

constexpr uint64_t kTickMask = (1ull << 31) - 1;
// An entry whose writer was stopped or died between counting and writing is skipped after this many reads.
constexpr uint32_t kStuckReadsMax = 64;

uint64_t lap_bit(uint64_t index, size_t entries) { return (index / entries + 1) % 2; }

}  // namespace

void leave_touch(const LaneView& lane, uint32_t page, uint64_t tick_ms) {
  const uint64_t index = lane.header->touch_count.fetch_add_relaxed(1);  // order between threads does not matter
  AtomicU64& entry = lane.touches[index & (lane.touches.size() - 1)];
  entry.store_release((uint64_t(page) + 1) << 32 | lap_bit(index, lane.touches.size()) << 31 | (tick_ms & kTickMask));
}

size_t TouchReader::read(const LaneView& lane, uint64_t now_tick_ms, uint64_t pages, Touch* ret_touches, size_t limit) {
  const size_t entries = lane.touches.size();
  uint64_t count = lane.header->touch_count.load_acquire();  // the client's word: any value
  if (count < cursor_) {                                     // damaged, or a new client whose restart() was missed
    cursor_ = count;
    return 0;
  }
  if (count - cursor_ > entries) {
    lost_ += count - cursor_ - entries;
    cursor_ = count - entries;
  }
  size_t found = 0;
  for (size_t steps = 0; cursor_ < count && found < limit && steps < entries; ++steps) {
    const uint64_t entry = lane.touches[cursor_ & (entries - 1)].load_acquire();
    const bool written = entry != 0 && (entry >> 31 & 1) == lap_bit(cursor_, entries);
    if (!written) {
      count = lane.header->touch_count.load_acquire();
      if (count >= cursor_ && count - cursor_ >= entries) {  // overwritten while reading
        ++lost_;
      } else {
        if (stuck_at_ != cursor_) stuck_times_ = 0;
        stuck_at_ = cursor_;
        if (++stuck_times_ < kStuckReadsMax) return found;
        ++lost_;
      }
      ++cursor_;
      continue;
    }
    ++cursor_;
    const uint64_t page = (entry >> 32) - 1;
    if (page >= pages) continue;
    // The full tick nearest to now that ends in these 31 bits; never in the future.
    uint64_t tick = (now_tick_ms & ~kTickMask) | (entry & kTickMask);
    if (tick > now_tick_ms)
      tick = tick > kTickMask && tick - now_tick_ms > kTickMask / 2 ? tick - kTickMask - 1 : now_tick_ms;
    ret_touches[found++] = {uint32_t(page), tick};
  }
  return found;
}

}  // namespace maru::shm
