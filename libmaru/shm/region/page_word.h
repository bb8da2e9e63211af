// The page word, taken apart and put together. See PageState in include/maru/format/control_region.h.
#pragma once

#include "maru/format/control_region.h"

#include <cstdint>

namespace maru::shm {

using format::PageRef;
using format::PageState;

// The identity of a lane's client: lane numbers are used again, with another generation.
struct LaneId {
  uint32_t lane = 0;        // 12 bits
  uint32_t generation = 0;  // 16 bits

  constexpr uint32_t low() const { return (lane & 0xFFF) << 16 | (generation & 0xFFFF); }
  static constexpr LaneId from_low(uint32_t low) { return {low >> 16 & 0xFFF, low & 0xFFFF}; }
  friend constexpr bool operator==(LaneId, LaneId) = default;
};

struct PageWord {
  uint64_t bits = 0;

  static constexpr PageWord of(PageState state, uint32_t generation, uint32_t low) {
    return {uint64_t(state) << 60 | uint64_t(generation) << 28 | (low & 0xFFF'FFFF)};
  }
  static constexpr PageWord free(uint32_t generation) { return of(PageState::kFree, generation, 0); }
  static constexpr PageWord out(uint32_t generation) { return of(PageState::kOut, generation, 0); }
  static constexpr PageWord reserved(uint32_t generation, LaneId who) {
    return of(PageState::kReserved, generation, who.low());
  }
  static constexpr PageWord sealed(uint32_t generation, LaneId who) {
    return of(PageState::kSealed, generation, who.low());
  }
  static constexpr PageWord retired(uint32_t generation, LaneId who) {
    return of(PageState::kRetired, generation, who.low());
  }
  static constexpr PageWord ready(uint32_t generation, uint32_t children, bool recount = false) {
    return of(PageState::kReady, generation, (recount ? format::kRecountFlag : 0) | children);
  }
  static constexpr PageWord poisoned(uint32_t generation) { return of(PageState::kPoisoned, generation, 0); }
  static constexpr PageWord tail(uint32_t generation, uint32_t distance) {
    return of(PageState::kTail, generation, distance);
  }
  static constexpr PageWord retiring(uint32_t generation, uint32_t evictor, uint32_t attempt) {
    return of(PageState::kRetiring, generation, (evictor & 0xFFF) << 16 | (attempt & 0xFFFF));
  }

  // May be a value that is no state: the word comes from shared memory.
  constexpr PageState state() const { return PageState(bits >> 60); }
  constexpr uint32_t generation() const { return uint32_t(bits >> 28); }
  constexpr uint32_t low() const { return uint32_t(bits) & 0xFFF'FFFF; }
  constexpr LaneId lane() const { return LaneId::from_low(low()); }
  constexpr uint32_t children() const { return low() & (format::kRecountFlag - 1); }
  constexpr bool recount() const { return (low() & format::kRecountFlag) != 0; }
  constexpr bool is(PageState wanted) const { return state() == wanted; }
  constexpr bool is(PageState wanted, uint32_t of_generation) const {
    return state() == wanted && generation() == of_generation;
  }
  constexpr bool names_lane() const {
    return is(PageState::kReserved) || is(PageState::kSealed) || is(PageState::kRetired);
  }
  // A block that a lookup may still find: it is visible, or tentatively on its way out.
  constexpr bool is_findable(uint32_t of_generation) const {
    return generation() == of_generation && (state() == PageState::kReady || state() == PageState::kRetiring);
  }
  friend constexpr bool operator==(PageWord, PageWord) = default;
};

}  // namespace maru::shm
