// Pins: a client's statement, in its own lane, that it is using a block.
//
// A pin is a slot of the lane that holds {page, generation}. The reader writes the slot with one atomic exchange and then reads
// the page word again. If the page has still the same life and is visible, the pin holds; otherwise the slot is cleared and it
// was a miss. The evictor marks the page word RETIRING first and looks for the page in the slots afterwards. Whichever order
// the two happen in, one of them sees the other: both are sequentially consistent. [pairs pin.slot] [pairs page.retiring]
//
// Slots come in sets of eight, chosen by the page, so that looking for one page costs one line of each lane. A full set spills
// into an overflow area. Its count is raised before the slot is written and lowered after it is cleared.
//
// Beside each shared slot the process keeps a private count, so that a block pinned again costs no shared write. The count
// passes through a busy value at both edges: while it is busy no thread joins. So no second pin can return before the first has
// reached shared memory, and no unpin can clear a pin that another thread has just joined.
//
// Thread safety: PinTable by any number of threads of its process. Progress: pin() is bounded by the slots and
// limits::kPinReviveRetries. If the process dies here: a slot that stays set keeps its page from being reused until marud
// has proof of the death and clears the lane.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

namespace maru::shm {

// A set of lanes, for a search for pins.
class LaneSet {
 public:
  void add(uint32_t lane) { words_[lane / 64] |= 1ull << lane % 64; }
  void remove(uint32_t lane) { words_[lane / 64] &= ~(1ull << lane % 64); }
  bool has(uint32_t lane) const { return (words_[lane / 64] >> lane % 64 & 1) != 0; }
  bool is_empty() const {
    return std::all_of(std::begin(words_), std::end(words_), [](uint64_t bits) { return bits == 0; });
  }
  void add_all(const LaneSet& other) {
    for (size_t w = 0; w < std::size(words_); ++w) words_[w] |= other.words_[w];
  }
  // The lanes in use, as the region shows them. A lane's bit is set before its client learns of it.
  static LaneSet in_use(const ControlRegion& region);

  template <typename F>
  void for_each(uint32_t lanes, F&& f) const {
    for (uint32_t w = 0; w * 64 < lanes; ++w)
      for (uint64_t bits = words_[w]; bits; bits &= bits - 1) {
        const uint32_t lane = w * 64 + uint32_t(__builtin_ctzll(bits));
        if (lane < lanes) f(lane);
      }
  }

 private:
  uint64_t words_[limits::kLanesMax / 64] = {};
};

// The set, and in a pool of several hosts also the lanes of the other hosts as their bits say now. To be called after the page
// word was marked, since another host hands out lanes whenever it likes.
LaneSet with_other_hosts(const ControlRegion& region, const LaneSet& own);

// Whether any lane of the set has a slot for this page, of any generation: a pin that is just being undone counts.
bool is_pinned(const ControlRegion& region, const LaneSet& lanes, uint32_t page);
// The same, and the slot itself, null for none. It is as long as the region is mapped.
const AtomicU64* find_pin(const ControlRegion& region, const LaneSet& lanes, uint32_t page);
// Whether a slot that find_pin has found for this page has it still: a single load in place of a look at all lanes. A hint for
// a caller that leaves a pinned block alone. When it is false, other slots may still pin the page.
inline bool pins_page(const AtomicU64& slot, uint32_t page) {
  const PageRef ref = PageRef::from_bits(slot.load_relaxed());  // stale is as if this had been asked a little earlier
  return !ref.is_none() && ref.page() == page;
}
// Brings the lines that is_pinned will read closer.
void prefetch_pins(const ControlRegion& region, const LaneSet& lanes, uint32_t page);

enum class PinStatus : uint8_t {
  kPinned,
  kGone,  // not visible any more, or another life of the page
  kFull,  // every slot that could hold it is taken: not a miss
};

struct Pin {
  PinStatus status = PinStatus::kGone;
  uint32_t slot = 0;  // for unpin
};

class PinTable {
 public:
  PinTable() = default;
  // `counts`: private memory of pin_slots + pin_overflow_slots words, zeroed, owned by the caller.
  PinTable(const ControlRegion& region, uint32_t lane, std::span<AtomicU32> counts);
  static size_t counts_needed(const Layout& layout) { return size_t(layout.pin_slots) + layout.pin_overflow_slots; }

  // Pins a block if it is visible: READY, or RETIRING, which is put back to READY.
  Pin pin(PageRef ref);
  // Pins `count` blocks at once: all slots first, one barrier, then all words. ret_pins[i] as from pin().
  void pin_batch(const PageRef* refs, size_t count, Pin* ret_pins);
  // Takes a slot for a page that the caller holds anyway and that is about to become visible. No validation.
  Pin pin_own(PageRef ref);
  // Returns false if the slot is not pinned or holds another page than `ref`: released twice, or never pinned.
  bool unpin(uint32_t slot, PageRef ref);

  // For a pool that another process has taken over, and perhaps the slot with it: the pin ends in this process alone. False if
  // there was none.
  bool forget(uint32_t slot);

  uint32_t slots_in_use() const;

 private:
  static constexpr uint32_t kBusy = 0xFFFF'FFFF;

  AtomicU64& shared_slot(uint32_t slot) const;
  bool join(uint32_t slot, PageRef ref);
  bool join_any(uint32_t first, uint32_t count, PageRef ref, Pin* ret_pin);
  Pin claim_in_set(PageRef ref);
  Pin claim_in_overflow(PageRef ref);
  void settle(const Pin& pin);
  void clear_busy(uint32_t slot);
  void give_back(uint32_t slot);
  PinStatus validate(PageRef ref);

  const ControlRegion* region_ = nullptr;
  LaneView lane_;
  std::span<AtomicU32> counts_;
};

// The set of a page: a multiplicative hash, so that runs of pages spread over all sets.
inline uint32_t pin_set_start(const Layout& layout, uint32_t page) {
  const uint32_t sets = layout.pin_slots / uint32_t(limits::kPinSetSlots);
  return uint32_t(uint64_t(page * 0x9e37'79b1u) * sets >> 32) * uint32_t(limits::kPinSetSlots);
}

}  // namespace maru::shm
