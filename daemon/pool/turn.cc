// A pool's turn: one short step of what there is to do, while requests of every pool wait. The works have their steps one after
// the other, and share the lines that a turn may read (limits.h). When these are used up the turn ends, and the next one
// goes on with the next work. So each work has its step after one step of every other work, however much there is of those.
//
// Requests are served between two turns. So what a work keeps from one turn to the next is a hint, which it checks again.
#include "daemon/pool/parts.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// In the order in which they follow from each other.
enum Work : uint32_t {
  kMending,
  kTouches,
  kHeld,
  kReclaim,
  kHostReclaim,
  kFindings,
  kPoison,
  kDeletions,
  kEvictions,
  kExpired,
  kAudit,
  kRestAudit,
  kRecounts,
  kTenants,
  kUpkeep,
  kFeed,
  kClearing,
  kDrain,
  kKeyCells,
  kWatermarks,
  kWorkCount
};

// As much of what is left as one step does.
uint64_t take_of(uint64_t& left, uint64_t most) {
  const uint64_t taken = std::min(left, most);
  left -= taken;
  return taken;
}

}  // namespace

// A step of one work. Returns true when there is more of it to do right away.
bool Pool::State::do_work(uint32_t which, const LineBudget& budget) {
  switch (Work(which)) {
    case kMending: return queues.step_mending();
    case kTouches: return !recency.drain(kTouchesPerDrain);
    case kHeld:
      if (held.is_pass_due()) held.look(budget.left());
      return !recency.has_ended(rounds.wanted);
    case kReclaim: return reclaim.step(budget);
    case kHostReclaim: return reclaims.step(kLinkedPagesPerTurn);
    case kFindings: reclaim.take_findings(budget.left()); return !findings.orphans.empty();
    case kPoison: return poison.step();
    case kDeletions: return deletions.step();
    case kEvictions: return evictions.step();
    case kExpired: return expired.step();
    case kAudit: return audits.step();
    case kRestAudit: return audits.step_at_rest();
    case kRecounts: return recounts.step(true);
    case kTenants: return tenants.step_count(kReclaimPagesPerTurn, core.now_ms);
    case kUpkeep: return step_upkeep(budget);
    case kFeed: return feed.fill(kSweepPagesPerTurn);
    case kClearing: return deletions.step_pass();
    case kDrain: return drain.is_on() && drain.step(budget);
    case kKeyCells: return !drain.is_on() && key_cells.step();
    case kWatermarks: return !drain.is_on() && background.step();
    case kWorkCount: break;
  }
  return false;
}

// What comes back after a pause, part by part, so much of each. Returns true when some of it is left.
bool Pool::State::step_upkeep(const LineBudget& budget) {
  // The clock may also be set back.
  const auto is_due = [&](uint64_t& last_ms, uint64_t pause_ms) {
    if (core.now_ms >= last_ms && core.now_ms - last_ms < pause_ms) return false;
    last_ms = core.now_ms;
    return true;
  };
  if (is_due(last_upkeep_ms, kUpkeepPauseMs)) {
    upkeep.retired_lines = kRetiredLinesPerTurn;
    upkeep.held_lines = kHeldLinesOfUpkeep;
    upkeep.sweep_pages = std::min(kSweptPagesOfUpkeep, core.pages());
    upkeep.count_pages = std::min(kCountedPagesOfUpkeep, core.pages());
    deletions.begin_pass();
    feed.note_moves();
    upkeep.feed_pages = std::min(feed.pages_wanted(), core.pages());
  }
  if (is_due(last_pin_look_ms, kPinLookPauseMs)) upkeep.pin_slots = kPinSlotsPerLook;  // ages of pins are for people
  if (retired.size() == 0) upkeep.retired_lines = 0;
  const uint64_t lines = std::max<uint64_t>(1, budget.left());
  while (!budget.is_spent()) {
    if (upkeep.retired_lines > 0)
      retired.finish(take_of(upkeep.retired_lines, lines));
    else if (upkeep.held_lines > 0)
      held.look(take_of(upkeep.held_lines, lines));
    else if (upkeep.sweep_pages > 0)
      sweep.step(take_of(upkeep.sweep_pages, kSweepPagesPerTurn));
    else if (upkeep.count_pages > 0)
      background.count_used(take_of(upkeep.count_pages, kCountPagesPerTurn));
    else if (feed.is_there() && upkeep.feed_pages > 0)
      feed.walk(take_of(upkeep.feed_pages, kSweepPagesPerTurn));
    else if (upkeep.pin_slots > 0)
      pin_watch.look(take_of(upkeep.pin_slots, kPinSlotsPerTurn));
    else
      return false;
  }
  return true;
}

// Returns true when there is more to do right away.
bool Pool::State::turn() {
  if (core.region.is_shared()) {
    hosts.watch();
    if (!slot.lost_because().empty()) return false;
  }
  slot.beat();
  if (audits.is_quiesced()) return audits.step_at_rest();
  queues.separate_tenants();
  heat.cool();
  limit_commands.step();
  room.step();
  queues.begin_turn();
  const LineBudget budget(core.meter, kLinesPerTurn);
  bool has_more = false;
  for (uint32_t i = 0; i < kWorkCount; ++i) {
    if (i != 0 && budget.is_spent()) return true;  // one work at least, whatever was read before it
    has_more |= do_work(work_next, budget);
    work_next = (work_next + 1) % kWorkCount;
  }
  work_next = 0;
  return has_more;
}

// What requests have read since the last turn counts for this one.
void Pool::State::end_turn() {
  late.collect();
  core.totals.turn_lines_max = std::max(core.totals.turn_lines_max, core.meter.read() - lines_before);
  lines_before = core.meter.read();
  regions.show_frees();
}

bool Pool::turn(uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  const bool has_more = state_->feed.end_turn(state_->turn());
  state_->end_turn();
  return has_more;
}

uint64_t Pool::turn_lines_max() const { return state_->core.totals.turn_lines_max; }

}  // namespace maru::daemon
