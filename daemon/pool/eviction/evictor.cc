#include "daemon/pool/eviction/evictor.h"

#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/region/page_run.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace maru::daemon {

void Evictor::report_evicted(PageRef ref, Shortage& shortage) {
  ++shortage.blocks_evicted;
  ++core_.totals.evicted_blocks[size_t(shortage.reason)];
  feed_.removed(ref, shortage.reason);
  if (shortage.result == nullptr || !shm::read_key(core_.region, ref, &core_.key)) return;
  const size_t padded = (core_.key.size + 7) / 8 * 8;
  const size_t bytes = sizeof(wire::EvictedKey) + padded;
  if (bytes > shortage.key_bytes_left) return;
  shortage.key_bytes_left -= bytes;
  const wire::EvictedKey record = {core_.key.size, core_.key.kind, core_.key.tenant};
  std::vector<std::byte>& out = shortage.result->evicted_keys;
  const size_t start = out.size();
  out.resize(start + bytes);
  std::memcpy(out.data() + start, &record, sizeof(record));
  std::memcpy(out.data() + start + sizeof(record), core_.key.data, core_.key.size);
  ++shortage.result->evicted;
}

bool Evictor::take_for_asker(uint32_t first, Shortage& shortage, uint32_t* ret_blocker) {
  const auto run_pages = uint32_t(shortage.run_pages);
  if (shm::grant_run(core_.region, core_.self.id, shortage.asker, first, run_pages, shortage.mark, ret_blocker)
          .is_none())
    return false;
  shortage.result->runs.push_back({first, run_pages});
  --shortage.runs;
  --shortage.items_left;
  return true;
}

// Pages that were freed just now go to the asker, if no other client has taken them in between.
void Evictor::take_freed(uint32_t first, uint32_t count, Shortage& shortage) {
  core_.totals.evicted_pages[size_t(shortage.reason)] += count;
  const uint32_t index = core_.region.region_of(first);
  regions_.set_counted(index, regions_[index].counted_pages - std::min(regions_[index].counted_pages, count));
  shortage.pages_evicted += count;
  if (!shortage.takes()) {
    regions_.own_frees += count;
    shortage.runs -= std::min<uint64_t>(shortage.runs, count);
    return;
  }
  if (shortage.run_pages != 1 && shortage.run_pages != count) {
    regions_.own_frees += count;
    return;
  }
  const auto run_pages = uint32_t(shortage.run_pages);
  for (uint32_t i = 0; i < count; i += run_pages) {
    if (!shortage.is_open()) {
      regions_.own_frees += count - i;
      return;
    }
    take_for_asker(first + i, shortage, nullptr);
  }
}

// `ref` is RETIRED by lane 0 and its pins were looked for.
void Evictor::finish_evicted(PageRef ref, uint64_t at_tick, Shortage& shortage, EvictionOrder::Coldest* coldest) {
  report_evicted(ref, shortage);
  if (shortage.reason != EvictReason::kExpired && shortage.reason != EvictReason::kAdmin)
    queues_.order.was_evicted(ref.page());
  const PageRef parent =
      PageRef::from_bits(core_.region.block(ref.page()).parent.load_relaxed());  // RETIRED: ours alone
  if (core_.region.is_page(parent) && regions_.owns_page(parent.page()) &&
      queues_.order.knows(parent.page(), parent.generation()) && !queues_.order.child_left(parent.page(), ref.page()))
    queues_.mend(queues_.order.shelf_of(parent.page()));
  queues_.inherit_use(parent, at_tick);
  const uint32_t run_pages = core_.region.run_pages(ref.page());
  core_.meter.add(eviction_lines(ref.page(), 0));
  uint32_t freed = 0;
  if (shm::free_retired(core_.self, ref, &freed) != shm::FinishStatus::kFreed) return;
  take_freed(ref.page(), std::min(run_pages, freed), shortage);
  queues_.child_left(parent, coldest);
}

namespace {

// Lines that the eviction of a block reads beside the look for its pins, if no client scribbles.
constexpr uint64_t kLinesOfAChoice = 64;

}  // namespace

// The way of one call through the queues: a batch is chosen, then it is taken away, then the next batch is chosen.
struct Evictor::Walk {
  struct Victim {
    uint32_t page;
    uint32_t generation;
    uint64_t tick;
  };
  // Children of one parent that the batch is about to take away.
  struct ParentCount {
    PageRef parent;
    uint32_t children;
  };
  // Bytes of one tenant that the batch is about to take away.
  struct TenantBytes {
    uint32_t tenant;
    uint64_t bytes;
  };

  EvictionOrder::Coldest coldest;
  // Every step takes a page out of a queue. Pages come back only below a child that went, so twice the pages is enough
  // unless a client scribbles.
  uint64_t steps_left;
  uint32_t rebuilds_left = 8;
  bool size_differs = false;  // it met a block of another size than the runs that are wanted

  // The batch.
  uint64_t look = 0;  // lines of a look for pins
  std::vector<Victim> victims = {};
  std::vector<ParentCount> parents = {};
  std::vector<TenantBytes> chosen = {};
  // Of the coldest parent that the batch sets free: no warmer block is chosen.
  std::optional<EvictionOrder::Key> horizon = {};
  uint64_t runs_expected = 0;

  void begin_batch(uint64_t look_lines) {
    look = look_lines;
    victims.clear();
    parents.clear();
    chosen.clear();
    horizon.reset();
    runs_expected = 0;
  }
};

bool Evictor::evict_coldest(std::span<const uint32_t> in, Shortage& shortage) {
  queues_.tell_time();
  Walk walk = {.coldest = EvictionOrder::Coldest(queues_.order, in, &shortage.lines_left),
               .steps_left = 2 * uint64_t(in.size()) * core_.region.region_pages() + 1024};
  while (shortage.is_open() && !walk.size_differs && walk.steps_left > 0) {
    choose_batch(walk, shortage);
    if (walk.victims.empty()) break;
    take_batch(walk, shortage);
  }
  for (const uint32_t index : in)
    queues_.for_shelves(index, [&](uint32_t shelf) {
      if (queues_.order.is_damaged(shelf)) queues_.mend(shelf);  // for the next request
    });
  return !walk.size_differs;
}

// The coldest blocks that may go, as one batch may have.
void Evictor::choose_batch(Walk& walk, Shortage& shortage) {
  walk.begin_batch(lanes_.look_lines());
  uint32_t page = 0;
  EvictionOrder::Key key;
  while (walk.victims.size() < shm::kEvictBatchMax && walk.steps_left > 0 && shortage.lines_left > 0 &&
         walk.runs_expected < shortage.runs_left() && walk.coldest.peek(&page, &key)) {
    if (walk.horizon && key > *walk.horizon) return;
    --walk.steps_left;
    shortage.spend(walk.look);
    const PageWord found = revived(page);
    const uint32_t generation = found.generation();
    const bool may_go = found.is(PageState::kReady) && found.children() == 0 && !found.recount();
    const bool is_stale = !found.is(PageState::kReady) || !queues_.order.knows(page, generation);
    const uint32_t run_pages = may_go ? core_.region.run_pages(page) : 1;
    if (may_go && !is_stale) {
      walk.size_differs = shortage.run_pages > 1 && run_pages != shortage.run_pages;
      if (walk.size_differs || is_enough_of_tenant(walk, page, run_pages)) return;
    }
    const uint64_t at_tick = queues_.order.last_use(page);
    if (!take_out(walk, page)) continue;
    if (is_stale) {
      if (!found.is(PageState::kReady)) continue;
      queues_.insert(page, generation);
      walk.coldest.push(page);
      continue;
    }
    if (found.recount()) held_.hold(PageRef::of(page, generation));  // comes back when the recount is through
    if (!may_go) continue;
    shortage.spend(eviction_lines(page, 0));
    walk.victims.push_back({page, generation, at_tick});
    walk.runs_expected += shortage.run_pages == 1 ? run_pages : 1;
    note_parent(walk, page, at_tick);
  }
}

// The word of a page. A marud before this one may have left its mark there: no other process marks blocks so.
PageWord Evictor::revived(uint32_t page) const {
  PageWord found = core_.word(page);
  if (!found.is(PageState::kRetiring)) return found;
  core_.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
  return core_.word(page);
}

// Whether the batch has brought the block's tenant down to its limit. Chosen blocks count as used until they are free.
bool Evictor::is_enough_of_tenant(Walk& walk, uint32_t page, uint32_t run_pages) const {
  if (!queues_.is_by_tenant()) return false;
  const uint32_t index = queues_.tenant(page);
  auto taken = std::ranges::find(walk.chosen, index, &Walk::TenantBytes::tenant);
  if (taken == walk.chosen.end()) taken = walk.chosen.insert(walk.chosen.end(), {index, 0});
  const TenantTable::Row& row = tenants_.table().row(index);
  if (taken->bytes != 0 && row.is_over() &&
      row.used_bytes - std::min(row.used_bytes, taken->bytes) <= row.limit_bytes())
    return true;
  taken->bytes += run_pages * core_.region.page_bytes();
  return false;
}

// A page out of its queue. Damaged queues are mended a few times, and then the walk ends.
bool Evictor::take_out(Walk& walk, uint32_t page) {
  if (queues_.order.remove(page)) return true;
  if (walk.rebuilds_left-- == 0) {
    walk.steps_left = 0;
    return false;
  }
  queues_.mend(queues_.order.shelf_of(page));
  walk.coldest.push_shelf(queues_.order.shelf_of(page));
  return false;
}

// A parent whose last child the batch takes away may go next, with the later of their ticks.
void Evictor::note_parent(Walk& walk, uint32_t page, uint64_t at_tick) {
  const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // a hint
  if (!core_.region.is_page(parent)) return;
  const PageWord found = core_.word(parent.page());
  if (!found.is(PageState::kReady, parent.generation())) return;
  auto counted = std::ranges::find(walk.parents, parent, &Walk::ParentCount::parent);
  if (counted == walk.parents.end()) counted = walk.parents.insert(walk.parents.end(), {parent, 0});
  if (++counted->children != found.children()) return;
  queues_.know(parent.page(), parent.generation());
  const EvictionOrder::Key then =
      queues_.order.key(parent.page(), std::max(at_tick, queues_.order.last_use(parent.page())));
  walk.horizon = walk.horizon ? std::min(*walk.horizon, then) : then;
}

// Marks the batch, looks for its pins, and ends those that no process pins. The others are held.
void Evictor::take_batch(Walk& walk, Shortage& shortage) {
  PageRef retired[shm::kEvictBatchMax];
  std::vector<uint32_t> pages;
  for (const Walk::Victim& victim : walk.victims) pages.push_back(victim.page);
  core_.meter.add(pages.size() * walk.look);
  const size_t count =
      shm::retire_unpinned(core_.self, lanes_.in_use, pages.data(), pages.size(), &core_.attempt, retired);
  const uint64_t before = core_.meter.read();
  size_t next = 0;
  for (const Walk::Victim& victim : walk.victims) {
    const PageRef ref = PageRef::of(victim.page, victim.generation);
    if (next < count && retired[next].page() == victim.page) {
      finish_evicted(retired[next++], victim.tick, shortage, &walk.coldest);
    } else if (const PageWord found = core_.word(victim.page); found.is(PageState::kReady, victim.generation)) {
      if (found.children() != 0) continue;  // back when the last one leaves
      shortage.spend(walk.look);            // a look more, for where it is pinned
      held_.hold(ref);
    }
  }
  const uint64_t read = core_.meter.read() - before, expected = walk.victims.size() * kLinesOfAChoice;
  shortage.spend(read - std::min(read, expected));  // by searches for the places of parents
}

uint64_t Evictor::eviction_lines(uint32_t page, uint64_t look) const {
  constexpr uint64_t kLinesOfABlock = 8;
  uint32_t run_pages = core_.region.run_pages(page);
  if (run_pages > 1 &&
      !core_.region.is_durable()) {  // in a durable pool the walk covers the whole length, with any tails (tails_end)
    const PageWord second = core_.word(page + 1);
    if (!second.is(PageState::kPoisoned) && !(second.is(PageState::kTail) && second.low() == 1)) run_pages = 1;
  }
  return look + kLinesOfABlock + run_pages - 1;
}

// Takes away the blocks of these pages that may go; keeps their queues and parents right. Returns how many went.
size_t Evictor::evict_pages(std::span<const uint32_t> victims, EvictReason reason) {
  Shortage nobody;
  nobody.reason = reason;
  return evict_pages(victims, nobody);
}

size_t Evictor::evict_pages(std::span<const uint32_t> victims, Shortage& into) {
  PageRef retired[shm::kEvictBatchMax];
  size_t gone = 0;
  for (size_t start = 0; start < victims.size(); start += shm::kEvictBatchMax) {
    const size_t n = std::min(shm::kEvictBatchMax, victims.size() - start);
    core_.meter.add(n * lanes_.look_lines());
    const size_t count =
        shm::retire_unpinned(core_.self, lanes_.in_use, victims.data() + start, n, &core_.attempt, retired);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t page = retired[i].page();
      const uint64_t at_tick = queues_.tick_of(page, retired[i].generation());
      queues_.remove(page);
      finish_evicted(retired[i], at_tick, into, nullptr);
    }
    gone += count;
  }
  return gone;
}

}  // namespace maru::daemon
