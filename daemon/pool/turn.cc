// A pool's turn: one short step of its work, while requests of every pool wait. The works have their steps one after the other,
// and share the lines that a turn may read (limits.h). When these are used up the turn ends, and the next turn goes on with the
// next work. So each work has its step after one step of every other work, even if those have much to do.
//
// Requests are served between two turns. So a work's state between turns is a hint, which it checks again.
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

// Takes as much of the rest as one step does.
uint64_t take_of(uint64_t& left, uint64_t most) {
  const uint64_t taken = std::min(left, most);
  left -= taken;
  return taken;
}

}  // namespace

// A step of one work. Returns true when there is more of it to do right away.
bool Pool::State::do_work(uint32_t which, const LineBudget& budget) {
  switch (Work(which)) {
    case kMending: return eviction.queues.step_mending();
    case kTouches: return !eviction.recency.drain(kTouchesPerDrain);
    case kHeld:
      if (eviction.held.is_pass_due()) eviction.held.look(budget.left());
      return !eviction.recency.has_ended(eviction.rounds.wanted);
    case kReclaim: return reclaiming.reclaim.step(budget);
    case kHostReclaim: return hosts.reclaims.step(kLinkedPagesPerTurn);
    case kFindings: reclaiming.reclaim.take_findings(budget.left()); return !findings.orphans.empty();
    case kPoison: return removal.poison.step();
    case kDeletions: return removal.deletions.step();
    case kEvictions: return memory.evictions.step();
    case kExpired: return removal.expired.step();
    case kAudit: return inspect.audits.step();
    case kRestAudit: return inspect.audits.step_at_rest();
    case kRecounts: return reclaiming.recounts.step(true);
    case kTenants: return tenants.step_count(kReclaimPagesPerTurn, core.now_ms);
    case kUpkeep: return step_upkeep(budget);
    case kFeed: return feed.fill(kSweepPagesPerTurn);
    case kClearing: return removal.deletions.step_pass();
    case kDrain: return memory.drain.is_on() && memory.drain.step(budget);
    case kKeyCells: return !memory.drain.is_on() && eviction.key_cells.step();
    case kWatermarks: return !memory.drain.is_on() && eviction.background.step();
    case kWorkCount: break;
  }
  return false;
}

// Work that comes back after a pause, part by part, so much of each. Returns true when some of it is left.
bool Pool::State::step_upkeep(const LineBudget& budget) {
  Upkeep& upkeep = turns.upkeep;
  // The clock may also be set back.
  const auto is_due = [&](uint64_t& last_ms, uint64_t pause_ms) {
    if (core.now_ms >= last_ms && core.now_ms - last_ms < pause_ms) return false;
    last_ms = core.now_ms;
    return true;
  };
  if (is_due(upkeep.last_ms, kUpkeepPauseMs)) {
    upkeep.retired_lines = kRetiredLinesPerTurn;
    upkeep.held_lines = kHeldLinesOfUpkeep;
    upkeep.sweep_pages = std::min(kSweptPagesOfUpkeep, core.pages());
    upkeep.count_pages = std::min(kCountedPagesOfUpkeep, core.pages());
    removal.deletions.begin_pass();
    feed.note_moves();
    upkeep.feed_pages = std::min(feed.pages_wanted(), core.pages());
  }
  if (is_due(upkeep.last_pin_look_ms, kPinLookPauseMs))
    upkeep.pin_slots = kPinSlotsPerLook;  // ages of pins are for people
  if (eviction.retired.size() == 0) upkeep.retired_lines = 0;
  const uint64_t lines = std::max<uint64_t>(1, budget.left());
  while (!budget.is_spent()) {
    if (upkeep.retired_lines > 0)
      eviction.retired.finish(take_of(upkeep.retired_lines, lines));
    else if (upkeep.held_lines > 0)
      eviction.held.look(take_of(upkeep.held_lines, lines));
    else if (upkeep.sweep_pages > 0)
      memory.sweep.step(take_of(upkeep.sweep_pages, kSweepPagesPerTurn));
    else if (upkeep.count_pages > 0)
      eviction.background.count_used(take_of(upkeep.count_pages, kCountPagesPerTurn));
    else if (feed.is_there() && upkeep.feed_pages > 0)
      feed.walk(take_of(upkeep.feed_pages, kSweepPagesPerTurn));
    else if (upkeep.pin_slots > 0)
      inspect.pin_watch.look(take_of(upkeep.pin_slots, kPinSlotsPerTurn));
    else
      return false;
  }
  return true;
}

// Returns true when there is more to do right away.
bool Pool::State::turn() {
  if (core.region.is_shared()) {
    hosts.others.watch();
    if (!hosts.slot.lost_because().empty()) return false;
  }
  hosts.slot.beat();
  if (inspect.audits.is_quiesced()) return inspect.audits.step_at_rest();
  eviction.queues.separate_tenants();
  inspect.heat.cool();
  inspect.limit_commands.step();
  memory.room.step();
  eviction.queues.begin_turn();
  const LineBudget budget(core.meter, kLinesPerTurn);
  bool has_more = false;
  for (uint32_t i = 0; i < kWorkCount; ++i) {
    if (i != 0 && budget.is_spent()) return true;  // at least one work, even if lines were read before it
    has_more |= do_work(turns.work_next, budget);
    turns.work_next = (turns.work_next + 1) % kWorkCount;
  }
  turns.work_next = 0;
  return has_more;
}

// Lines that requests have read since the last turn count for this turn.
void Pool::State::end_turn() {
  inspect.late.collect();
  core.totals.turn_lines_max = std::max(core.totals.turn_lines_max, core.meter.read() - turns.lines_before);
  turns.lines_before = core.meter.read();
  regions.show_frees();
}

bool Pool::turn(uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  state_->inspect.eviction_spans.begin_turn();
  const bool has_more = state_->feed.end_turn(state_->turn());
  state_->inspect.eviction_spans.end_turn(has_more);
  state_->end_turn();
  return has_more;
}

uint64_t Pool::turn_lines_max() const { return state_->core.totals.turn_lines_max; }

}  // namespace maru::daemon
