// Decides which form an adapter should have, from its recent uses. Pure arithmetic: the clock and the register are the
// caller's.
//
// With one threshold for each form an adapter at a threshold would move at each look. So an adapter enters a form at one number
// of uses and leaves it below a smaller number, and it keeps a new form for a while. A full budget changes hands only for a
// clearly more used adapter.
#pragma once

#include "libmaru/adapters/register_format.h"

namespace maru::adapters {

struct Standing {
  uint32_t uses = 0;         // in the window
  uint64_t last_use_ms = 0;  // 0: never
  bool is_resident[kForms] = {};
  uint64_t since_ms[kForms] = {};
};

enum class Move { kStay, kPromote, kDemote, kDrop };

// The move that the rules want: kPromote WARM to HOT, kDemote HOT to WARM, kDrop WARM to COLD.
inline Move wish(const Rules& rules, const Standing& standing, uint64_t now_ms) {
  const auto has_stayed = [&](Form form) { return now_ms - standing.since_ms[index_of(form)] >= rules.stay_ms; };
  if (standing.is_resident[index_of(Form::kHot)])
    return standing.uses < rules.hot_leave_uses && has_stayed(Form::kHot) ? Move::kDemote : Move::kStay;
  if (!standing.is_resident[index_of(Form::kWarm)]) return Move::kStay;
  if (standing.uses >= rules.hot_enter_uses && has_stayed(Form::kWarm)) return Move::kPromote;
  return standing.uses == 0 && has_stayed(Form::kWarm) ? Move::kDrop : Move::kStay;
}

// The form for an adapter that is needed now.
inline Form form_for(const Rules& rules, uint32_t uses) {
  return uses >= rules.hot_enter_uses ? Form::kHot : Form::kWarm;
}

// Whether one is used so much more that it may take the other's place: a quarter more, and by two at least.
inline bool is_clearly_more_used(uint32_t uses, uint32_t others) {
  return uses >= others + 2 && 4 * uint64_t{uses} >= 5 * uint64_t{others};
}

// Counting: a word for each period of a sixth of the window.
inline uint64_t period_of(const Rules& rules, uint64_t now_ms) { return now_ms / (rules.window_ms / kUsePeriods + 1); }

inline void count_use(Entry& entry, const Rules& rules, uint64_t now_ms) {
  const uint64_t period = period_of(rules, now_ms) & 0xFFFF'FFFF;
  std::atomic<uint64_t>& word = entry.uses[period % kUseSlots];
  // Relaxed: nothing else is read by these numbers, and a lost use changes no answer.
  uint64_t before = word.load(std::memory_order_relaxed), after = 0;
  int tries = 0;
  do after = before >> 32 == period ? before + 1 : period << 32 | 1;
  while (!word.compare_exchange_weak(before, after, std::memory_order_relaxed) && ++tries < 64);
  entry.last_use_ms.store(now_ms, std::memory_order_relaxed);
}

inline uint32_t window_uses(const Entry& entry, const Rules& rules, uint64_t now_ms) {
  const uint64_t period = period_of(rules, now_ms) & 0xFFFF'FFFF;
  uint64_t sum = 0;
  for (const std::atomic<uint64_t>& slot : entry.uses) {
    const uint64_t word = slot.load(std::memory_order_relaxed);
    if ((word & 0xFFFF'FFFF) != 0 && period - (word >> 32) < kUsePeriods) sum += word & 0xFFFF'FFFF;
  }
  return sum > UINT32_MAX ? UINT32_MAX : uint32_t(sum);
}

}  // namespace maru::adapters
