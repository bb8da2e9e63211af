// Recency: touches from the rings of the lanes, the queues of the eviction order, and the sweep that keeps both honest. Rings
// carry times, never membership: a block whose touch was lost is found by the sweep, an entry whose block is gone is dropped
// by it.
#include "daemon/pool/state.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {
namespace {

// How old the clock of the last turn may be when a client's end is seen.
constexpr uint64_t kClockLagMs = 1000;

}  // namespace

// The last use of this life of a page, as far as it is known; never in the future.
uint64_t Pool::State::tick_of(uint32_t page, uint32_t generation) const {
  const uint64_t now = core.tick(core.now_ms);
  if (order.knows(page, generation)) return std::min(now, order.last_use(page));
  return std::min(now, core.tick(core.region.detail(page).stored_ms.load_relaxed()));  // a hint: any value does
}

// -- queues -----------------------------------------------------------------------------------------------------------

// A life of a page that the policy has not heard of yet. Its entry may still stand in a queue for an earlier life.
void Pool::State::know(uint32_t page, uint32_t generation) {
  if (order.knows(page, generation)) return;
  if (order.contains(page)) queue_remove(page);
  order.learn(page, generation, tick_of(page, generation));
}

void Pool::State::queue_insert(uint32_t page, uint32_t generation) {
  if (!regions.owns_page(page)) return;
  know(page, generation);
  if (shelves[order.shelf_of(page)].is_unordered) return;  // it finds its place with all others
  if (!order.insert(page)) mend_queues(order.shelf_of(page));
}

void Pool::State::queue_remove(uint32_t page) {
  if (!regions.owns_page(page)) return;
  if (!order.remove(page)) mend_queues(order.shelf_of(page));
}

// From the page words, the ticks and the policy's words alone; nothing of the old links is believed.
void Pool::State::rebuild_queues(uint32_t shelf) {
  if (regions[order.region_of_shelf(shelf)].is_foreign) return;
  shelves[shelf].is_unordered = false;
  if (order.is_unlearned(shelf)) relearn(shelf);
  ++core.totals.queues_rebuilt;
  std::vector<uint32_t> members;
  for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page) {
    const PageWord found = core.word(page);
    if (!found.is(PageState::kReady) || held.has(page)) continue;
    // A block with children was in a queue if it was touched; otherwise it comes when its last child leaves.
    const bool is_known = order.knows(page, found.generation());
    if (found.children() != 0 && !(is_known && order.contains(page))) continue;
    if (!is_known) order.learn(page, found.generation(), tick_of(page, found.generation()));
    members.push_back(page);
  }
  core.meter.add(order.shelf_pages() / 2 + members.size());  // the entries, and what each place is made of
  order.rebuild(shelf, members);
}

// Whether this turn has room for a shelf more.
bool Pool::State::may_rebuild() {
  if (mend_pages_left < order.shelf_pages()) return false;
  mend_pages_left -= order.shelf_pages();
  return true;
}

// Somebody scribbled over the links of this shelf. Whoever does that may do it again before each touch, so only so much is
// built anew in a turn. Until its turn comes the shelf has no queues and nothing on it is chosen; the ticks go on.
void Pool::State::mend_queues(uint32_t shelf) {
  ShelfEntry& entry = shelves[shelf];
  if (regions[order.region_of_shelf(shelf)].is_foreign || entry.is_unordered) return;
  if (may_rebuild()) return rebuild_queues(shelf);
  entry.is_unordered = true;
  order.forget(shelf);
  unordered_shelves.push_back(shelf);
}

// Uses that are older than others that were applied before, as of rings that were read earlier in the last round, have put
// many of this shelf's blocks out of its queues. Requests that wait for this round wait for their places, too.
void Pool::State::leave_for_later(uint32_t shelf, uint64_t round) {
  if (!std::exchange(shelves[shelf].is_late, true)) {
    late_shelves.push_back({shelf, round});
    return;
  }
  const auto is_it = [&](const LateShelf& late) { return late.index == shelf; };
  const auto late = std::ranges::find_if(late_shelves, is_it);
  late->round = std::min(late->round, round);
}

// On shelves of so many pages together.
void Pool::State::place_late(uint64_t pages_left) {
  for (; !late_shelves.empty() && pages_left >= order.shelf_pages(); pages_left -= order.shelf_pages()) {
    const uint32_t shelf = late_shelves.front().index;
    if (regions.owns_page(order.first_page(shelf))) rebuild_queues(shelf);  // not given away meanwhile
    shelves[shelf].is_late = false;
    late_shelves.pop_front();
  }
}

// Late shelves have every other step, so that nobody's scribbling takes that away. Returns true when shelves still wait.
bool Pool::State::step_mending() {
  mends_late = !mends_late;
  if (mends_late && !late_shelves.empty()) {
    place_late(std::max<uint64_t>(kMendedPagesPerTurn, order.shelf_pages()));
    return true;
  }
  if (is_reordering()) step_reorder();
  while (!unordered_shelves.empty()) {
    const uint32_t shelf = unordered_shelves.back();
    if (shelves[shelf].is_unordered) {
      if (!may_rebuild()) break;
      rebuild_queues(shelf);
    }
    unordered_shelves.pop_back();
  }
  return !unordered_shelves.empty() || !late_shelves.empty() || is_reordering();
}

// At most `limit` touches of this lane's ring, behind those that are in `touches`. Returns how many were read.
size_t Pool::State::gather_lane(uint32_t lane, size_t limit) {
  ring_touches.resize(core.region.parameters().touch_entries);
  limit = std::min(limit, ring_touches.size());
  touches.reserve(touches.size() + limit);  // before they are taken out of the ring
  const size_t read =
      lanes.records[lane].touches.read(core.region.lane(lane), core.tick(core.now_ms), core.pages(), ring_touches.data(), limit);
  const std::span<const shm::Touch> found(ring_touches.data(), read);
  if (feed) touched_for_feed(found);
  if (lanes.is_own(lane)) {
    touches.insert(touches.end(), found.begin(), found.end());
    return read;
  }
  // A touch by another host's marud requests a recount of children; touches by its clients are counted as our own.
  const bool is_of_marud = lane % core.region.lanes_per_host() == 0;
  for (const shm::Touch& touch : found) {
    if (!regions.owns_page(touch.page)) continue;
    const PageWord now = core.word(touch.page);
    if (!is_of_marud)
      touches.push_back(touch);
    else if (now.is(PageState::kReady) && now.children() != 0)
      findings.parent_suspect(PageRef::of(touch.page, now.generation()));
  }
  return read;
}

// At most `limit` touches of the rings that this round has not read. Returns true when it has read them all.
bool Pool::State::gather_touches(size_t limit) {
  const shm::LaneSet others = shm::with_other_hosts(core.region, {});
  touches.clear();
  while (lanes_unread > 0 && limit > 0) {
    if (drain_next >= core.region.lanes()) drain_next = 0;
    if (lanes.is_live(drain_next) || (!lanes.is_own(drain_next) && others.has(drain_next))) {
      const size_t wanted = std::min<size_t>(limit, ring_left), read = gather_lane(drain_next, wanted);
      limit -= read;
      ring_left -= read;
      // More may be there. A client that writes as fast as marud reads is read once around its ring, no further.
      if (read == wanted && ring_left > 0) continue;
    }
    ++drain_next;
    --lanes_unread;
    ring_left = core.region.parameters().touch_entries;
  }
  backlog.add(touches);
  return lanes_unread == 0;
}

// All of the ring of a client that is gone: it ends with its lane. That is seen between turns, with the clock of the last one,
// and what the client has used since then is not to look older than it is.
void Pool::State::take_last_touches(uint32_t lane) {
  touches.clear();
  core.now_ms += kClockLagMs;
  gather_lane(lane, core.region.parameters().touch_entries);
  core.now_ms -= kClockLagMs;
  backlog.add(touches);
  while (backlog.size() > kTouchesKept) apply_touches(kTouchesPerDrain);  // however many clients end in one round
}

// A step of a round: reads and applies at most `limit` touches. Returns true at its end. What was read is applied in the order
// of the ticks, whatever ring it comes from and in however many steps: as if all of it had been read at once.
bool Pool::State::drain_touches(size_t limit) {
  if (touches_unapplied == 0) {
    if (lanes_unread == 0) {
      lanes_unread = core.region.lanes();
      ring_left = core.region.parameters().touch_entries;
      ++rounds_begun;
    }
    if (!gather_touches(std::min(limit == kNever ? limit : kTouchesReadAtOnce, kTouchesKept)) &&
        backlog.size() < kTouchesKept)
      return false;
    touches_unapplied = backlog.size();
  }
  // Those of clients that end meanwhile come in between and behind, and this step of the round ends all the same.
  const size_t n = std::min(limit, touches_unapplied);
  apply_touches(n);
  touches_unapplied -= n;
  if (touches_unapplied != 0) return false;
  // What this marud has read no other one counts as lost.
  for (uint32_t own = lanes.first + 1; own < lanes.end; ++own) {
    const uint64_t read = lanes.records[own].touches.cursor();
    AtomicU64& shown = core.region.lane_header(own).touches_read;
    if (lanes.is_live(own) && shown.load_relaxed() != read) shown.store_relaxed(read);  // for the marud after this one
  }
  if (lanes_unread != 0) return false;
  ++rounds_done;
  return true;
}

// All that is there, in one go. Each ring has as many touches as it has places at most, so this ends whatever clients do.
void Pool::State::drain_all_touches() {
  for (const uint64_t round = rounds_begun + 1; rounds_done < round;) drain_touches(kNever);
  place_late(kNever);
}

// Whether every touch was applied, and every held block looked at, that was there when this was first asked, with `round` 0; it
// is for the next time. Asks for one step of either at most, and turns go on.
bool Pool::State::has_caught_up(uint64_t& round) {
  if (round == 0) {
    round = rounds_begun + 1;
    if (held_seen >= round_wanted) pass_wanted = round;  // nobody else waits for one
    round_wanted = round;
    if (rounds_begun == rounds_done) {
      drain_touches(kTouchesPerDrain);
      if (pass_wanted == round) look_at_held(kHeldLinesAtOnce);
    }
  }
  return has_ended(round);
}

void Pool::State::apply_touches(size_t limit) {
  backlog.take(limit, touches);
  std::vector<uint32_t> late;  // pages whose place is not at the front
  for (const shm::Touch& touch : touches) {
    const PageWord found = core.word(touch.page);
    if (found.is(PageState::kRetired) && found.lane() == lanes.daemon)  // a client left it to us, for its pins
      queue_retired(PageRef::of(touch.page, found.generation()));
    if (found.is(PageState::kRetired) ||
        found.is(PageState::kFree)) {  // the last life is over, and its line still there
      const PageRef parent = PageRef::from_bits(core.region.block(touch.page).parent.load_acquire());  // checked below
      if (!has_expired(touch.page)) inherit_use(parent, touch.tick);  // a touch of what has expired was no use
      if (core.region.is_page(parent) && core.word(parent.page()).is(PageState::kReady, parent.generation()) &&
          core.word(parent.page()).children() == 0 && !order.contains(parent.page()) && regions.owns_page(parent.page()))
        late.push_back(parent.page());
      continue;
    }
    if (!found.is(PageState::kReady) || !regions.owns_page(touch.page)) continue;
    if (has_expired(touch.page)) {  // a lookup missed it: that was no use
      if (met_expired.size() < kMetExpiredMax) met_expired.push_back(touch.page);
      continue;
    }
    RegionEntry& in = regions[core.region.region_of(touch.page)];
    in.heat += 1;
    in.used_tick = std::max(in.used_tick, touch.tick);
    const uint32_t generation = found.generation();
    const bool is_known = order.knows(touch.page, generation);
    if (is_known && order.last_use(touch.page) >= touch.tick) {  // rings are read one after the other
      if (!order.contains(touch.page) && !held.has(touch.page)) late.push_back(touch.page);
      continue;
    }
    if (!is_known) {
      if (order.contains(touch.page)) queue_remove(touch.page);
      order.learn(touch.page, generation, touch.tick);
    } else if (!order.use(touch.page, touch.tick)) {
      mend_queues(order.shelf_of(touch.page));
    }
    if (order.contains(touch.page) || held.has(touch.page)) continue;
    if (order.is_at_an_end(touch.page))
      queue_insert(touch.page, generation);
    else
      late.push_back(touch.page);
  }
  add_missing(late, rounds_begun);
}

// Blocks that belong into a queue and are in none. A shelf that misses many blocks, or whose places are dear to find, is
// sorted anew. If this turn has no room for that the shelf waits for the next turns, and a request that waits for `round`
// waits for it.
void Pool::State::add_missing(std::vector<uint32_t>& missing, uint64_t round) {
  const LineBudget places(core.meter, kPlaceLinesPerTurn);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  for (size_t start = 0; start < missing.size();) {
    const uint32_t shelf = order.shelf_of(missing[start]);
    size_t end = start;
    while (end < missing.size() && order.shelf_of(missing[end]) == shelf) ++end;
    if (end - start > kSingleInsertsMax || places.is_spent()) {
      if (may_rebuild())
        rebuild_queues(shelf);
      else
        leave_for_later(shelf, round);
    } else {
      for (size_t i = start; i < end; ++i) {
        const PageWord found = core.word(missing[i]);
        if (!found.is(PageState::kReady) || held.has(missing[i])) continue;
        queue_insert(missing[i], found.generation());
      }
    }
    start = end;
  }
}

// A child of this block goes, or a use of one that is gone was read: the later of the two uses is the block's. Before the child
// is FREE, so that a death in between leaves no parent that is childless and colder than its child was.
void Pool::State::inherit_use(PageRef parent, uint64_t child_tick) {
  if (!core.region.is_page(parent)) return;
  const uint32_t page = parent.page(), generation = parent.generation();
  if (!core.word(page).is(PageState::kReady, generation) || !regions.owns_page(page)) return;
  know(page, generation);
  if (!order.inherit(page, std::min(child_tick, core.tick(core.now_ms)))) mend_queues(order.shelf_of(page));
}

// A child of this block is gone for good: without children left it may go too.
void Pool::State::child_left(PageRef parent, EvictionOrder::Coldest* coldest) {
  if (!core.region.is_page(parent)) return;
  const uint32_t page = parent.page(), generation = parent.generation();
  const PageWord found = core.word(page);
  if (!found.is(PageState::kReady, generation) || !regions.owns_page(page) || held.has(page)) return;
  if (found.children() != 0) return;
  queue_insert(page, generation);
  if (coldest) coldest->push(page);
}

// -- pinned blocks ----------------------------------------------------------------------------------------------------

void Pool::State::hold(PageRef ref) {
  if (held.has(ref.page())) return;
  queue_remove(ref.page());
  held.add(ref.page());
  core.meter.add(lanes.look_lines());
  held_blocks.push_back({ref, shm::find_pin(core.region, shm::with_other_hosts(core.region, lanes.in_use), ref.page())});
}

// Whether somebody waits for a pass that begins now, or began since.
bool Pool::State::is_pass_due() const { return held_seen < round_wanted && pass_wanted <= rounds_begun; }

// Blocks whose pins ended return to their queues, to their old places. Most are pinned where they were, which costs one line.
// Goes on with the pass that is under way as far as these lines last, to its end at most, or begins one. It walks down, so that
// whoever takes the place of a block that returns was looked at in this pass, or was not held when it began.
void Pool::State::look_at_held(uint64_t lines) {
  if (is_pass_due() && held_round < pass_wanted) held_left = 0;  // nobody waits for the one that is under way
  if (held_left == 0) {
    held_left = held_blocks.size();
    held_round = rounds_begun;
  }
  const shm::LaneSet in_use = shm::with_other_hosts(core.region, lanes.in_use);
  const uint64_t cost = held_left == 0 ? 0 : lanes.look_lines();
  std::vector<uint32_t> back;
  while (held_left > 0 && lines > 0) {
    HeldBlock& block = held_blocks[--held_left];
    core.meter.add(1);
    if (block.is_pinned_there()) {
      --lines;
      continue;
    }
    lines -= std::min(lines, cost);
    core.meter.add(cost);
    const PageRef ref = block.ref;
    const bool is_there = core.word(ref.page()).is(PageState::kReady, ref.generation());
    block.pin = is_there ? shm::find_pin(core.region, in_use, ref.page()) : nullptr;
    if (block.pin != nullptr) continue;
    held.remove(ref.page());
    block = held_blocks.back();
    held_blocks.pop_back();
    if (regions.owns_page(ref.page()) && core.word(ref.page()).is(PageState::kReady))
      back.push_back(ref.page());  // or the block that has its page now
  }
  take_back(back, held_round);
  if (held_left > 0) return;
  held_seen = held_round;
  pass_wanted = std::max(pass_wanted, held_seen + 1);
}

// In one go, also if somebody waits for the pass that is under way.
void Pool::State::look_at_all_held() {
  held_left = 0;
  look_at_held(kNever);
  place_late(kNever);
}

// The coldest come last, so that each of those that are colder than all others finds its place at once.
void Pool::State::take_back(const std::vector<uint32_t>& blocks, uint64_t round) {
  // Each tick is read once: they are shared memory, and may change while they are sorted.
  std::vector<std::pair<uint64_t, uint32_t>> sorted;
  sorted.reserve(blocks.size());
  for (const uint32_t page : blocks) sorted.emplace_back(order.last_use(page), page);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<uint32_t> others;
  for (const auto& [tick, page] : sorted) {
    const PageWord found = core.word(page);
    if (!found.is(PageState::kReady)) continue;
    know(page, found.generation());
    if (order.is_at_an_end(page))
      queue_insert(page, found.generation());
    else
      others.push_back(page);
  }
  add_missing(others, round);
}

// -- sweep ------------------------------------------------------------------------------------------------------------

void Pool::State::sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired) {
  PageWord found = core.word(page);
  switch (found.state()) {
    case PageState::kOut:
    case PageState::kFree: ++sweep_free; break;
    case PageState::kPoisoned:
      if (core.region.is_shared() && !regions[core.region.region_of(page)].is_foreign) know_poison(page);
      break;
    default: ++sweep_used;
  }
  const bool may_be_at_work = core.region.is_shared() && found.lane().lane != lanes.first;  // another host's marud
  if (found.is(PageState::kRetiring) && may_be_at_work) return;
  if (found.is(PageState::kRetiring)) {  // of a marud before: this one is not evicting now
    core.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
    return;
  }
  const uint32_t generation = found.generation();
  if (!found.is(PageState::kReady)) {
    if (order.contains(page)) queue_remove(page);
    if (found.is(PageState::kRetired) && found.lane() == lanes.daemon) queue_retired(PageRef::of(page, generation));
    // Left by somebody who is gone, after its reclaim: handed over to an older marud, say.
    const LaneId holder = found.lane();
    const bool is_being_reclaimed =
        holder.lane < lanes.records.size() && lanes.records[holder.lane].phase == LaneRecord::Phase::kReclaiming;
    if (found.names_lane() && lanes.is_dead(holder) && !is_being_reclaimed) {
      sweep_walked += core.reclaim_cost(page);
      core.meter.add(core.reclaim_cost(page));
      shm::reclaim_pages(core.self, lanes, page, page + 1, findings);
    }
    return;
  }
  if (!regions.owns_page(page)) return;
  if (is_expired(page, found)) expired.push_back(page);
  if (held.has(page)) return;
  if (order.contains(page) && !order.knows(page, generation)) queue_remove(page);
  if (found.children() == 0 && !order.contains(page)) missing.push_back(page);
}

// The next `count` pages, region by region; fewer where what somebody wrote makes them costly. Returns how many.
uint64_t Pool::State::sweep(uint64_t count) {
  std::vector<uint32_t> missing, expired;
  sweep_walked = 0;
  uint64_t swept = 0;
  for (; swept < std::min(count, core.pages()) && sweep_walked <= 2 * count; ++swept) {
    if (sweep_next >= core.pages()) sweep_next = 0;
    const auto page = uint32_t(sweep_next++);
    sweep_page(page, missing, expired);
    if (sweep_next % core.region.region_pages() != 0) continue;
    const uint32_t index = core.region.region_of(page);
    RegionEntry& entry = regions[index];
    if (sweep_free > 0) entry.no_run_since = kNever;  // not everybody who frees counts it
    entry.free_pages = sweep_free;
    entry.used_pages = sweep_used;
    sweep_free = sweep_used = 0;
    const bool settles = (entry.state == RegionState::kOrphaned && entry.used_pages == 0) ||
                         (entry.state == RegionState::kUnused && entry.used_pages > 0 && !core.region.is_shared());
    if (settles) settle_region(index);
  }
  add_missing(missing, rounds_begun);
  evict_expired(std::move(expired), kSweepPagesPerTurn);
  return swept;
}

void Pool::State::sweep_shelf(uint32_t shelf) {
  std::vector<uint32_t> missing, expired;
  const uint32_t free_before = sweep_free, used_before = sweep_used;  // of the region that the slow sweep is in
  for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page)
    sweep_page(page, missing, expired);
  sweep_free = free_before;
  sweep_used = used_before;
  add_missing(missing, rounds_begun);
  evict_expired(std::move(expired), 0);  // not within the request that is served, which may sweep many shelves
  shelves[shelf].swept_at_lost = lanes.lost_touches();
}

}  // namespace maru::daemon
