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

// Pages that were freed just now go to the asker, if nobody else has taken them in between.
void Evictor::take_freed(uint32_t first, uint32_t count, Shortage& shortage) {
  core_.totals.evicted_pages += count;
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

bool Evictor::evict_coldest(std::span<const uint32_t> in, Shortage& shortage) {
  queues_.tell_time();
  EvictionOrder::Coldest coldest(queues_.order, in, &shortage.lines_left);
  // Every step takes a page out of a queue. Pages come back only below a child that went, so twice the pages is enough
  // unless somebody scribbles.
  uint64_t steps_left = 2 * uint64_t(in.size()) * core_.region.region_pages() + 1024;
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
    const uint64_t cost = lanes_.look_lines();
    std::optional<EvictionOrder::Key> horizon;
    uint32_t page = 0;
    EvictionOrder::Key coldest_key;
    while (victims.size() < shm::kEvictBatchMax && steps_left > 0 && shortage.lines_left > 0 &&
           runs_expected < shortage.runs_left() && coldest.peek(&page, &coldest_key)) {
      if (horizon && coldest_key > *horizon) break;
      --steps_left;
      shortage.spend(cost);
      PageWord found = core_.word(page);
      if (found.is(PageState::kRetiring)) {  // of a marud before: nobody else marks blocks so
        core_.region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
        found = core_.word(page);
      }
      const uint32_t generation = found.generation();
      const bool may_go = found.is(PageState::kReady) && found.children() == 0 && !found.recount();
      const bool is_stale = !found.is(PageState::kReady) || !queues_.order.knows(page, generation);
      const uint32_t run_pages = may_go ? core_.region.run_pages(page) : 1;
      if (may_go && !is_stale && shortage.run_pages > 1 && run_pages != shortage.run_pages) {
        size_differs = true;
        break;
      }
      if (queues_.is_by_tenant() && may_go && !is_stale) {
        // What is chosen counts as used until it is free, so a tenant that this batch brings down to its limit ends it.
        const uint32_t index = queues_.tenant(page);
        auto taken =
            std::find_if(chosen.begin(), chosen.end(), [&](const TenantBytes& t) { return t.tenant == index; });
        if (taken == chosen.end()) taken = chosen.insert(chosen.end(), {index, 0});
        const TenantTable::Row& row = tenants_.table().row(index);
        if (taken->bytes != 0 && row.is_over() &&
            row.used_bytes - std::min(row.used_bytes, taken->bytes) <= row.limit_bytes())
          break;
        taken->bytes += run_pages * core_.region.page_bytes();
      }
      const uint64_t at_tick = queues_.order.last_use(page);
      if (!queues_.order.remove(page)) {
        if (rebuilds_left-- == 0) {
          steps_left = 0;
          break;
        }
        queues_.mend(queues_.order.shelf_of(page));
        coldest.push_shelf(queues_.order.shelf_of(page));
        continue;
      }
      if (is_stale) {
        if (!found.is(PageState::kReady)) continue;
        queues_.insert(page, generation);
        coldest.push(page);
        continue;
      }
      if (found.recount()) held_.hold(PageRef::of(page, generation));  // comes back when the recount is through
      if (!may_go) continue;

      shortage.spend(eviction_lines(page, 0));
      victims.push_back({page, generation, at_tick});
      runs_expected += shortage.run_pages == 1 ? run_pages : 1;
      const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // a hint
      if (!core_.region.is_page(parent)) continue;
      const PageWord parent_word = core_.word(parent.page());
      if (!parent_word.is(PageState::kReady, parent.generation())) continue;
      auto counted =
          std::find_if(parents.begin(), parents.end(), [&](const ParentCount& p) { return p.parent == parent; });
      if (counted == parents.end()) counted = parents.insert(parents.end(), {parent, 0});
      if (++counted->children != parent_word.children()) continue;
      queues_.know(parent.page(), parent.generation());
      const EvictionOrder::Key then =
          queues_.order.key(parent.page(), std::max(at_tick, queues_.order.last_use(parent.page())));
      horizon = horizon ? std::min(*horizon, then) : then;
    }
    if (victims.empty()) break;

    victim_pages.clear();
    for (const Victim& victim : victims) victim_pages.push_back(victim.page);
    core_.meter.add(victims.size() * cost);
    const size_t count = shm::retire_unpinned(core_.self, lanes_.in_use, victim_pages.data(), victim_pages.size(),
                                              &core_.attempt, retired);
    const uint64_t before = core_.meter.read();
    size_t next = 0;
    for (const Victim& victim : victims) {
      const PageRef ref = PageRef::of(victim.page, victim.generation);
      if (next < count && retired[next].page() == victim.page) {
        finish_evicted(retired[next++], victim.tick, shortage, &coldest);
      } else if (const PageWord found = core_.word(victim.page); found.is(PageState::kReady, victim.generation)) {
        if (found.children() != 0) continue;  // back when the last one leaves
        shortage.spend(cost);                 // a look more, for where it is pinned
        held_.hold(ref);
      }
    }
    const uint64_t read = core_.meter.read() - before, expected = victims.size() * kLinesOfAChoice;
    shortage.spend(read - std::min(read, expected));  // by searches for the places of parents
  }
  for (const uint32_t index : in)
    queues_.for_shelves(index, [&](uint32_t shelf) {
      if (queues_.order.is_damaged(shelf)) queues_.mend(shelf);  // for the next request
    });
  return !size_differs;
}

uint64_t Evictor::eviction_lines(uint32_t page, uint64_t look) const {
  constexpr uint64_t kLinesOfABlock = 8;
  uint32_t run_pages = core_.region.run_pages(page);
  if (run_pages > 1 &&
      !core_.region.is_durable()) {  // where all of the length is walked whatever the tails say (tails_end)
    const PageWord second = core_.word(page + 1);
    if (!second.is(PageState::kPoisoned) && !(second.is(PageState::kTail) && second.low() == 1)) run_pages = 1;
  }
  return look + kLinesOfABlock + run_pages - 1;
}

// Takes away those of these pages that may go; their queues and parents are kept right. Returns how many went.
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
