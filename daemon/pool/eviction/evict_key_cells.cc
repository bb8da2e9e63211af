// Cells for keys that are longer than the inline ones, in pools that have fewer cells than pages. A store that finds no cell is
// refused however many pages are free, and since nobody then runs out of pages, nothing else would take the cold holders away.
// So when stores were refused and few cells are free, a quarter of the blocks that hold some and may go is evicted, in the
// order of the policy, and no more than it takes until a quarter of the cells is free.
//
// Refusals are counted by clients, which may lie. A look therefore reads some cells a turn, with a pause before the next one,
// and what it evicts depends on the cells alone.
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace maru::daemon {
namespace {

constexpr uint64_t kCellsPerTurn = 1u << 10;  // each may cost two misses
constexpr uint64_t kLookPauseMs = 20;
constexpr size_t kHoldersKept = 1u << 10;  // of one look, the coldest

uint64_t scarce_from(uint64_t cells, bool is_freeing) { return cells - cells / (is_freeing ? 4 : 8); }

}  // namespace

uint64_t Pool::State::stores_refused() const {
  uint64_t sum = core.totals.counters[format::kCounterRegistryFull];
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane)
    if (lanes.is_live(lane)) sum += core.region.lane_header(lane).counter(format::kCounterRegistryFull);
  return sum;
}

void Pool::State::look_at_key_cell(uint64_t cell) {
  const PageRef holder = PageRef::from_bits(core.region.key_extent_owner(cell).load_relaxed());
  if (!core.region.is_page(holder)) return;
  const PageWord found = core.word(holder.page());
  if (found.generation() != holder.generation()) return;
  ++key_cells.held;
  const bool may_go = found.is(PageState::kReady) && found.children() == 0 && !found.recount() &&
                      regions.owns_page(holder.page()) && order.knows(holder.page(), holder.generation()) &&
                      order.contains(holder.page());
  if (!may_go) return;
  ++key_cells.movable;
  auto& coldest = key_cells.coldest;
  coldest.push_back(order.key(holder.page()));
  if (coldest.size() < 2 * kHoldersKept) return;
  std::nth_element(coldest.begin(), coldest.begin() + kHoldersKept, coldest.end());
  coldest.resize(kHoldersKept);
}

void Pool::State::choose_cell_holders() {
  auto& coldest = key_cells.coldest;
  const uint64_t most = scarce_from(core.region.parameters().key_extents, key_cells.is_freeing);
  key_cells.is_freeing = key_cells.held >= most;
  const uint64_t enough = scarce_from(core.region.parameters().key_extents, true);
  std::sort(coldest.begin(), coldest.end());
  // Where most holders stay whatever is done, the few that may go are not all thrown out for a share that cannot be had.
  const uint64_t most_at_once = std::max<uint64_t>(1, key_cells.movable / 4);
  const uint64_t wanted = key_cells.is_freeing ? std::min(key_cells.held - enough + 1, most_at_once) : 0;
  coldest.resize(std::min<uint64_t>({coldest.size(), kHoldersKept, wanted}));
  key_cells.has_looked = true;
}

// Whether this batch has brought the block's tenant down to its limit. What is chosen counts as used until it is free.
bool Pool::State::is_enough_of_tenant(uint32_t page, std::map<uint32_t, uint64_t>& taken) const {
  if (!queues_by_tenant) return false;
  const uint32_t index = tenant(page);
  const TenantTable::Row& row = tenants.table().row(index);
  uint64_t& bytes = taken[index];
  if (bytes != 0 && row.is_over() && row.used_bytes - std::min(row.used_bytes, bytes) <= row.limit_bytes()) return true;
  bytes += core.region.run_pages(page) * core.region.page_bytes();
  return false;
}

// Some of those that were chosen; the rest goes in later turns. Blocks of tenants within their limits are the last ones of the
// order and not spared, since nothing else would make room.
void Pool::State::evict_cell_holders() {
  auto& coldest = key_cells.coldest;
  const auto most = size_t(std::clamp<uint64_t>(kChoiceLinesPerTurn / lanes.look_lines(), 1, shm::kEvictBatchMax));
  std::vector<uint32_t> victims;
  std::vector<PageRef> refs;
  std::map<uint32_t, uint64_t> taken;
  size_t next = 0;
  for (; next < coldest.size() && victims.size() < most; ++next) {
    const uint32_t page = coldest[next].page;
    const PageWord found = core.word(page);
    if (!found.is(PageState::kReady) || found.low() != 0 || !order.knows(page, found.generation()) ||
        !order.contains(page) || order.key(page) != coldest[next])
      continue;  // another block, or used since
    if (is_enough_of_tenant(page, taken)) break;
    victims.push_back(page);
    refs.push_back(PageRef::of(page, found.generation()));
  }
  coldest.erase(coldest.begin(), coldest.begin() + ptrdiff_t(next));
  key_cells.went += evict_pages(victims, EvictReason::kBackground);
  for (const PageRef ref : refs) {
    const PageWord found = core.word(ref.page());
    if (!found.is(PageState::kReady, ref.generation()) || found.low() != 0) continue;
    hold(ref);  // it is pinned: out of the queues, so that the next look comes further
    ++key_cells.pinned;
  }
  if (!coldest.empty()) return;
  // What went is room for the next stores, and the next one that is refused begins the next look.
  key_cells.is_looking = key_cells.is_freeing && key_cells.went == 0 && key_cells.pinned != 0;
  key_cells.is_freeing = key_cells.is_freeing && (key_cells.went != 0 || key_cells.pinned != 0);
  begin_key_cells();
}

void Pool::State::begin_key_cells() {
  key_cells.next = key_cells.held = key_cells.movable = key_cells.went = key_cells.pinned = 0;
  key_cells.round = 0;
  key_cells.has_looked = false;
  key_cells.coldest.clear();
}

// Returns true when there is more to do right away.
bool Pool::State::step_key_cells() {
  const uint64_t cells = core.region.parameters().key_extents;
  if (cells >= core.pages() || !policy->evicts()) return false;
  if (!key_cells.is_looking) {
    if (rests(core.now_ms, key_cells.look_again_ms, kLookPauseMs)) return false;
    key_cells.look_again_ms = core.now_ms + kLookPauseMs;
    const uint64_t refused = stores_refused();
    if (std::exchange(key_cells.refused_seen, refused) == refused) return false;
    key_cells.is_looking = true;
    begin_key_cells();
  }
  // As exact as the eviction of a request: what was left until now is read, and held blocks are looked at, first.
  if (!key_cells.has_looked) {
    if (key_cells.next == 0 && (!has_caught_up(key_cells.round) || is_reordering())) return true;
    ask_for_tenant(0);
    for (uint64_t i = 0; i < kCellsPerTurn && key_cells.next < cells; ++i) look_at_key_cell(key_cells.next++);
    if (key_cells.next == cells) choose_cell_holders();
    return true;
  }
  ask_for_tenant(0);
  evict_cell_holders();
  return key_cells.is_looking;
}

}  // namespace maru::daemon
