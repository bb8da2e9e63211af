// The rules at work: which adapters should have another form, and their moves, the most useful first.
#include "libmaru/adapters/adapter_set.h"

#include <algorithm>

namespace maru::adapters {

Standing AdapterSet::standing_of(uint32_t number, uint64_t now_ms) const {
  const Entry& entry = register_.entry(number);
  Standing standing;
  standing.uses = window_uses(entry, register_.rules(), now_ms);
  standing.last_use_ms = entry.last_use_ms.load(std::memory_order_relaxed);
  for (const Form form : {Form::kHot, Form::kWarm}) {
    standing.is_resident[index_of(form)] = register_.is_resident(number, form);
    standing.since_ms[index_of(form)] = entry.since_ms[index_of(form)];
  }
  return standing;
}

// With the lock. Moves that make room come first, beginning with the least used adapters. Moves that take room follow,
// beginning with the most used adapters.
std::vector<AdapterSet::Wanted> AdapterSet::wanted_moves(uint64_t now_ms) const {
  std::vector<Wanted> going, coming;
  for (const Form form : {Form::kHot, Form::kWarm})
    for (const uint32_t number : register_.residents(form)) {
      if (number >= register_.entries_max()) continue;
      const Standing standing = standing_of(number, now_ms);
      const Name name = {number, register_.entry(number).life.load(std::memory_order_relaxed)};
      const bool is_hot = standing.is_resident[index_of(Form::kHot)];
      // Both forms at once are one too many: a promotion, or a request for the exact form, left the smaller one.
      const Move move = form == Form::kWarm && is_hot ? Move::kDrop : wish(register_.rules(), standing, now_ms);
      if (move == Move::kStay) continue;
      (move == Move::kPromote ? coming : going).push_back({name, move, standing.uses});
    }
  std::ranges::sort(going, {}, &Wanted::uses);
  std::ranges::sort(coming, std::ranges::greater(), &Wanted::uses);
  going.insert(going.end(), coming.begin(), coming.end());
  return going;
}

bool AdapterSet::do_move(const Wanted& wanted) {
  Fresh fresh;
  switch (wanted.move) {
    case Move::kStay: return false;
    case Move::kDrop: return remove(wanted.name, Form::kWarm) == 0;
    case Move::kDemote:
      // Not for an adapter that is held: the smaller form would be a second one.
      if (is_own(wanted.name.number, Form::kHot)) return false;
      // Where there is no room for the smaller form, the file is left.
      (void)bring(wanted.name, Form::kWarm, Pressure::kRules, fresh, nullptr);
      if (remove(wanted.name, Form::kHot) < 0) {
        fresh.let_go();
        (void)remove(wanted.name, Form::kWarm);
        return false;
      }
      register_.count(format::kAdapterDemotions);
      return true;
    case Move::kPromote:
      if (bring(wanted.name, Form::kHot, Pressure::kRules, fresh, nullptr) < 0) return false;
      (void)remove(wanted.name, Form::kWarm);
      register_.count(format::kAdapterPromotions);
      return true;
  }
  return false;
}

int AdapterSet::rebalance(uint32_t moves_max) {
  repair_all();
  std::vector<Wanted> wanted;
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return -ETIMEDOUT;
    wanted = wanted_moves(wish_.now_ms());
  }
  uint32_t moves = 0;
  for (const Wanted& one : wanted) {
    if (moves == moves_max) break;
    moves += do_move(one);
  }
  return int(moves);
}

}  // namespace maru::adapters
