#include "libmaru/shm/blocks/pin.h"

namespace maru::shm {

LaneSet LaneSet::in_use(const ControlRegion& region) {
  LaneSet set;
  const format::LaneBitmap& bitmap = region.lane_bitmap();
  for (uint32_t w = 0; w * 64 < region.lanes(); ++w)
    set.words_[w] = bitmap.words[w].load_seq_cst();  // [pairs lanes.in_use]
  return set;
}

LaneSet with_other_hosts(const ControlRegion& region, const LaneSet& own) {
  LaneSet set = own;
  if (__builtin_expect(region.is_shared(), 0)) set.add_all(LaneSet::in_use(region));
  return set;
}

const AtomicU64* find_pin(const ControlRegion& region, const LaneSet& lanes, uint32_t page) {
  const uint32_t set = pin_set_start(region.layout(), page);
  const AtomicU64* found = nullptr;
  lanes.for_each(region.lanes(), [&](uint32_t lane) {
    if (found != nullptr) return;
    const AtomicU64* pins = region.lane_pins(lane) + set;
    for (uint32_t i = 0; i < limits::kPinSetSlots; ++i) {
      const PageRef ref = PageRef::from_bits(pins[i].load_seq_cst());  // [pairs pin.slot]
      if (!ref.is_none() && ref.page() == page) found = &pins[i];
    }
    // The count is read after RETIRING was written, and was raised before the slot it counts. [pairs pin.overflow]
    if (found == nullptr && region.lane_header(lane).pin_overflow.load_seq_cst() != 0)
      for (const AtomicU64& slot : region.lane(lane).pin_overflow) {
        const PageRef ref = PageRef::from_bits(slot.load_seq_cst());
        if (!ref.is_none() && ref.page() == page) found = &slot;
      }
  });
  return found;
}

bool is_pinned(const ControlRegion& region, const LaneSet& lanes, uint32_t page) {
  return find_pin(region, lanes, page) != nullptr;
}

void prefetch_pins(const ControlRegion& region, const LaneSet& lanes, uint32_t page) {
  const uint32_t set = pin_set_start(region.layout(), page);
  lanes.for_each(region.lanes(), [&](uint32_t lane) { __builtin_prefetch(region.lane_pins(lane) + set); });
}

PinTable::PinTable(const ControlRegion& region, uint32_t lane, std::span<AtomicU32> counts)
    : region_(&region), lane_(region.lane(lane)), counts_(counts) {}

AtomicU64& PinTable::shared_slot(uint32_t slot) const {
  return slot < lane_.pins.size() ? lane_.pins[slot] : lane_.pin_overflow[slot - lane_.pins.size()];
}

// Adds one to a slot that holds `ref` already.
bool PinTable::join(uint32_t slot, PageRef ref) {
  uint32_t count = counts_[slot].load_acquire();
  if (count == 0 || count >= kBusy - 1 || shared_slot(slot).load_relaxed() != ref.bits) return false;  // own lane
  if (!counts_[slot].cas_acq_rel(count, count + 1)) return false;
  // Between the look and the step the slot may have gone to another page and come back to the same count.
  if (shared_slot(slot).load_relaxed() == ref.bits) return true;  // stable: this thread's count holds it
  give_back(slot);
  return false;
}

// Finds a free slot in the page's set and writes the page into it; the private count stays busy.
Pin PinTable::claim_in_set(PageRef ref) {
  const uint32_t set = pin_set_start(region_->layout(), ref.page());
  for (uint32_t i = 0; i < limits::kPinSetSlots; ++i) {
    uint32_t expected = 0;
    if (counts_[set + i].load_relaxed() == 0 &&  // only a hint: the CAS decides
        counts_[set + i].cas_acq_rel(expected, kBusy)) {
      shared_slot(set + i).exchange_seq_cst(ref.bits);  // [pairs pin.slot]
      return {PinStatus::kPinned, set + i};
    }
  }
  return {PinStatus::kFull, 0};
}

// The same in the overflow area.
Pin PinTable::claim_in_overflow(PageRef ref) {
  const uint32_t first = uint32_t(lane_.pins.size());
  for (uint32_t i = 0; i < lane_.pin_overflow.size(); ++i) {
    uint32_t expected = 0;
    if (counts_[first + i].load_relaxed() == 0 &&  // only a hint: the CAS decides
        counts_[first + i].cas_acq_rel(expected, kBusy)) {
      lane_.header->pin_overflow.fetch_add_seq_cst(1);  // before the slot: [pairs pin.overflow]
      shared_slot(first + i).exchange_seq_cst(ref.bits);
      return {PinStatus::kPinned, first + i};
    }
  }
  return {PinStatus::kFull, 0};
}

// Empties a slot whose private count this thread has made busy.
void PinTable::clear_busy(uint32_t slot) {
  shared_slot(slot).store_release(0);  // the reader's reads happened before: [pairs pin.slot]
  if (slot >= lane_.pins.size()) lane_.header->pin_overflow.fetch_add_seq_cst(~uint64_t{0});  // [pairs pin.overflow]
  counts_[slot].store_release(0);
}

// Drops one count from a slot; the last count empties it.
void PinTable::give_back(uint32_t slot) {
  for (;;) {  // ends: each failure means that another thread's step on the same count succeeded
    uint32_t count = counts_[slot].load_acquire();
    if (count == kBusy) continue;  // another thread is between two steps of the same process
    if (count > 1) {
      if (counts_[slot].cas_acq_rel(count, count - 1)) return;
      continue;
    }
    if (counts_[slot].cas_acq_rel(count, kBusy)) return clear_busy(slot);
  }
}

PinStatus PinTable::validate(PageRef ref) {
  AtomicU64& word = region_->block(ref.page()).word;
  PageWord found{word.load_seq_cst()};  // after the slot: [pairs page.retiring]
  for (uint32_t tries = 0; tries < limits::kPinReviveRetries; ++tries) {
    if (found.is(PageState::kReady, ref.generation())) return PinStatus::kPinned;
    if (!found.is(PageState::kRetiring, ref.generation())) return PinStatus::kGone;
    if (word.cas_seq_cst(found.bits, PageWord::ready(ref.generation(), 0).bits)) {
      lane_.header->counters[format::kCounterRevives].fetch_add_relaxed(1);  // a statistic
      return PinStatus::kPinned;
    }
  }
  return PinStatus::kGone;
}

// Ends the busy time of a slot: others may join it, or it is free. A slot that failed is never joinable in between.
void PinTable::settle(const Pin& pin) {
  if (pin.status == PinStatus::kPinned)
    counts_[pin.slot].store_release(1);
  else
    clear_busy(pin.slot);
}

// Joins a slot of the process that holds the block already.
bool PinTable::join_any(uint32_t first, uint32_t count, PageRef ref, Pin* ret_pin) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!join(first + i, ref)) continue;
    // The other thread's pin keeps the page, not the key: the block may have been deleted under it, and then it is a miss.
    const PinStatus status = validate(ref);
    if (status != PinStatus::kPinned) give_back(first + i);
    *ret_pin = {status, first + i};
    return true;
  }
  return false;
}

Pin PinTable::pin(PageRef ref) {
  Pin pin;
  if (join_any(pin_set_start(region_->layout(), ref.page()), limits::kPinSetSlots, ref, &pin)) return pin;
  pin = claim_in_set(ref);
  if (pin.status == PinStatus::kFull) {
    // However often a block is pinned, it takes one slot here, too. (Of two threads at once each may take one.)
    const uint32_t first = uint32_t(lane_.pins.size()), count = uint32_t(lane_.pin_overflow.size());
    const bool may_be_there = lane_.header->pin_overflow.load_relaxed() != 0;  // own lane
    if (may_be_there && join_any(first, count, ref, &pin)) return pin;
    pin = claim_in_overflow(ref);
  }
  if (pin.status != PinStatus::kPinned) return pin;
  pin.status = validate(ref);
  settle(pin);
  return pin;
}

Pin PinTable::pin_own(PageRef ref) {
  Pin pin = claim_in_set(ref);
  if (pin.status == PinStatus::kFull) pin = claim_in_overflow(ref);
  if (pin.status == PinStatus::kPinned) settle(pin);
  return pin;
}

void PinTable::pin_batch(const PageRef* refs, size_t count, Pin* ret_pins) {
  // On x86 one locked instruction orders all earlier stores before all later loads. So plain stores followed by one
  // read-modify-write replace an exchange per slot; so it is in the simulator. Elsewhere each slot is exchanged.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  for (size_t i = 0; i < count; ++i) {
    const uint32_t set = pin_set_start(region_->layout(), refs[i].page());
    ret_pins[i].status = PinStatus::kGone;
    ret_pins[i].slot = kBusy;
    for (uint32_t k = 0; k < limits::kPinSetSlots && ret_pins[i].slot == kBusy; ++k) {
      uint32_t expected = 0;
      if (counts_[set + k].load_relaxed() == 0 &&  // only a hint: the CAS decides
          counts_[set + k].cas_acq_rel(expected, kBusy)) {
        shared_slot(set + k).store_release(refs[i].bits);
        ret_pins[i].slot = set + k;
      }
    }
  }
  lane_.header->pin_overflow.fetch_add_seq_cst(0);  // the barrier: [pairs pin.slot] [pairs page.retiring]
  for (size_t i = 0; i < count; ++i) {
    if (ret_pins[i].slot == kBusy) {
      ret_pins[i] = pin(refs[i]);  // its set is full: join, or the overflow area
      continue;
    }
    ret_pins[i].status = validate(refs[i]);
    settle(ret_pins[i]);
  }
#else
  for (size_t i = 0; i < count; ++i) ret_pins[i] = pin(refs[i]);
#endif
}

bool PinTable::unpin(uint32_t slot, PageRef ref) {
  if (slot >= counts_.size()) return false;
  for (;;) {  // ends: each failure means that another thread's step on the same count succeeded
    uint32_t count = counts_[slot].load_acquire();
    if (count == kBusy) continue;  // another thread is between two steps of the same process
    if (count == 0) return false;
    const uint64_t seen = shared_slot(slot).load_relaxed();  // own lane
    if (seen != ref.bits && seen != 0) return false;
    if (!counts_[slot].cas_acq_rel(count, kBusy)) continue;
    // When two threads release one view, the later thread may find the same count for another block here. While it is busy, the
    // slot stays as it is, with one exception. Another host's marud that took this host for dead ends all pins of the lane:
    // then only this process still counts the pin.
    const uint64_t held = shared_slot(slot).load_relaxed();
    const bool is_meant = held == ref.bits || held == 0;
    if (is_meant && count == 1 && held != 0)
      clear_busy(slot);
    else
      counts_[slot].store_release(is_meant ? count - 1 : count);
    return is_meant;
  }
}

bool PinTable::forget(uint32_t slot) {
  if (slot >= counts_.size()) return false;
  uint32_t count = counts_[slot].load_relaxed();  // the CAS decides
  do {
    if (count == 0 || count == kBusy) return false;
  } while (!counts_[slot].cas_relaxed(count, count - 1));
  return true;
}

uint32_t PinTable::slots_in_use() const {
  uint32_t used = 0;
  for (const AtomicU32& count : counts_) used += count.load_relaxed() != 0;  // a statistic
  return used;
}

}  // namespace maru::shm
