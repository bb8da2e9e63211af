// Reclaim: what a client held that died or left. Its pins end at once; its pages are looked for slice by slice; then its
// regions, its overflow buckets, and the counts of parents that it may have left too high. Only then is the lane free.
//
// If marud dies here: the lane's identity says DEAD or its bit is set, and the next marud starts over.
#include "daemon/pool_state.h"
#include "libmaru/shm/host_reclaim.h"

#include <algorithm>

namespace maru::daemon {

// The totals lie in marud's own lane as well, for the marud after this one. Each counter is shown there before it ends in the
// client's lane, so that a marud that dies between the two has it counted twice, and never lost: a total that fell would look
// like one that began anew, and all of it like new.
void Pool::State::take_counters(uint32_t lane) {
  format::LaneHeader& header = *region.lane(lane).header;
  format::LaneHeader& own = *region.lane(lanes.first).header;
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) {
    totals.counters[i] += header.counter(i);  // the client's words: any value
    own.counters[i].store_relaxed(totals.counters[i]);
    header.own_counters[i].store_relaxed(0);  // its writer is gone
    header.counters[i].store_relaxed(0);      // as above
  }
}

// After proof that the client of this lane is gone, or after its goodbye.
void Pool::State::begin_reclaim(uint32_t lane) {
  take_last_touches(lane);
  LaneRecord& record = lanes.records[lane];
  record.phase = LaneRecord::Phase::kReclaiming;
  record.reclaimed_to = 0;
  show_lane(lane, format::LaneState::kDead);
  take_counters(lane);
  totals.lost_touches += record.lost();
  record.touches.restart();
  record.lost_before = 0;
  shm::begin_reclaim(region, lanes.id(lane), findings);
  ++totals.clients_reclaimed;
}

// Pages that a head costs to reclaim: in a durable pool the length that its line says is walked (tails_end), for each head.
uint64_t Pool::State::reclaim_cost(uint32_t page) const { return region.is_durable() ? region.run_pages(page) : 1; }

// The next `count` pages. Returns true when the lane is free again.
bool Pool::State::reclaim_lane(uint32_t lane, uint64_t count) {
  LaneRecord& record = lanes.records[lane];
  const uint64_t freed_before = findings.freed;
  const LaneId id = lanes.id(lane);
  for (uint64_t spent = 0; record.reclaimed_to < pages() && spent < count; ++record.reclaimed_to) {
    const auto page = uint32_t(record.reclaimed_to);
    const PageWord now = word(page);
    const bool is_its = now.names_lane() && now.lane() == id;
    spent += is_its ? reclaim_cost(page) : 1;
    if (is_its) shm::reclaim_pages(self, id, page, page + 1, findings);
  }
  own_frees += findings.freed - freed_before;
  if (record.reclaimed_to < pages()) return false;
  finish_lane(lane);
  return true;
}

void Pool::State::finish_lane(uint32_t lane) {
  take_findings();
  const LaneId id = lanes.id(lane);
  for (uint32_t index : regions_of(id)) settle_region(index);
  shm::release_overflow_of(region, id);
  shm::clear_pins(region, lane);
  shm::clear_lane(region, lane);
  tenants.fold(lane);
  searches.erase(lane);
  std::erase_if(pin_ages, [&](const auto& age) { return age.first >> 32 == lane; });
  LaneRecord& record = lanes.records[lane];
  record.phase = LaneRecord::Phase::kFree;
  record.is_adopted = false;
  record.who = {};
  record.pid_namespace = 0;
  record.touches.restart();
  record.lost_before = 0;
  show_lane(lane, format::LaneState::kFree);
  lanes.in_use.remove(lane);
  shm::set_lane_bit(region, lane, false);
}

// All that are being taken back, in one walk over the pages, while there are some of `count` left.
void Pool::State::finish_lanes(uint64_t count) {
  std::vector<uint32_t> ended;
  uint64_t next = pages();
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane) {
    if (lanes.records[lane].phase != LaneRecord::Phase::kReclaiming) continue;
    ended.push_back(lane);
    next = std::min(next, lanes.records[lane].reclaimed_to);
  }
  const uint64_t freed_before = findings.freed;
  for (uint64_t spent = 0; next < pages() && spent < count; ++next) {
    const auto page = uint32_t(next);
    const PageWord now = word(page);
    const LaneId holder = now.lane();
    const bool is_theirs = now.names_lane() && std::binary_search(ended.begin(), ended.end(), holder.lane) &&
                           holder == lanes.id(holder.lane);
    spent += is_theirs ? reclaim_cost(page) : 1;
    if (is_theirs) shm::reclaim_pages(self, holder, page, page + 1, findings);
  }
  own_frees += findings.freed - freed_before;
  for (const uint32_t lane : ended) {
    uint64_t& reclaimed_to = lanes.records[lane].reclaimed_to;
    reclaimed_to = std::max(reclaimed_to, next);
    if (reclaimed_to == pages()) finish_lane(lane);
  }
}

// -- what was found ---------------------------------------------------------------------------------------------------

void Pool::State::queue_retired(PageRef ref) {
  if (retired_known.has(ref.page())) return;
  retired_known.add(ref.page());
  retired_blocks.push_back({ref});
}

void Pool::State::take_findings() {
  for (PageRef ref : findings.taken) queue_retired(ref);
  findings.taken.clear();
  if (!findings.orphans.empty()) {
    std::vector<uint32_t> victims;
    for (PageRef ref : findings.orphans)
      if (word(ref.page()).is(PageState::kReady, ref.generation())) victims.push_back(ref.page());
    findings.orphans.clear();
    evict_pages(victims, EvictReason::kAdmin);
  }
  finish_retired(kRetiredLinesPerTurn);
}

void Pool::State::finish_all_retired() { finish_retired(kNever, 2 * pages()); }

// `lines`: of memory, to look for pins. `pages_left`: to walk for tails; clients wrote how long the runs are. Most are pinned
// where they were, which costs one line. Returns how many of the next `blocks` were not looked at.
size_t Pool::State::finish_retired(uint64_t lines, uint64_t pages_left, size_t blocks) {
  if (retired_blocks.empty()) return 0;
  const shm::LaneSet in_use = shm::with_other_hosts(region, lanes.in_use);
  const uint64_t cost = look_lines();
  size_t left = std::min(blocks, retired_blocks.size());
  for (; left > 0 && lines > 0 && pages_left > 0; --left) {
    if (retired_next >= retired_blocks.size()) retired_next = 0;
    HeldBlock& block = retired_blocks[retired_next];
    if (block.is_pinned_there()) {
      --lines;
      ++retired_next;
      continue;
    }
    lines -= std::min(lines, cost);
    const PageRef ref = block.ref;
    block.pin = shm::find_pin(region, in_use, ref.page());
    if (block.pin != nullptr) {
      ++retired_next;
      continue;
    }
    const PageRef parent = PageRef::from_bits(region.block(ref.page()).parent.load_relaxed());  // ours while RETIRED
    inherit_use(parent, tick_of(ref.page(), ref.generation()));
    const uint64_t walked = reclaim_cost(ref.page());
    uint32_t freed = 0;
    const shm::FinishStatus status = shm::finish_retired(self, ref, lanes.in_use, &freed);
    if (status == shm::FinishStatus::kPinned) {
      ++retired_next;
      continue;
    }
    pages_left -= std::min(pages_left, walked);
    retired_known.remove(ref.page());
    retired_blocks[retired_next] = retired_blocks.back();
    retired_blocks.pop_back();
    if (status != shm::FinishStatus::kFreed) continue;
    own_frees += freed;
    queue_remove(ref.page());
    child_left(parent, nullptr);
  }
  return left;
}

// Counts the children of suspect parents again, all suspects in one pass over the pages. Returns true when a pass is
// under way.
bool Pool::State::step_recounts(uint64_t count) {
  if (recounts.empty()) {
    if (findings.parents.empty() || rests(now_ms, recount_again_ms, kRecountPauseMs)) return false;
    std::sort(findings.parents.begin(), findings.parents.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    findings.parents.erase(std::unique(findings.parents.begin(), findings.parents.end()), findings.parents.end());
    for (PageRef parent : findings.parents) {
      if (!region.is_page(parent)) continue;
      if (owns_page(parent.page()))
        recounts.push_back({.parent = parent});
      else  // counted by the host whose region it is in, which reads this as a question
        shm::leave_touch(region.lane(lanes.first), parent.page(), tick(now_ms));
    }
    findings.parents.clear();
    if (recounts.empty()) return false;
    shm::recount_begin(region, recounts);
    recount_next = 0;
  }
  const uint64_t to = std::min(pages(), recount_next + count);
  shm::recount_pages(region, recounts, lanes, uint32_t(recount_next), uint32_t(to));
  recount_next = to;
  if (to < pages()) return true;
  shm::recount_commit(region, recounts, lanes.in_use);
  for (const shm::Recount& recount : recounts) {
    // What was postponed waits for a live client's next step: once more, later.
    if (recount.postponed) findings.parents.push_back(recount.parent);
    child_left(recount.parent, nullptr);  // with the use that its child's end has left it
  }
  recounts.clear();
  if (!findings.parents.empty()) recount_again_ms = now_ms + kRecountPauseMs;
  return false;
}

}  // namespace maru::daemon
