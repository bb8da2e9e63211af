#include "daemon/pool/reclaim/reclaim.h"

#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/host_reclaim.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint32_t kPinSlotsPerLine = 8;
constexpr uint32_t kSlotsAtOnce = 128;         // of pins, between two looks at the budget
constexpr uint64_t kLinesOfADeadPin = 5;       // the block's lines, and its bucket's
constexpr uint64_t kBucketsAtOnce = 1u << 10;  // as kSlotsAtOnce

}  // namespace

void Reclaim::begin(uint32_t lane) {
  renting_.drop_search(lane);
  recency_.take_last_of(lane);
  LaneRecord& record = lanes_.records[lane];
  record.phase = LaneRecord::Phase::kReclaiming;
  record.pins_looked_to = 0;
  record.has_pins = true;
  record.reclaimed_to = record.overflow_next = 0;
  lanes_.show_lane(lane, format::LaneState::kDead);
  lanes_.take_counters(lane);
  core_.totals.lost_touches += record.lost();
  record.touches.restart();
  record.lost_before = 0;
  ++core_.totals.clients_reclaimed;
}

// Looks among the pins for blocks without an entry, and then ends the pins. Returns true when the pins have ended.
bool Reclaim::end_pins(uint32_t lane, const LineBudget& budget) {
  LaneRecord& record = lanes_.records[lane];
  const auto slots = uint32_t(core_.pin_slots());
  while (record.pins_looked_to < slots) {
    if (budget.is_spent()) return false;
    const uint32_t to = std::min(slots, record.pins_looked_to + kSlotsAtOnce);
    const uint32_t looks = shm::look_at_dead_pins(core_.region, lanes_.id(lane), record.pins_looked_to, to, findings_);
    core_.meter.add((to - record.pins_looked_to) / kPinSlotsPerLine + looks * kLinesOfADeadPin);
    record.pins_looked_to = to;
  }
  if (!record.has_pins) return true;
  shm::end_lane_pins(core_.region, lane, findings_);
  core_.meter.add(slots / kPinSlotsPerLine);
  record.has_pins = false;
  record.orphans_until = findings_.orphans.came();
  return true;
}

// The pins of all dead lanes end before their pages are read, since a pin keeps another client's block from going.
void Reclaim::end_pins_of_the_dead(const LineBudget& budget) {
  for (uint32_t lane = lanes_.first + 1; lane < lanes_.end; ++lane) {
    const LaneRecord& record = lanes_.records[lane];
    const bool has_pins = record.phase == LaneRecord::Phase::kReclaiming && record.has_pins;
    if (has_pins && !end_pins(lane, budget)) return;
  }
}

bool Reclaim::step(const LineBudget& budget) {
  end_pins_of_the_dead(budget);
  const auto is_ending = [](const LaneRecord& record) { return record.phase == LaneRecord::Phase::kReclaiming; };
  const auto first = std::ranges::find_if(lanes_.records, is_ending);
  if (first == lanes_.records.end()) return false;
  reclaim_lane(uint32_t(first - lanes_.records.begin()), budget.left());  // the others have their turns
  return std::any_of(first, lanes_.records.end(), is_ending);
}

bool Reclaim::reclaim_lane(uint32_t lane, uint64_t lines) {
  const LineBudget budget(core_.meter, lines);
  if (!end_pins(lane, budget)) return false;
  LaneRecord& record = lanes_.records[lane];
  const uint64_t freed_before = findings_.freed;
  const LaneId id = lanes_.id(lane);
  for (; record.reclaimed_to < core_.pages() && !budget.is_spent(); ++record.reclaimed_to) {
    const auto page = uint32_t(record.reclaimed_to);
    const PageWord now = core_.word(page);
    if (!now.names_lane() || now.lane() != id) continue;
    core_.meter.add(core_.reclaim_cost(page));
    shm::reclaim_pages(core_.self, id, page, page + 1, findings_);
  }
  regions_.own_frees += findings_.freed - freed_before;
  if (record.reclaimed_to < core_.pages() || !settle_lane(lane, budget)) return false;
  finish_lane(lane);
  return true;
}

// The rest of a lane whose pages were read: orphans, regions, overflow buckets, as far as the budget lasts, at least one step.
// Returns true at the end.
bool Reclaim::settle_lane(uint32_t lane, const LineBudget& budget) {
  LaneRecord& record = lanes_.records[lane];
  const LaneId id = lanes_.id(lane);
  take_findings(budget.left());
  if (findings_.orphans.taken() < record.orphans_until) return false;
  for (const uint32_t index : regions_.regions_of(id)) {
    grants_.settle_region(index);
    if (budget.is_spent()) return false;
  }
  while (record.overflow_next < core_.region.overflow_buckets()) {
    const uint64_t to = std::min(core_.region.overflow_buckets(), record.overflow_next + kBucketsAtOnce);
    shm::release_overflow_of(core_.region, id, record.overflow_next, to);
    core_.meter.add(to - record.overflow_next);
    record.overflow_next = to;
    if (budget.is_spent() && to < core_.region.overflow_buckets()) return false;
  }
  return true;
}

void Reclaim::finish_lane(uint32_t lane) {
  shm::clear_pins(core_.region, lane);
  shm::clear_lane(core_.region, lane);
  core_.meter.add(core_.region.layout().lane_bytes / sizeof(format::BlockLine));
  tenants_.fold(lane);
  pin_ages_.forget_lane(lane);
  LaneRecord& record = lanes_.records[lane];
  record.phase = LaneRecord::Phase::kFree;
  record.is_adopted = false;
  record.who = {};
  record.pid_namespace = 0;
  record.touches.restart();
  record.lost_before = 0;
  lanes_.show_lane(lane, format::LaneState::kFree);
  lanes_.in_use.remove(lane);
  shm::set_lane_bit(core_.region, lane, false);
}

void Reclaim::finish_lanes(uint64_t count) {
  const LineBudget unbounded(core_.meter, kNever), budget(core_.meter, count);
  std::vector<uint32_t> ended;
  uint64_t next = core_.pages();
  for (uint32_t lane = lanes_.first + 1; lane < lanes_.end; ++lane) {
    if (lanes_.records[lane].phase != LaneRecord::Phase::kReclaiming) continue;
    end_pins(lane, unbounded);
    ended.push_back(lane);
    next = std::min(next, lanes_.records[lane].reclaimed_to);
  }
  const uint64_t freed_before = findings_.freed;
  for (; next < core_.pages() && !budget.is_spent(); ++next) {
    const auto page = uint32_t(next);
    const PageWord now = core_.word(page);
    const LaneId holder = now.lane();
    const bool is_theirs = now.names_lane() && std::binary_search(ended.begin(), ended.end(), holder.lane) &&
                           holder == lanes_.id(holder.lane);
    if (!is_theirs) continue;
    core_.meter.add(core_.reclaim_cost(page));
    shm::reclaim_pages(core_.self, holder, page, page + 1, findings_);
  }
  regions_.own_frees += findings_.freed - freed_before;
  for (const uint32_t lane : ended) {
    uint64_t& reclaimed_to = lanes_.records[lane].reclaimed_to;
    reclaimed_to = std::max(reclaimed_to, next);
    if (reclaimed_to == core_.pages() && settle_lane(lane, budget)) finish_lane(lane);
  }
}

// -- the findings -----------------------------------------------------------------------------------------------------

void Reclaim::take_findings(uint64_t lines) {
  for (PageRef ref : findings_.taken) retired_.add(ref);
  findings_.taken.clear();
  const LineBudget budget(core_.meter, lines);
  evict_orphans(budget);
  retired_.finish(std::max<uint64_t>(1, budget.left()));
}

// Evicts blocks that no bucket names, as far as the budget lasts, one at least. The queue only says where to look: the page may
// hold another block by now. The pins of the dead among which orphans were found end first, since they keep their blocks.
void Reclaim::evict_orphans(const LineBudget& budget) {
  const auto has_dead_pins = [](const LaneRecord& record) {
    return record.phase == LaneRecord::Phase::kReclaiming && record.has_pins;
  };
  if (std::ranges::any_of(lanes_.records, has_dead_pins)) return;
  std::vector<uint32_t> victims;
  while (!findings_.orphans.empty()) {
    const uint64_t look = lanes_.look_lines();
    victims.clear();
    for (uint64_t lines = 0; !findings_.orphans.empty() && victims.size() < shm::kEvictBatchMax;) {
      const uint32_t page = findings_.orphans.take();
      const bool is_orphan = core_.word(page).is(PageState::kReady) && !shm::is_registered(core_.region, page);
      core_.meter.add(kLinesOfADeadPin);
      lines += kLinesOfADeadPin + (is_orphan ? evictor_.eviction_lines(page, look) : 0);
      if (is_orphan) victims.push_back(page);
      if (lines >= budget.left()) break;
    }
    evictor_.evict_pages(victims, EvictReason::kAdmin);
    if (budget.is_spent()) return;
  }
}

// -- counts of children -----------------------------------------------------------------------------------------------

}  // namespace maru::daemon
