#include "libmaru/shm/recovery/reclaim.h"

#include "libmaru/shm/region/flush.h"

#include <algorithm>

namespace maru::shm {
namespace {

using namespace maru::format;

PageRef parent_of(const ControlRegion& region, uint32_t page) {
  const PageRef parent = PageRef::from_bits(region.block(page).parent.load_acquire());  // [pairs page.word]
  return region.is_page(parent) ? parent : PageRef::none();
}

class OneLane final : public DeadLanes {
 public:
  explicit OneLane(LaneId lane) : lane_(lane) {}
  bool is_dead(LaneId lane) const override { return lane == lane_; }

 private:
  LaneId lane_;
};

}  // namespace

void clear_pins(const ControlRegion& region, uint32_t lane) {
  const LaneView view = region.lane(lane);
  for (AtomicU64& slot : view.pins)
    if (slot.load_relaxed() != 0) slot.store_release(0);  // its writer is dead: [pairs pin.slot]
  for (AtomicU64& slot : view.pin_overflow)
    if (slot.load_relaxed() != 0) slot.store_release(0);  // its writer is dead
  view.header->pin_overflow.store_release(0);             // [pairs pin.overflow]
}

bool is_registered(const ControlRegion& region, uint32_t page) {
  const Candidates candidates = registry_find(region, block_digest(region, page));
  bool is_there = false;
  for (uint32_t i = 0; i < candidates.count; ++i) is_there |= candidates.ref(i).page() == page;
  return is_there;
}

uint32_t look_at_dead_pins(const ControlRegion& region, LaneId dead, uint32_t from, uint32_t to, ReclaimSink& sink) {
  const LaneView view = region.lane(dead.lane);
  const auto slots = uint32_t(view.pins.size());
  uint32_t looks = 0;
  for (uint32_t i = from; i < to; ++i) {
    const AtomicU64& slot = i < slots ? view.pins[i] : view.pin_overflow[i - slots];
    const PageRef ref = PageRef::from_bits(slot.load_relaxed());  // its writer is dead
    if (!region.is_page(ref)) continue;
    ++looks;
    const PageWord word{region.block(ref.page()).word.load_acquire()};  // [pairs page.word]
    if (!word.is(PageState::kReady, ref.generation())) continue;
    const auto publisher = uint32_t(region.detail(ref.page()).owner.load_relaxed());  // a hint
    if (LaneId::from_low(publisher) == dead && !is_registered(region, ref.page())) sink.unregistered(ref);
  }
  return looks;
}

void begin_reclaim(const ControlRegion& region, LaneId dead, ReclaimSink& sink) {
  const LaneView view = region.lane(dead.lane);
  look_at_dead_pins(region, dead, 0, uint32_t(view.pins.size() + view.pin_overflow.size()), sink);
  end_lane_pins(region, dead.lane, sink);
}

void end_lane_pins(const ControlRegion& region, uint32_t lane, ReclaimSink& sink) {
  clear_pins(region, lane);
  reclaim_intents(region, lane, sink);
}

void clear_lane(const ControlRegion& region, uint32_t lane) {
  const LaneView view = region.lane(lane);
  for (AtomicU64& touch : view.touches) touch.store_relaxed(0);  // the next client gets the lane with a message
  for (AtomicU64& intent : view.header->parent_intent) intent.store_relaxed(0);
  for (AtomicU64& counter : view.header->own_counters) counter.store_relaxed(0);
  for (AtomicU64& counter : view.header->counters) counter.store_relaxed(0);
  view.header->touch_count.store_relaxed(0);
  view.header->touches_read.store_relaxed(0);
  view.header->frees.store_relaxed(0);
  // Else a pin of the dead may come back after a loss, in a lane that is never taken back, since its identity says FREE.
  flush(region, view.header, region.layout().lane_bytes);
}

void free_dead_tails(const ControlRegion& region, const DeadLanes& dead, uint32_t from, uint32_t to,
                     ReclaimSink& sink) {
  for (uint32_t page = to; page-- > from;) {
    AtomicU64& word = region.block(page).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    if (!found.is(PageState::kTail) || found.low() > page - from) continue;
    const uint32_t head = page - found.low();
    const PageWord held{region.block(head).word.load_acquire()};  // [pairs page.word]
    const bool is_dead_head =
        (held.is(PageState::kReserved) || held.is(PageState::kSealed)) && dead.is_dead(held.lane());
    // As in free_tails: it can only be this head's tail, and only the caller frees it.
    if (!is_dead_head || found.low() >= region.run_pages(head)) continue;
    if (!word.cas_acq_rel(found.bits, PageWord::free(found.generation() + 1).bits)) continue;
    flush(region, word);
    sink.pages_freed(1);
  }
}

void reclaim_pages(LaneContext& daemon, const DeadLanes& dead, uint32_t from, uint32_t to, ReclaimSink& sink,
                   Tails tails) {
  const ControlRegion& region = *daemon.region;
  for (uint32_t page = from; page < to; ++page) {
    AtomicU64& word = region.block(page).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    if (found.is(PageState::kReady)) {
      // A publisher died between READY and its registry entry: the block has no pin and no entry, so no reader will find it.
      const LaneId publisher = LaneId::from_low(uint32_t(region.detail(page).owner.load_relaxed()));  // a hint
      if (!dead.is_dead(publisher)) continue;
      if (!is_registered(region, page)) sink.unregistered(PageRef::of(page, found.generation()));
      continue;
    }
    if (!found.names_lane() || !dead.is_dead(found.lane())) continue;
    const uint32_t generation = found.generation();
    const PageRef ref = PageRef::of(page, generation);
    if (found.is(PageState::kRetired)) {
      if (found.lane() == daemon.id || hand_over_retired(region, ref, found.lane(), daemon.id)) sink.retired_taken(ref);
      continue;
    }
    // A SEALED child may or may not have been counted by its parent: count again. It leaves first, or it would be counted.
    const PageRef parent = found.is(PageState::kSealed) ? parent_of(region, page) : PageRef::none();
    uint64_t tenant = 0;
    const uint64_t bytes = found.is(PageState::kSealed) ? tenant_bytes(region, page, &tenant) : 0;
    const uint32_t freed = tails == Tails::kToFree ? free_tails(region, page) : 0;
    if (!word.cas_acq_rel(found.bits, PageWord::free(generation + 1).bits)) continue;
    flush(region, word);  // or it might name a lane again that no client has by then
    sink.pages_freed(freed + 1);
    if (bytes != 0 && daemon.returns != nullptr) daemon.returns->returned(page, tenant, bytes);
    if (!parent.is_none()) sink.parent_suspect(parent);
  }
}

void reclaim_pages(LaneContext& daemon, LaneId dead, uint32_t from, uint32_t to, ReclaimSink& sink) {
  reclaim_pages(daemon, OneLane(dead), from, to, sink);
}

void reclaim_intents(const ControlRegion& region, uint32_t lane, ReclaimSink& sink) {
  for (AtomicU64& intent : region.lane(lane).header->parent_intent) {
    const PageRef parent = PageRef::from_bits(intent.load_acquire());  // [pairs lane.intent]
    if (region.is_page(parent)) sink.parent_suspect(parent);
    if (!parent.is_none()) intent.store_release(0);
  }
}

void recount_begin(const ControlRegion& region, std::span<Recount> recounts) {
  for (Recount& recount : recounts) {
    recount.flagged = 0;
    recount.children = 0;
    recount.postponed = false;
    AtomicU64& word = region.block(recount.parent.page()).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    for (uint32_t tries = 0; tries < limits::kPageWordRetries; ++tries) {
      // Only a count above zero can be too high.
      if (!found.is(PageState::kReady, recount.parent.generation()) || found.children() == 0) break;
      const uint64_t flagged = PageWord::ready(found.generation(), found.children(), true).bits;
      if (found.bits == flagged || word.cas_seq_cst(found.bits, flagged)) {
        recount.flagged = flagged;
        break;
      }
    }
  }
}

namespace {

// Each intent and each page asks for one, so this must not be a walk over all.
std::span<Recount>::iterator find_recount(std::span<Recount> recounts, uint64_t parent) {
  const auto found = std::lower_bound(recounts.begin(), recounts.end(), parent,
                                      [](const Recount& r, uint64_t bits) { return r.parent.bits < bits; });
  return found != recounts.end() && found->parent.bits == parent ? found : recounts.end();
}

}  // namespace

void recount_pages(const ControlRegion& region, std::span<Recount> recounts, const DeadLanes& dead, uint32_t from,
                   uint32_t to) {
  for (uint32_t page = from; page < to; ++page) {
    BlockLine& line = region.block(page);
    const PageWord found{line.word.load_acquire()};  // [pairs page.word]
    const bool counts = found.is(PageState::kSealed) || found.is(PageState::kReady) || found.is(PageState::kRetiring) ||
                        found.is(PageState::kRetired) || (found.is(PageState::kPoisoned) && !dead.is_let_go(page));
    if (!counts) continue;
    const uint64_t parent = line.parent.load_acquire();  // [pairs page.word]
    if (parent == 0) continue;
    const auto recount = find_recount(recounts, parent);
    if (recount == recounts.end()) continue;
    if (found.is(PageState::kSealed) && !dead.is_dead(found.lane())) recount->postponed = true;
    ++recount->children;
  }
}

size_t recount_commit(const ControlRegion& region, std::span<Recount> recounts, const LaneSet& live) {
  // After the pass: a child that it missed because it was free already belongs to an intent. The intent is either still here,
  // or its lowering has cleared the flag. [pairs lane.intent]
  const auto postpone = [&](uint32_t lane) {
    for (AtomicU64& intent : region.lane(lane).header->parent_intent) {
      const uint64_t parent = intent.load_seq_cst();
      if (const auto recount = find_recount(recounts, parent); recount != recounts.end()) recount->postponed = true;
    }
  };
  with_other_hosts(region, live).for_each(region.lanes(), postpone);
  size_t again = 0;
  for (Recount& recount : recounts) {
    if (recount.flagged == 0) {
      recount.postponed = false;
      continue;
    }
    uint64_t expected = recount.flagged;
    const uint64_t counted = PageWord::ready(recount.parent.generation(), recount.children).bits;
    if (!recount.postponed && !region.block(recount.parent.page()).word.cas_seq_cst(expected, counted) &&
        PageWord{expected}.is(PageState::kReady, recount.parent.generation()))
      recount.postponed = true;
    again += recount.postponed;
  }
  return again;
}

}  // namespace maru::shm
