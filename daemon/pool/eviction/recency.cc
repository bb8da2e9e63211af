#include "daemon/pool/eviction/recency.h"

#include "libmaru/shm/blocks/pin.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// How old the clock of the last turn may be when a client's end is seen.
constexpr uint64_t kClockLagMs = 1000;

}  // namespace

// Reads at most `limit` touches of this lane's ring, and puts them behind the present `touches`. Returns how many were read.
size_t Recency::gather_lane(uint32_t lane, size_t limit) {
  ring_touches_.resize(core_.region.parameters().touch_entries);
  limit = std::min(limit, ring_touches_.size());
  touches_.reserve(touches_.size() + limit);  // before they are taken out of the ring
  const size_t read = lanes_.records[lane].touches.read(core_.region.lane(lane), core_.tick(core_.now_ms),
                                                        core_.pages(), ring_touches_.data(), limit);
  const std::span<const shm::Touch> found(ring_touches_.data(), read);
  feed_.touched(found);
  if (lanes_.is_own(lane)) {
    touches_.insert(touches_.end(), found.begin(), found.end());
    return read;
  }
  // A touch by another host's marud requests a recount of children; touches by its clients are counted as our own.
  const bool is_of_marud = lane % core_.region.lanes_per_host() == 0;
  for (const shm::Touch& touch : found) {
    if (!regions_.owns_page(touch.page)) continue;
    const PageWord now = core_.word(touch.page);
    if (!is_of_marud)
      touches_.push_back(touch);
    else if (now.is(PageState::kReady) && now.children() != 0)
      findings_.parent_suspect(PageRef::of(touch.page, now.generation()));
  }
  return read;
}

// At most `limit` touches of the rings that this round has not read. Returns true when it has read them all.
bool Recency::gather(size_t limit) {
  const shm::LaneSet others = shm::with_other_hosts(core_.region, {});
  touches_.clear();
  while (lanes_unread_ > 0 && limit > 0) {
    if (drain_next_ >= core_.region.lanes()) drain_next_ = 0;
    if (lanes_.is_live(drain_next_) || (!lanes_.is_own(drain_next_) && others.has(drain_next_))) {
      const size_t wanted = std::min<size_t>(limit, ring_left_), read = gather_lane(drain_next_, wanted);
      limit -= read;
      ring_left_ -= read;
      // More may be there. A client that writes as fast as marud reads is read once around its ring, no further.
      if (read == wanted && ring_left_ > 0) continue;
    }
    ++drain_next_;
    --lanes_unread_;
    ring_left_ = core_.region.parameters().touch_entries;
  }
  backlog_.add(touches_);
  return lanes_unread_ == 0;
}

// Reads the whole ring of a client that is gone: it ends with its lane. That is seen between turns, with the clock of the last
// turn, and the client's uses since then must not look older than they are.
void Recency::take_last_of(uint32_t lane) {
  touches_.clear();
  core_.now_ms += kClockLagMs;
  gather_lane(lane, core_.region.parameters().touch_entries);
  core_.now_ms -= kClockLagMs;
  backlog_.add(touches_);
  while (backlog_.size() > kTouchesKept) apply(kTouchesPerDrain);  // however many clients end in one round
}

// A step of a round: reads and applies at most `limit` touches. Returns true at its end. The touches are applied in the order
// of their ticks, from any ring and in any number of steps: as if all of them had been read at once.
bool Recency::drain(size_t limit) {
  if (touches_unapplied_ == 0) {
    if (lanes_unread_ == 0) {
      lanes_unread_ = core_.region.lanes();
      ring_left_ = core_.region.parameters().touch_entries;
      ++rounds_.begun;
    }
    if (!gather(std::min(limit == kNever ? limit : kTouchesReadAtOnce, kTouchesKept)) && backlog_.size() < kTouchesKept)
      return false;
    touches_unapplied_ = backlog_.size();
  }
  // Touches of clients that end meanwhile come in between and behind, and this step of the round ends all the same.
  const size_t n = std::min(limit, touches_unapplied_);
  apply(n);
  touches_unapplied_ -= n;
  if (touches_unapplied_ != 0) return false;
  // No other marud counts a touch that this marud has read as lost.
  for (uint32_t own = lanes_.first + 1; own < lanes_.end; ++own) {
    const uint64_t read = lanes_.records[own].touches.cursor();
    AtomicU64& shown = core_.region.lane_header(own).touches_read;
    if (lanes_.is_live(own) && shown.load_relaxed() != read) shown.store_relaxed(read);  // for the next marud
  }
  if (lanes_unread_ != 0) return false;
  ++rounds_.done;
  return true;
}

void Recency::drain_all() {
  for (const uint64_t round = rounds_.begun + 1; rounds_.done < round;) drain(kNever);
  queues_.place_late(kNever);
}

bool Recency::has_caught_up(uint64_t& round) {
  if (round == 0) {
    round = rounds_.begun + 1;
    if (rounds_.held_seen >= rounds_.wanted) rounds_.pass_wanted = round;  // no other work waits for a pass
    rounds_.wanted = round;
    if (rounds_.begun == rounds_.done) {
      drain(kTouchesPerDrain);
      if (rounds_.pass_wanted == round) held_.look(kHeldLinesAtOnce);
    }
  }
  return has_ended(round);
}

void Recency::apply(size_t limit) {
  backlog_.take(limit, touches_);
  std::vector<uint32_t> late;  // pages whose place is not at the front
  for (const shm::Touch& touch : touches_) {
    const PageWord found = core_.word(touch.page);
    if (found.is(PageState::kRetired) && found.lane() == lanes_.daemon)  // a client left it to us, for its pins
      retired_.add(PageRef::of(touch.page, found.generation()));
    if (found.is(PageState::kRetired) ||
        found.is(PageState::kFree)) {  // the last life is over, and its line is still there
      const PageRef parent = PageRef::from_bits(core_.region.block(touch.page).parent.load_acquire());  // checked below
      if (!core_.has_expired(touch.page))
        queues_.inherit_use(parent, touch.tick);  // a touch of an expired block was no use
      if (core_.region.is_page(parent) && core_.word(parent.page()).is(PageState::kReady, parent.generation()) &&
          core_.word(parent.page()).children() == 0 && !queues_.order.contains(parent.page()) &&
          regions_.owns_page(parent.page()))
        late.push_back(parent.page());
      continue;
    }
    if (!found.is(PageState::kReady) || !regions_.owns_page(touch.page)) continue;
    if (core_.has_expired(touch.page)) {  // a lookup missed it: that was no use
      if (met_expired.size() < kMetExpiredMax) met_expired.push_back(touch.page);
      continue;
    }
    RegionEntry& in = regions_[core_.region.region_of(touch.page)];
    in.heat += 1;
    in.used_tick = std::max(in.used_tick, touch.tick);
    const uint32_t generation = found.generation();
    const bool is_known = queues_.order.knows(touch.page, generation);
    if (is_known && queues_.order.last_use(touch.page) >= touch.tick) {  // rings are read one after the other
      if (!queues_.order.contains(touch.page) && !queues_.held.has(touch.page)) late.push_back(touch.page);
      continue;
    }
    if (!is_known) {
      if (queues_.order.contains(touch.page)) queues_.remove(touch.page);
      queues_.order.learn(touch.page, generation, touch.tick);
    } else if (!queues_.order.use(touch.page, touch.tick)) {
      queues_.mend(queues_.order.shelf_of(touch.page));
    }
    if (queues_.order.contains(touch.page) || queues_.held.has(touch.page)) continue;
    if (queues_.order.is_at_an_end(touch.page))
      queues_.insert(touch.page, generation);
    else
      late.push_back(touch.page);
  }
  queues_.add_missing(late, rounds_.begun);
}

}  // namespace maru::daemon
