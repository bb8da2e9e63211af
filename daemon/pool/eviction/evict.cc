// Eviction: the childless blocks that nobody pins, from a set of regions, in the order of the pool's policy.
//
// Each shelf has queues with their coldest blocks at one end; EvictionOrder::Coldest merges the cold ends of many. The order
// is exact over the blocks that may go: a parent may go once its last child has, with the later of their two ticks, so a batch
// ends before a block that is warmer than a parent which this very batch sets free. What cannot go leaves its queue: a block
// with children comes back when its last child leaves, a pinned one when its pin was seen to end.
//
// Cost: for each page about a microsecond for eight lanes: one CAS to mark it, one line of each lane, one CAS to retire it,
// its registry entry, one CAS to free it, one to reserve it for the asker.
#include "libmaru/shm/recovery/evict.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/region/page_run.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace maru::daemon {

void Pool::State::report_evicted(PageRef ref, Shortage& shortage) {
  ++shortage.blocks_evicted;
  ++core.totals.evicted_blocks[size_t(shortage.reason)];
  if (feed) feed->removed(ref, follow_reason(shortage.reason));
  if (shortage.result == nullptr || !shm::read_key(core.region, ref, &core.key)) return;
  const size_t padded = (core.key.size + 7) / 8 * 8;
  const size_t bytes = sizeof(wire::EvictedKey) + padded;
  if (bytes > shortage.key_bytes_left) return;
  shortage.key_bytes_left -= bytes;
  const wire::EvictedKey record = {core.key.size, core.key.kind, core.key.tenant};
  std::vector<std::byte>& out = shortage.result->evicted_keys;
  const size_t start = out.size();
  out.resize(start + bytes);
  std::memcpy(out.data() + start, &record, sizeof(record));
  std::memcpy(out.data() + start + sizeof(record), core.key.data, core.key.size);
  ++shortage.result->evicted;
}

// A run of the length that is asked for becomes the asker's, if all of it is FREE.
bool Pool::State::take_for_asker(uint32_t first, Shortage& shortage, uint32_t* ret_blocker) {
  const auto run_pages = uint32_t(shortage.run_pages);
  if (shm::grant_run(core.region, core.self.id, shortage.asker, first, run_pages, shortage.mark, ret_blocker).is_none())
    return false;
  shortage.result->runs.push_back({first, run_pages});
  --shortage.runs;
  --shortage.items_left;
  return true;
}

// Pages that were freed just now go to the asker, if nobody else has taken them in between.
void Pool::State::take_freed(uint32_t first, uint32_t count, Shortage& shortage) {
  core.totals.evicted_pages += count;
  const uint32_t index = core.region.region_of(first);
  regions.set_counted(index, regions[index].counted_pages - std::min(regions[index].counted_pages, count));
  shortage.pages_evicted += count;
  if (!shortage.takes()) {
    regions.own_frees += count;
    shortage.runs -= std::min<uint64_t>(shortage.runs, count);
    return;
  }
  if (shortage.run_pages != 1 && shortage.run_pages != count) {
    regions.own_frees += count;
    return;
  }
  const auto run_pages = uint32_t(shortage.run_pages);
  for (uint32_t i = 0; i < count; i += run_pages) {
    if (!shortage.is_open()) {
      regions.own_frees += count - i;
      return;
    }
    take_for_asker(first + i, shortage, nullptr);
  }
}

// `ref` is RETIRED by lane 0 and its pins were looked for.
void Pool::State::finish_evicted(PageRef ref, uint64_t at_tick, Shortage& shortage, EvictionOrder::Coldest* coldest) {
  report_evicted(ref, shortage);
  if (shortage.reason != EvictReason::kExpired && shortage.reason != EvictReason::kAdmin) order.was_evicted(ref.page());
  const PageRef parent = PageRef::from_bits(core.region.block(ref.page()).parent.load_relaxed());  // RETIRED: ours alone
  if (core.region.is_page(parent) && regions.owns_page(parent.page()) && order.knows(parent.page(), parent.generation()) &&
      !order.child_left(parent.page(), ref.page()))
    mend_queues(order.shelf_of(parent.page()));
  inherit_use(parent, at_tick);
  const uint32_t run_pages = core.region.run_pages(ref.page());
  core.meter.add(eviction_lines(ref.page(), 0));
  uint32_t freed = 0;
  if (shm::free_retired(core.self, ref, &freed) != shm::FinishStatus::kFreed) return;
  take_freed(ref.page(), std::min(run_pages, freed), shortage);
  child_left(parent, coldest);
}

namespace {

// Children of one parent that a batch is about to take away.
struct ParentCount {
  PageRef parent;
  uint32_t children;
};

// Bytes of one tenant that a batch is about to take away.
struct TenantBytes {
  uint32_t tenant;
  uint64_t bytes;
};

// Lines that the eviction of a block reads beside the look for its pins, if nobody scribbles.
constexpr uint64_t kLinesOfAChoice = 64;

struct Victim {
  uint32_t page;
  uint32_t generation;
  uint64_t tick;
};

}  // namespace

// Returns false if it stopped at a block of another size than the runs that are wanted.
bool Pool::State::evict_coldest(std::span<const uint32_t> in, Shortage& shortage) {
  order.set_pool({core.tick(core.now_ms), core.pages(), core.region.region_pages(), core.region.page_bytes()});
  EvictionOrder::Coldest coldest(order, in, &shortage.lines_left);
  // Every step takes a page out of a queue. Pages come back only below a child that went, so twice the pages is enough
  // unless somebody scribbles.
  uint64_t steps_left = 2 * uint64_t(in.size()) * core.region.region_pages() + 1024;
  uint32_t rebuilds_left = 8;
  bool size_differs = false;
  std::vector<Victim> victims;
  std::vector<uint32_t> victim_pages;
  std::vector<ParentCount> parents;
  std::vector<TenantBytes> chosen;
  PageRef retired[shm::kEvictBatchMax];

  while (shortage.is_open() && !size_differs && steps_left > 0) {
    victims.clear();
    parents.clear();
    chosen.clear();
    uint64_t runs_expected = 0;
    const uint64_t cost = lanes.look_lines();
    std::optional<EvictionOrder::Key> horizon;
    uint32_t page = 0;
    EvictionOrder::Key coldest_key;
    while (victims.size() < shm::kEvictBatchMax && steps_left > 0 && shortage.lines_left > 0 &&
           runs_expected < shortage.runs_left() && coldest.peek(&page, &coldest_key)) {
      if (horizon && coldest_key > *horizon) break;
      --steps_left;
      shortage.spend(cost);
      PageWord found = core.word(page);
      if (found.is(PageState::kRetiring)) {  // of a marud before: nobody else marks blocks so
        core.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
        found = core.word(page);
      }
      const uint32_t generation = found.generation();
      const bool may_go = found.is(PageState::kReady) && found.children() == 0 && !found.recount();
      const bool is_stale = !found.is(PageState::kReady) || !order.knows(page, generation);
      const uint32_t run_pages = may_go ? core.region.run_pages(page) : 1;
      if (may_go && !is_stale && shortage.run_pages > 1 && run_pages != shortage.run_pages) {
        size_differs = true;
        break;
      }
      if (queues_by_tenant && may_go && !is_stale) {
        // What is chosen counts as used until it is free, so a tenant that this batch brings down to its limit ends it.
        const uint32_t index = tenant(page);
        auto taken =
            std::find_if(chosen.begin(), chosen.end(), [&](const TenantBytes& t) { return t.tenant == index; });
        if (taken == chosen.end()) taken = chosen.insert(chosen.end(), {index, 0});
        const TenantTable::Row& row = tenants.table().row(index);
        if (taken->bytes != 0 && row.is_over() &&
            row.used_bytes - std::min(row.used_bytes, taken->bytes) <= row.limit_bytes())
          break;
        taken->bytes += run_pages * core.region.page_bytes();
      }
      const uint64_t at_tick = order.last_use(page);
      if (!order.remove(page)) {
        if (rebuilds_left-- == 0) {
          steps_left = 0;
          break;
        }
        mend_queues(order.shelf_of(page));
        coldest.push_shelf(order.shelf_of(page));
        continue;
      }
      if (is_stale) {
        if (!found.is(PageState::kReady)) continue;
        queue_insert(page, generation);
        coldest.push(page);
        continue;
      }
      if (found.recount()) hold(PageRef::of(page, generation));  // comes back when the recount is through
      if (!may_go) continue;

      shortage.spend(eviction_lines(page, 0));
      victims.push_back({page, generation, at_tick});
      runs_expected += shortage.run_pages == 1 ? run_pages : 1;
      const PageRef parent = PageRef::from_bits(core.region.block(page).parent.load_acquire());  // a hint
      if (!core.region.is_page(parent)) continue;
      const PageWord parent_word = core.word(parent.page());
      if (!parent_word.is(PageState::kReady, parent.generation())) continue;
      auto counted =
          std::find_if(parents.begin(), parents.end(), [&](const ParentCount& p) { return p.parent == parent; });
      if (counted == parents.end()) counted = parents.insert(parents.end(), {parent, 0});
      if (++counted->children != parent_word.children()) continue;
      know(parent.page(), parent.generation());
      const EvictionOrder::Key then = order.key(parent.page(), std::max(at_tick, order.last_use(parent.page())));
      horizon = horizon ? std::min(*horizon, then) : then;
    }
    if (victims.empty()) break;

    victim_pages.clear();
    for (const Victim& victim : victims) victim_pages.push_back(victim.page);
    core.meter.add(victims.size() * cost);
    const size_t count =
        shm::retire_unpinned(core.self, lanes.in_use, victim_pages.data(), victim_pages.size(), &core.attempt, retired);
    const uint64_t before = core.meter.read();
    size_t next = 0;
    for (const Victim& victim : victims) {
      const PageRef ref = PageRef::of(victim.page, victim.generation);
      if (next < count && retired[next].page() == victim.page) {
        finish_evicted(retired[next++], victim.tick, shortage, &coldest);
      } else if (const PageWord found = core.word(victim.page); found.is(PageState::kReady, victim.generation)) {
        if (found.children() != 0) continue;  // back when the last one leaves
        shortage.spend(cost);                 // a look more, for where it is pinned
        hold(ref);
      }
    }
    const uint64_t read = core.meter.read() - before, expected = victims.size() * kLinesOfAChoice;
    shortage.spend(read - std::min(read, expected));  // by searches for the places of parents
  }
  for (const uint32_t index : in)
    for_shelves(index, [&](uint32_t shelf) {
      if (order.is_damaged(shelf)) mend_queues(shelf);  // for the next request
    });
  return !size_differs;
}

void Pool::State::evict(std::span<const uint32_t> in, Shortage& shortage, uint32_t rounds_max) {
  if (!policy->evicts() || shortage.lines_left == 0) return;
  // Queues that may miss blocks, because touches were lost, are compared with the page words first.
  const uint64_t lost = lanes.lost_touches();
  bool has_swept = false;
  for (uint32_t index : in)
    for_shelves(index, [&](uint32_t shelf) {
      if (shelves[shelf].swept_at_lost == lost || shortage.scan_pages_left < order.shelf_pages()) return;
      shortage.scan_pages_left -= order.shelf_pages();
      sweep_shelf(shelf);
      has_swept = true;
    });
  if (has_swept) step_expired();  // for all these regions together no more than in a turn
  uint64_t pages_per_round = 64;
  for (uint32_t round = 0; round < rounds_max && shortage.is_open(); ++round) {
    if (evict_coldest(in, shortage)) return;
    if (evict_windows(in, shortage)) return;
    // No room for a run among what may go now: make more of it go, so that parents become leaves. Perhaps there never is any,
    // since one pin in each region is enough: so not everybody's blocks go for it, and no more than are worth the runs.
    if (shortage.lines_left == 0) return;
    Shortage::WindowPass& pass = shortage.window_pass(in.size());
    if (shortage.room_pages_left == 0 || pass.pages_looked_at < in.size() * core.region.region_pages()) return;
    pass.pages_looked_at = 0;
    Shortage room = shortage;
    room.asker = {};
    room.run_pages = 1;
    room.runs = std::min(pages_per_round, shortage.room_pages_left);
    evict_coldest(in, room);
    const uint64_t gone = room.pages_evicted - shortage.pages_evicted;
    shortage.key_bytes_left = room.key_bytes_left;
    shortage.blocks_evicted = room.blocks_evicted;
    shortage.lines_left = room.lines_left;
    if (gone == 0) return;
    shortage.pages_evicted = room.pages_evicted;
    shortage.room_pages_left -= std::min(shortage.room_pages_left, gone);
    pages_per_round *= 2;
  }
}

// Lines that the eviction of a block reads: a look for pins in all lanes, the block's lines and its bucket's, and its run,
// whose length a client wrote.
uint64_t Pool::State::eviction_lines(uint32_t page, uint64_t look) const {
  constexpr uint64_t kLinesOfABlock = 8;
  uint32_t run_pages = core.region.run_pages(page);
  if (run_pages > 1 && !core.region.is_durable()) {  // where all of the length is walked whatever the tails say (tails_end)
    const PageWord second = core.word(page + 1);
    if (!second.is(PageState::kPoisoned) && !(second.is(PageState::kTail) && second.low() == 1)) run_pages = 1;
  }
  return look + kLinesOfABlock + run_pages - 1;
}

// Takes away those of these pages that may go; their queues and parents are kept right. Returns how many went.
size_t Pool::State::evict_pages(std::span<const uint32_t> victims, EvictReason reason) {
  Shortage nobody;
  nobody.reason = reason;
  return evict_pages(victims, nobody);
}

// `into` counts them and takes nothing.
size_t Pool::State::evict_pages(std::span<const uint32_t> victims, Shortage& into) {
  PageRef retired[shm::kEvictBatchMax];
  size_t gone = 0;
  for (size_t start = 0; start < victims.size(); start += shm::kEvictBatchMax) {
    const size_t n = std::min(shm::kEvictBatchMax, victims.size() - start);
    core.meter.add(n * lanes.look_lines());
    const size_t count = shm::retire_unpinned(core.self, lanes.in_use, victims.data() + start, n, &core.attempt, retired);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t page = retired[i].page();
      const uint64_t at_tick = tick_of(page, retired[i].generation());
      queue_remove(page);
      finish_evicted(retired[i], at_tick, into, nullptr);
    }
    gone += count;
  }
  return gone;
}

// READY and childless, and over. A hint: the time is the client's word.
bool Pool::State::is_expired(uint32_t page, PageWord found) const {
  return found.is(PageState::kReady) && found.low() == 0 && has_expired(page);
}

// The same of any page, whatever it holds.
bool Pool::State::has_expired(uint32_t page) const {
  const uint64_t expires_ms = core.region.block(page).expires_ms.load_relaxed();
  return expires_ms != 0 && core.now_ms >= expires_ms;
}

// Expired blocks that lookups met: whoever wants to store under such a key again waits for the whole tree below it, all of
// which has expired. The sweep comes there, too, in its time. Returns true when there is more to do right away.
bool Pool::State::step_expired() {
  if (!met_expired.empty()) {
    std::vector<uint32_t> leaves;
    std::sort(met_expired.begin(), met_expired.end());
    met_expired.erase(std::unique(met_expired.begin(), met_expired.end()), met_expired.end());
    for (const uint32_t page : met_expired) {
      const PageWord found = core.word(page);
      if (is_expired(page, found))
        leaves.push_back(page);
      else if (found.is(PageState::kReady) && has_expired(page) && expired_roots.size() < kMetExpiredMax)
        expired_roots.push_back(PageRef::of(page, found.generation()));
    }
    met_expired.clear();
    evict_expired(std::move(leaves), kSweepPagesPerTurn);
  }
  const bool has_more = !met_expired.empty();
  if (!expired_walk) {
    if (expired_roots.empty() || rests(core.now_ms, expired_again_ms, kExpiredPauseMs)) return has_more;
    std::sort(expired_roots.begin(), expired_roots.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    expired_roots.erase(std::unique(expired_roots.begin(), expired_roots.end()), expired_roots.end());
    begin_tree(expired_walk.emplace(), std::exchange(expired_roots, {}));
    expired_walk->reason = EvictReason::kExpired;
  }
  uint64_t budget = kTreeStepsPerTurn;
  if (!step_tree(*expired_walk, budget)) return true;
  expired_walk.reset();
  expired_again_ms = core.now_ms + kExpiredPauseMs;
  return has_more;
}

// Expired blocks without children, and what is above them as far as that becomes childless and is expired, too: the key of an
// expired root is not free before the root is, and nobody may take it away before its children. At most `limit`, and no more
// than a turn may cost: each is a look at all lanes, where clients say how much there is to read. The rest is for later turns.
void Pool::State::evict_expired(std::vector<uint32_t> leaves, uint64_t limit) {
  std::vector<uint32_t> victims;
  std::vector<PageRef> parents;
  for (uint64_t lines = kHeldLinesAtOnce; !leaves.empty() && limit > 0 && lines > 0;) {
    const uint64_t cost = lanes.look_lines();  // for each batch: clients may write meanwhile
    const uint64_t most = std::min<uint64_t>({limit, shm::kEvictBatchMax, std::max<uint64_t>(1, lines / cost)});
    const size_t count = std::min<uint64_t>(leaves.size(), most);
    limit -= count;
    lines -= std::min(lines, count * cost);
    victims.assign(leaves.end() - long(count), leaves.end());
    leaves.resize(leaves.size() - count);
    parents.clear();
    for (const uint32_t page : victims) {
      const PageRef parent = PageRef::from_bits(core.region.block(page).parent.load_acquire());  // checked below
      if (core.region.is_page(parent) && regions.owns_page(parent.page())) parents.push_back(parent);
    }
    evict_pages(victims, EvictReason::kExpired);
    std::sort(parents.begin(), parents.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    for (const PageRef parent : parents) {
      const PageWord found = core.word(parent.page());
      if (found.generation() == parent.generation() && is_expired(parent.page(), found))
        leaves.push_back(parent.page());
    }
  }
  for (const uint32_t page : leaves)
    if (met_expired.size() < kMetExpiredMax) met_expired.push_back(page);
}

}  // namespace maru::daemon
