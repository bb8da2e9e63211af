// Takeover: a whole region of another client, for one that gets no memory in a gentler way. docs/format.md, "A region is taken
// from its owner", has the steps and what a death after each leaves; its old owner is told, or finds the region's word.
//
// Whose: first from clients that rent more than their share, if the asker rents less than its own. The share is the regions of
// the pool by the clients that rent any, the asker among them, so whoever is taken from keeps its share and does not take the
// region back: takeovers come to an end. As the last thing before a refusal: from anybody.
//
// Which: the region with the fewest blocks, none of them pinned by anybody, where the blocks that may go and the pages that
// nobody uses make room for what is asked. What its old owner is filling stays the owner's.
//
// Cost: a pass over the pin slots in use, and over the page words of some regions; once a region, not once a store.
#include "daemon/pool_state.h"
#include "libmaru/shm/region_handover.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// Words that one takeover reads while it chooses: all of a small pool, the emptiest regions of a large one.
constexpr uint64_t kPagesLookedAtMax = 1u << 16;

}  // namespace

// Regions with a page that some lane pins. A hint: eviction looks again, block by block.
std::vector<bool> Pool::State::pinned_regions() const {
  std::vector<bool> pinned(regions.size(), false);
  const auto look = [&](std::span<AtomicU64> slots) {
    for (const AtomicU64& slot : slots) {
      const PageRef ref = PageRef::from_bits(slot.load_relaxed());  // a hint, see above
      if (region.is_page(ref)) pinned[region.region_of(ref.page())] = true;
    }
  };
  shm::with_other_hosts(region, lanes.in_use).for_each(region.lanes(), [&](uint32_t lane) {
    const shm::LaneView view = region.lane(lane);
    look(view.pins);
    look(view.pin_overflow);
  });
  return pinned;
}

// What a region would give: its blocks that may go in waves, children before their parents, and the longest row of pages that
// would be free. Pages are marked as they become free on paper.
Pool::State::Outlook Pool::State::look_at_region(uint32_t index) const {
  Outlook outlook;
  const uint32_t first = index * region.region_pages(), count = region.region_pages();
  std::vector<bool> is_free(count, false);
  std::vector<uint32_t> children(count, 0), wave;
  for (uint32_t i = 0; i < count; ++i) {
    const PageWord found = word(first + i);
    is_free[i] = found.is(PageState::kFree) || found.is(PageState::kOut);
    if (!found.is(PageState::kReady)) continue;
    ++outlook.blocks;
    children[i] = found.children();
    if (found.low() == 0) wave.push_back(first + i);
  }
  std::vector<uint32_t> next;
  while (!wave.empty()) {  // ends: a page is in one wave at most, because each child lowers its parent's number once
    next.clear();
    std::erase_if(wave, [&](uint32_t page) { return tenant_class(tenant(page)) == kTenantProtected; });
    for (uint32_t page : wave) {
      for (uint32_t i = 0; i < region.run_pages(page); ++i) is_free[page - first + i] = true;
      const PageRef parent = PageRef::from_bits(region.block(page).parent.load_acquire());  // a hint
      if (!region.is_page(parent) || region.region_of(parent.page()) != index) continue;
      const PageWord above = word(parent.page());
      if (!above.is(PageState::kReady, parent.generation()) || above.recount()) continue;
      uint32_t& left = children[parent.page() - first];
      if (left > 0 && --left == 0) next.push_back(parent.page());
    }
    outlook.waves.push_back(std::move(wave));
    wave = std::move(next);
  }
  for (uint32_t i = 0, row = 0; i < count; ++i) {
    row = is_free[i] ? row + 1 : 0;
    outlook.longest_row = std::max(outlook.longest_row, row);
  }
  return outlook;
}

// Steps 2 to 6 of docs/format.md.
void Pool::State::take_region(uint32_t index, const Outlook& outlook, Shortage& shortage) {
  const LaneId from = regions[index].owner;
  set_region(index, RegionState::kDraining, {});
  const uint32_t generation = regions[index].generation;
  shm::close_region_pages(region, index);
  shortage.spend(outlook.blocks * look_lines());
  Shortage inside = shortage;  // frees without taking
  inside.asker = {};
  inside.runs = 0;
  inside.reason = EvictReason::kTakeover;
  size_t gone = 0;
  for (const std::vector<uint32_t>& wave : outlook.waves) gone += evict_pages(wave, inside);
  shortage.key_bytes_left = inside.key_bytes_left;
  shortage.blocks_evicted = inside.blocks_evicted;
  shortage.pages_evicted = inside.pages_evicted;
  shm::close_region_pages(region, index);
  const uint64_t runs = grant_region(index, shortage.asker, shortage.run_pages);
  shortage.runs -= std::min(shortage.runs, runs);
  shortage.result->regions.push_back(index);
  --shortage.items_left;
  if (shortage.regions_left != kNever) --shortage.regions_left;
  if (from.lane != 0)
    shortage.result->taken.push_back(
        {from.lane, index, generation, gone, outlook.blocks - std::min<uint64_t>(outlook.blocks, gone)});
  ++totals.regions_taken;
}

// Returns whether a region was taken.
bool Pool::State::take_over(Shortage& shortage, TakeFrom whom) {
  if (!policy->evicts() || shortage.items_left == 0 || shortage.regions_left == 0 || shortage.lines_left == 0)
    return false;
  std::vector<uint32_t> rented(region.lanes(), 0);  // by lane
  for (const RegionEntry& entry : regions)
    if (entry.state == RegionState::kRented) ++rented[entry.owner.lane];
  const uint32_t own = rented[shortage.asker.lane];
  if (config.max_regions_per_instance != 0 && own >= config.max_regions_per_instance) return false;
  const auto owners =
      size_t(std::count_if(rented.begin(), rented.end(), [](uint32_t n) { return n > 0; })) + (own == 0);
  const size_t share = std::max<size_t>(1, regions.size() / owners);
  if (whom == TakeFrom::kOverShare && own >= share) return false;

  const std::vector<bool> pinned = pinned_regions();
  std::vector<uint32_t> candidates;
  for (uint32_t i = 0; i < regions.size(); ++i) {
    const RegionEntry& entry = regions[i];
    const bool is_anothers =
        entry.state == RegionState::kRented && entry.owner != shortage.asker && !lanes.is_dead(entry.owner);
    const bool may = whom == TakeFrom::kOverShare ? is_anothers && rented[entry.owner.lane] > share
                                                  : is_anothers || entry.state == RegionState::kOrphaned;
    if (may && !pinned[i] && has_room(i)) candidates.push_back(i);
  }
  // By what the last count says, so that the first ones are worth a look; exact numbers decide among those.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](uint32_t a, uint32_t b) { return regions[a].counted_pages < regions[b].counted_pages; });
  candidates.resize(
      std::min<size_t>(candidates.size(), std::max<uint64_t>(1, kPagesLookedAtMax / region.region_pages())));
  Outlook best;
  uint32_t best_index = 0;
  bool has_best = false;
  for (uint32_t index : candidates) {
    Outlook outlook = look_at_region(index);
    if (outlook.longest_row < shortage.run_pages || (has_best && outlook.blocks >= best.blocks)) continue;
    best = std::move(outlook);
    best_index = index;
    has_best = true;
  }
  if (has_best) take_region(best_index, best, shortage);
  return has_best;
}

}  // namespace maru::daemon
