// Reclaim: what a client held that died or left. Its pins end soon; its page words are read slice by slice; then its
// regions, its overflow buckets, and the counts of parents that it may have left too high. Only then is the lane free.
//
// A client can forge all that it leaves, and many clients can die at once. So every part has a budget of lines and goes on in
// the next turn. Pages to look at wait in queues that have each page once (Findings).
//
// If marud dies here: the lane's identity says DEAD or its bit is set, and the next marud starts over.
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/host_reclaim.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint32_t kSlotsPerLine = 8;
constexpr uint32_t kSlotsAtOnce = 128;         // of pins, between two looks at the budget
constexpr uint64_t kLinesOfADeadPin = 5;       // the block's lines, and its bucket's
constexpr uint64_t kBucketsAtOnce = 1u << 10;  // as kSlotsAtOnce

}  // namespace

// After proof that the client of this lane is gone, or after its goodbye.
void Pool::State::begin_reclaim(uint32_t lane) {
  renting.drop_search(lane);
  recency.take_last_of(lane);
  LaneRecord& record = lanes.records[lane];
  record.phase = LaneRecord::Phase::kReclaiming;
  record.pins_looked_to = 0;
  record.has_pins = true;
  record.reclaimed_to = record.overflow_next = 0;
  lanes.show_lane(lane, format::LaneState::kDead);
  lanes.take_counters(lane);
  core.totals.lost_touches += record.lost();
  record.touches.restart();
  record.lost_before = 0;
  ++core.totals.clients_reclaimed;
}

// Looks among the pins for blocks without an entry, and then ends the pins. Returns true when the pins have ended.
bool Pool::State::end_pins(uint32_t lane, const LineBudget& budget) {
  LaneRecord& record = lanes.records[lane];
  const auto slots = uint32_t(core.pin_slots());
  while (record.pins_looked_to < slots) {
    if (budget.is_spent()) return false;
    const uint32_t to = std::min(slots, record.pins_looked_to + kSlotsAtOnce);
    const uint32_t looks = shm::look_at_dead_pins(core.region, lanes.id(lane), record.pins_looked_to, to, findings);
    core.meter.add((to - record.pins_looked_to) / kSlotsPerLine + looks * kLinesOfADeadPin);
    record.pins_looked_to = to;
  }
  if (!record.has_pins) return true;
  shm::end_lane_pins(core.region, lane, findings);
  core.meter.add(slots / kSlotsPerLine);
  record.has_pins = false;
  record.orphans_until = findings.orphans.came();
  return true;
}

// The pins of all dead lanes end before their pages are read, since a pin keeps another client's block from going.
void Pool::State::end_pins_of_the_dead(const LineBudget& budget) {
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane) {
    const LaneRecord& record = lanes.records[lane];
    const bool has_pins = record.phase == LaneRecord::Phase::kReclaiming && record.has_pins;
    if (has_pins && !end_pins(lane, budget)) return;
  }
}

// A step of what dead clients held. Returns true when there is more to do right away.
bool Pool::State::step_reclaim(const LineBudget& budget) {
  end_pins_of_the_dead(budget);
  const auto is_ending = [](const LaneRecord& record) { return record.phase == LaneRecord::Phase::kReclaiming; };
  const auto first = std::ranges::find_if(lanes.records, is_ending);
  if (first == lanes.records.end()) return false;
  reclaim_lane(uint32_t(first - lanes.records.begin()), budget.left());  // the others have their turns
  return std::any_of(first, lanes.records.end(), is_ending);
}

// As far as so many lines last. Returns true when the lane is free again.
bool Pool::State::reclaim_lane(uint32_t lane, uint64_t lines) {
  const LineBudget budget(core.meter, lines);
  if (!end_pins(lane, budget)) return false;
  LaneRecord& record = lanes.records[lane];
  const uint64_t freed_before = findings.freed;
  const LaneId id = lanes.id(lane);
  for (; record.reclaimed_to < core.pages() && !budget.is_spent(); ++record.reclaimed_to) {
    const auto page = uint32_t(record.reclaimed_to);
    const PageWord now = core.word(page);
    if (!now.names_lane() || now.lane() != id) continue;
    core.meter.add(core.reclaim_cost(page));
    shm::reclaim_pages(core.self, id, page, page + 1, findings);
  }
  regions.own_frees += findings.freed - freed_before;
  if (record.reclaimed_to < core.pages() || !settle_lane(lane, budget)) return false;
  finish_lane(lane);
  return true;
}

// The rest of a lane whose pages were read: orphans, regions, overflow buckets, as far as the budget lasts, one step at least.
// Returns true at the end.
bool Pool::State::settle_lane(uint32_t lane, const LineBudget& budget) {
  LaneRecord& record = lanes.records[lane];
  const LaneId id = lanes.id(lane);
  take_findings(budget.left());
  if (findings.orphans.taken() < record.orphans_until) return false;
  for (const uint32_t index : regions.regions_of(id)) {
    grants.settle_region(index);
    if (budget.is_spent()) return false;
  }
  while (record.overflow_next < core.region.overflow_buckets()) {
    const uint64_t to = std::min(core.region.overflow_buckets(), record.overflow_next + kBucketsAtOnce);
    shm::release_overflow_of(core.region, id, record.overflow_next, to);
    core.meter.add(to - record.overflow_next);
    record.overflow_next = to;
    if (budget.is_spent() && to < core.region.overflow_buckets()) return false;
  }
  return true;
}

void Pool::State::finish_lane(uint32_t lane) {
  shm::clear_pins(core.region, lane);
  shm::clear_lane(core.region, lane);
  core.meter.add(core.region.layout().lane_bytes / sizeof(format::BlockLine));
  tenants.fold(lane);
  pin_ages.forget_lane(lane);
  LaneRecord& record = lanes.records[lane];
  record.phase = LaneRecord::Phase::kFree;
  record.is_adopted = false;
  record.who = {};
  record.pid_namespace = 0;
  record.touches.restart();
  record.lost_before = 0;
  lanes.show_lane(lane, format::LaneState::kFree);
  lanes.in_use.remove(lane);
  shm::set_lane_bit(core.region, lane, false);
}

// At the end of marud: all that are being taken back, in one walk over the pages, while there are some of `count` left.
void Pool::State::finish_lanes(uint64_t count) {
  const LineBudget unbounded(core.meter, kNever), budget(core.meter, count);
  std::vector<uint32_t> ended;
  uint64_t next = core.pages();
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane) {
    if (lanes.records[lane].phase != LaneRecord::Phase::kReclaiming) continue;
    end_pins(lane, unbounded);
    ended.push_back(lane);
    next = std::min(next, lanes.records[lane].reclaimed_to);
  }
  const uint64_t freed_before = findings.freed;
  for (; next < core.pages() && !budget.is_spent(); ++next) {
    const auto page = uint32_t(next);
    const PageWord now = core.word(page);
    const LaneId holder = now.lane();
    const bool is_theirs = now.names_lane() && std::binary_search(ended.begin(), ended.end(), holder.lane) &&
                           holder == lanes.id(holder.lane);
    if (!is_theirs) continue;
    core.meter.add(core.reclaim_cost(page));
    shm::reclaim_pages(core.self, holder, page, page + 1, findings);
  }
  regions.own_frees += findings.freed - freed_before;
  for (const uint32_t lane : ended) {
    uint64_t& reclaimed_to = lanes.records[lane].reclaimed_to;
    reclaimed_to = std::max(reclaimed_to, next);
    if (reclaimed_to == core.pages() && settle_lane(lane, budget)) finish_lane(lane);
  }
}

// -- what was found ---------------------------------------------------------------------------------------------------

void Pool::State::take_findings(uint64_t lines) {
  for (PageRef ref : findings.taken) retired.add(ref);
  findings.taken.clear();
  const LineBudget budget(core.meter, lines);
  evict_orphans(budget);
  retired.finish(std::max<uint64_t>(1, budget.left()));
}

// Evicts blocks that no bucket names, as far as the budget lasts, one at least. The queue only says where to look: the page may
// hold another block by now. The pins of the dead among which orphans were found end first, since they keep their blocks.
void Pool::State::evict_orphans(const LineBudget& budget) {
  const auto has_dead_pins = [](const LaneRecord& record) {
    return record.phase == LaneRecord::Phase::kReclaiming && record.has_pins;
  };
  if (std::ranges::any_of(lanes.records, has_dead_pins)) return;
  std::vector<uint32_t> victims;
  while (!findings.orphans.empty()) {
    const uint64_t look = lanes.look_lines();
    victims.clear();
    for (uint64_t lines = 0; !findings.orphans.empty() && victims.size() < shm::kEvictBatchMax;) {
      const uint32_t page = findings.orphans.take();
      const bool is_orphan = core.word(page).is(PageState::kReady) && !shm::is_registered(core.region, page);
      core.meter.add(kLinesOfADeadPin);
      lines += kLinesOfADeadPin + (is_orphan ? evictor.eviction_lines(page, look) : 0);
      if (is_orphan) victims.push_back(page);
      if (lines >= budget.left()) break;
    }
    evictor.evict_pages(victims, EvictReason::kAdmin);
    if (budget.is_spent()) return;
  }
}

// -- counts of children -----------------------------------------------------------------------------------------------

// Takes the next parents from the head of the queue, `most` for a pass and `a_step` of them now, and sets their flags. Returns
// true when the pass can begin.
bool Pool::State::begin_recounts(size_t most, size_t a_step) {
  const size_t before = recounts.size();
  for (size_t i = 0; i < a_step && recounts.size() < most && !findings.parents.empty(); ++i) {
    const uint32_t page = findings.parents.take();
    const PageWord found = core.word(page);
    if (!regions.owns_page(page))  // counted by the host whose region it is in, which reads this as a question
      shm::leave_touch(core.region.lane(lanes.first), page, core.tick(core.now_ms));
    else if (found.is(PageState::kReady) && found.children() != 0)
      recounts.push_back({.parent = PageRef::of(page, found.generation())});
  }
  const auto is_before = [](const shm::Recount& a, const shm::Recount& b) { return a.parent.bits < b.parent.bits; };
  const auto taken = recounts.begin() + ptrdiff_t(before);
  std::sort(taken, recounts.end(), is_before);
  shm::recount_begin(core.region, {taken, recounts.end()});
  core.meter.add(recounts.size() - before);
  std::inplace_merge(recounts.begin(), taken, recounts.end(), is_before);
  return recounts.size() >= most || findings.parents.empty();
}

// Puts the counts of the next `a_step` parents in. Returns true at the end.
bool Pool::State::commit_recounts(size_t a_step) {
  const size_t count = std::min(a_step, recounts.size() - recounts_settled);
  const std::span<shm::Recount> some = std::span(recounts).subspan(recounts_settled, count);
  shm::recount_commit(core.region, some, lanes.in_use);
  core.meter.add(count + core.region.lanes());
  for (const shm::Recount& recount : some) {
    if (!recount.postponed) continue;
    // It waits for a live client's next step: once more, later.
    findings.parents.add(recount.parent.page());
    recount_again_ms = core.now_ms + kRecountPauseMs;
  }
  recounts_settled += count;
  return recounts_settled == recounts.size();
}

// Counts the children of suspect parents again, so many parents in each pass over the pages. Then the parents without children
// get their places in the order. Until then they are out of the order, as if marud had read no use of them. A step at a time,
// or a whole pass at once. Returns true when there is more to do right away.
bool Pool::State::step_recounts(bool in_turns) {
  using Part = RecountPart;
  const LineBudget budget(core.meter, in_turns ? kLinesPerTurn : kNever),
      places(core.meter, in_turns ? kPlaceLinesPerTurn : kNever);
  const size_t a_step = in_turns ? kRecountsPerTurn : SIZE_MAX;
  if (recount_part == Part::kBegin) {
    if (recounts.empty() && (findings.parents.empty() || rests(core.now_ms, recount_again_ms, kRecountPauseMs)))
      return false;
    if (!begin_recounts(in_turns ? kRecountsAtOnce : SIZE_MAX, a_step)) return true;
    if (recounts.empty()) return false;
    recount_part = Part::kPages;
    recount_next = 0;
  }
  while (recount_part == Part::kPages) {
    if (budget.is_spent()) return true;
    const uint64_t to = std::min(core.pages(), recount_next + kLinkedPagesPerTurn);
    shm::recount_pages(core.region, recounts, lanes, uint32_t(recount_next), uint32_t(to));
    core.meter.add(2 * (to - recount_next));  // the words, and what they lead to
    recount_next = to;
    if (to == core.pages()) recount_part = Part::kCommit;
  }
  while (recount_part == Part::kCommit) {
    if (budget.is_spent()) return true;
    if (!commit_recounts(a_step)) continue;
    recount_part = Part::kPlaces;
    recounts_settled = 0;
  }
  while (recounts_settled < recounts.size()) {
    if (places.is_spent()) return true;
    queues.child_left(recounts[recounts_settled++].parent, nullptr);  // with the use that its child's end has left it
  }
  recounts.clear();
  recounts_settled = 0;
  recount_part = Part::kBegin;
  return !findings.parents.empty() && !rests(core.now_ms, recount_again_ms, kRecountPauseMs);
}

}  // namespace maru::daemon
