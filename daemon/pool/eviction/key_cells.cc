#include "daemon/pool/eviction/key_cells.h"

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

uint64_t KeyCells::stores_refused() const {
  uint64_t sum = core_.totals.counters[format::kCounterRegistryFull];
  for (uint32_t lane = lanes_.first + 1; lane < lanes_.end; ++lane)
    if (lanes_.is_live(lane)) sum += core_.region.lane_header(lane).counter(format::kCounterRegistryFull);
  return sum;
}

void KeyCells::look_at(uint64_t cell) {
  const PageRef holder = PageRef::from_bits(core_.region.key_extent_owner(cell).load_relaxed());
  if (!core_.region.is_page(holder)) return;
  const PageWord found = core_.word(holder.page());
  if (found.generation() != holder.generation()) return;
  ++look_.held;
  const bool may_go = found.is(PageState::kReady) && found.children() == 0 && !found.recount() &&
                      regions_.owns_page(holder.page()) && queues_.order.knows(holder.page(), holder.generation()) &&
                      queues_.order.contains(holder.page());
  if (!may_go) return;
  ++look_.movable;
  auto& coldest = look_.coldest;
  coldest.push_back(queues_.order.key(holder.page()));
  if (coldest.size() < 2 * kHoldersKept) return;
  std::nth_element(coldest.begin(), coldest.begin() + kHoldersKept, coldest.end());
  coldest.resize(kHoldersKept);
}

void KeyCells::choose_holders() {
  auto& coldest = look_.coldest;
  const uint64_t most = scarce_from(core_.region.parameters().key_extents, look_.is_freeing);
  look_.is_freeing = look_.held >= most;
  const uint64_t enough = scarce_from(core_.region.parameters().key_extents, true);
  std::sort(coldest.begin(), coldest.end());
  // When most holders cannot go, the few that may go are not all thrown out for a share out of reach.
  const uint64_t most_at_once = std::max<uint64_t>(1, look_.movable / 4);
  const uint64_t wanted = look_.is_freeing ? std::min(look_.held - enough + 1, most_at_once) : 0;
  coldest.resize(std::min<uint64_t>({coldest.size(), kHoldersKept, wanted}));
  look_.has_looked = true;
}

// Whether this batch has brought the block's tenant down to its limit. Chosen blocks count as used until they are free.
bool KeyCells::is_enough_of_tenant(uint32_t page, std::map<uint32_t, uint64_t>& taken) const {
  if (!queues_.is_by_tenant()) return false;
  const uint32_t index = queues_.tenant(page);
  const TenantTable::Row& row = tenants_.table().row(index);
  uint64_t& bytes = taken[index];
  if (bytes != 0 && row.is_over() && row.used_bytes - std::min(row.used_bytes, bytes) <= row.limit_bytes()) return true;
  bytes += core_.region.run_pages(page) * core_.region.page_bytes();
  return false;
}

// Evicts some of the chosen blocks; the rest goes in later turns. Blocks of tenants within their limits are the last in the
// order and not spared, since nothing else would make room.
void KeyCells::evict_holders() {
  auto& coldest = look_.coldest;
  const auto most = size_t(std::clamp<uint64_t>(kChoiceLinesPerTurn / lanes_.look_lines(), 1, shm::kEvictBatchMax));
  std::vector<uint32_t> victims;
  std::vector<PageRef> refs;
  std::map<uint32_t, uint64_t> taken;
  size_t next = 0;
  for (; next < coldest.size() && victims.size() < most; ++next) {
    const uint32_t page = coldest[next].page;
    const PageWord found = core_.word(page);
    if (!found.is(PageState::kReady) || found.low() != 0 || !queues_.order.knows(page, found.generation()) ||
        !queues_.order.contains(page) || queues_.order.key(page) != coldest[next])
      continue;  // another block, or used since
    if (is_enough_of_tenant(page, taken)) break;
    victims.push_back(page);
    refs.push_back(PageRef::of(page, found.generation()));
  }
  coldest.erase(coldest.begin(), coldest.begin() + ptrdiff_t(next));
  look_.went += evictor_.evict_pages(victims, EvictReason::kBackground);
  for (const PageRef ref : refs) {
    const PageWord found = core_.word(ref.page());
    if (!found.is(PageState::kReady, ref.generation()) || found.low() != 0) continue;
    held_.hold(ref);  // it is pinned: out of the queues, so that the next look comes further
    ++look_.pinned;
  }
  if (!coldest.empty()) return;
  // The evicted blocks made room for the next stores, and the next refused store begins the next look.
  look_.is_looking = look_.is_freeing && look_.went == 0 && look_.pinned != 0;
  look_.is_freeing = look_.is_freeing && (look_.went != 0 || look_.pinned != 0);
  begin();
}

void KeyCells::begin() {
  look_.next = look_.held = look_.movable = look_.went = look_.pinned = 0;
  look_.round = 0;
  look_.has_looked = false;
  look_.coldest.clear();
}

bool KeyCells::step() {
  const uint64_t cells = core_.region.parameters().key_extents;
  if (cells >= core_.pages() || !queues_.policy->evicts()) return false;
  if (!look_.is_looking) {
    if (rests(core_.now_ms, look_.look_again_ms, kLookPauseMs)) return false;
    look_.look_again_ms = core_.now_ms + kLookPauseMs;
    const uint64_t refused = stores_refused();
    if (std::exchange(look_.refused_seen, refused) == refused) return false;
    look_.is_looking = true;
    begin();
  }
  // As exact as the eviction of a request: first the remaining touches are read, and held blocks are looked at.
  if (!look_.has_looked) {
    if (look_.next == 0 && (!recency_.has_caught_up(look_.round) || queues_.is_reordering())) return true;
    queues_.ask_for_tenant(0);
    for (uint64_t i = 0; i < kCellsPerTurn && look_.next < cells; ++i) look_at(look_.next++);
    if (look_.next == cells) choose_holders();
    return true;
  }
  queues_.ask_for_tenant(0);
  evict_holders();
  return look_.is_looking;
}

}  // namespace maru::daemon
