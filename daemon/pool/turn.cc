// A pool's part of a turn of marud's loop. The work is done in steps, each of which reads so many lines at most
// (pool/limits.h). The longer steps share one budget of lines. When it is spent the rest of them wait, and come first in the
// next turn.
#include "daemon/pool/state.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// Lines that the longer steps of a turn read together: as much as one of them alone may. Requests of every pool wait for the
// end of a turn, and the steps that are left have their turns later.
constexpr uint64_t kLinesPerTurn = 1u << 16;

// In the order in which they follow from each other.
enum Work : uint32_t {
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
  kWorkCount
};

}  // namespace

// Returns true when there is more of it to do right away.
bool Pool::State::do_work(uint32_t which) {
  switch (Work(which)) {
    case kReclaim: {
      end_pins_of_the_dead();
      const auto is_ending = [](const LaneRecord& record) { return record.phase == LaneRecord::Phase::kReclaiming; };
      const auto first = std::ranges::find_if(lanes.records, is_ending);
      if (first == lanes.records.end()) return false;
      reclaim_lane(uint32_t(first - lanes.records.begin()), kReclaimPagesPerTurn);  // the others have their turns
      return std::any_of(first, lanes.records.end(), is_ending);
    }
    case kHostReclaim: return step_host_reclaim(kReclaimPagesPerTurn);
    case kFindings: take_findings(); return !findings.orphans.empty();
    case kPoison: return step_poison();
    case kDeletions: return step_deletions();
    case kEvictions: return step_evictions();
    case kExpired: return step_expired();
    case kAudit: return step_audit();
    case kRestAudit: return step_rest_audit();
    case kRecounts: return step_recounts(kReclaimPagesPerTurn);
    case kTenants: return tenants.step_count(kReclaimPagesPerTurn, now_ms);
    case kWorkCount: break;
  }
  return false;
}

bool Pool::State::turn() {
  if (region.is_shared()) {
    watch_hosts();
    if (!hosts.lost_because.empty()) return false;
  }
  if (hosts.heartbeat)
    hosts.heartbeat->loop_turns();
  else
    region.host(hosts.self).heartbeat_ms.store_relaxed(now_ms);  // for readers that only look
  if (is_quiesced()) return step_rest_audit();
  separate_tenants();
  const LineBudget budget(meter, kLinesPerTurn);
  bool has_more = step_mending();
  has_more |= !drain_touches(kTouchesPerDrain);
  if (is_pass_due()) look_at_held(kHeldLinesAtOnce);
  has_more |= !has_ended(round_wanted);
  cool_regions();
  step_quotas();
  step_room();
  const uint32_t first = work_next;
  for (uint32_t i = 0; i < kWorkCount; ++i) {
    work_next = (first + i) % kWorkCount;
    if (i != 0 && budget.is_spent()) {  // one step at least: clients can make the steps before these long
      has_more = true;
      break;
    }
    has_more |= do_work(work_next);
    if (i + 1 == kWorkCount) work_next = 0;
  }
  // The clock may also be set back.
  if (now_ms < last_upkeep_ms || now_ms - last_upkeep_ms >= kUpkeepPauseMs) {
    last_upkeep_ms = now_ms;
    finish_retired(kRetiredLinesPerTurn);
    is_clearing = !cleared.empty();
    look_at_held(kHeldLinesOfUpkeep);
    sweep(kSweepPagesPerTurn);
    count_used(kCountPagesPerTurn);
    if (watch) step_watch();
  }
  if (is_clearing) is_clearing = step_cleared();
  has_more |= is_clearing;
  if (now_ms < last_pin_look_ms || now_ms - last_pin_look_ms >= kPinLookPauseMs) {
    last_pin_look_ms = now_ms;
    look_at_pins(kPinSlotsPerTurn);  // ages of pins are for people
  }
  if (is_draining) return step_drain() || has_more;
  has_more |= step_key_cells();
  return evict_to_low_watermark() || has_more;
}

// What requests have read since the last turn counts for this one.
void Pool::State::end_turn() {
  totals.turn_lines_max = std::max(totals.turn_lines_max, meter.read() - lines_before);
  lines_before = meter.read();
  show_frees();
}

bool Pool::turn(uint64_t now_ms) {
  state_->now_ms = now_ms;
  const bool has_more = state_->turn();
  state_->end_turn();
  return has_more;
}

uint64_t Pool::turn_lines_max() const { return state_->totals.turn_lines_max; }

}  // namespace maru::daemon
