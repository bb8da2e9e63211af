// Counting the pool. Every word is a hint by the time it is read, so relaxed loads will do, and no count decides anything. No
// word of a client makes a walk longer: the walk visits each page once, whatever the words of parents are.

#include "libmaru/client/client.h"

#include <vector>

namespace maru::client {

using format::PageState;
using shm::PageRef;
using shm::PageWord;

namespace {

// The blocks that nothing evicts: those with a pin, and their ancestors.
class HeldBlocks {
 public:
  explicit HeldBlocks(const shm::ControlRegion& region) : region_(region), seen_((region.pages() + 63) / 64) {}

  void add_pins_of(uint32_t lane) {
    const shm::LaneView view = region_.lane(lane);
    for (const std::span<AtomicU64> slots : {view.pins, view.pin_overflow})
      for (const AtomicU64& slot : slots)
        add(PageRef::from_bits(slot.load_relaxed()));  // stale: as if counted a little earlier
  }
  uint64_t count() const { return count_; }

 private:
  // Ends at the root, or at the first block that was counted.
  void add(PageRef ref) {
    while (region_.is_page(ref)) {
      const format::BlockLine& line = region_.block(ref.page());
      if (!PageWord{line.word.load_relaxed()}.is_findable(ref.generation())) return;
      uint64_t& word = seen_[ref.page() / 64];
      const uint64_t bit = 1ull << ref.page() % 64;
      if ((word & bit) != 0) return;
      word |= bit;
      ++count_;
      ref = PageRef::from_bits(line.parent.load_relaxed());
    }
  }

  const shm::ControlRegion& region_;
  std::vector<uint64_t> seen_;
  uint64_t count_ = 0;
};

}  // namespace

void Client::count_blocks(maru_block_counts* ret_counts) const {
  const uint32_t region_pages = region_.region_pages();
  for (uint32_t index = 0; index < region_.regions(); ++index) {
    // The pages of a region that no client has rented yet may be a hole, which a look would fill.
    if (region_.region(index).word.load_relaxed() == 0) {
      ret_counts->free_pages += region_pages;
      continue;
    }
    for (uint32_t page = index * region_pages; page < (index + 1) * region_pages; ++page) {
      switch (PageWord{region_.block(page).word.load_relaxed()}.state()) {
        case PageState::kOut:
        case PageState::kFree: ++ret_counts->free_pages; break;
        case PageState::kReady:
        case PageState::kRetiring:
          ++ret_counts->blocks;
          ret_counts->used_pages += region_.run_pages(page);
          break;
        default: break;
      }
    }
  }
  HeldBlocks held(region_);
  shm::LaneSet::in_use(region_).for_each(region_.lanes(), [&](uint32_t lane) { held.add_pins_of(lane); });
  ret_counts->held = held.count();
}

}  // namespace maru::client
