#include "daemon/pool/memory/grants.h"

#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace maru::daemon {

// In a pool of several hosts any host may take an unrented region, by CAS from the word that says so.
bool Grants::claim_region(uint32_t index, LaneId owner) {
  RegionEntry& entry = regions_[index];
  uint32_t generation = 0;
  if (shm::rent_unused_region(core_.region, index, owner, core_.host, &generation)) {
    entry = {};
    entry.state = RegionState::kRented;
    entry.owner = owner;
    entry.generation = generation;
    queues_.for_shelves(
        index, [&](uint32_t shelf) { queues_.rebuild(shelf); });  // another host's marud wrote the entries there
    return true;
  }
  entry.is_foreign = true;
  entry.state = RegionState::kDraining;
  return false;
}

// Changes whenever a process has freed a page that a search may find.
uint64_t Grants::frees() const {
  uint64_t sum = regions_.own_frees;
  shm::with_other_hosts(core_.region, lanes_.in_use).for_each(core_.region.lanes(), [&](uint32_t lane) {
    sum += core_.region.lane(lane).header->frees.load_relaxed();  // a hint
  });
  return sum == kNever ? 0 : sum;
}

uint64_t Grants::grant_region(uint32_t index, LaneId owner, uint64_t run_pages) {
  if (!core_.region.is_shared() || regions_[index].state != RegionState::kUnused)
    regions_.set_region(index, RegionState::kRented, owner);
  else if (!claim_region(index, owner))
    return 0;
  shm::open_region_pages(core_.region, index);
  core_.meter.add(core_.region.region_pages());
  const uint32_t first = index * core_.region.region_pages();
  uint64_t runs = 0, free_in_a_row = 0;
  for (uint32_t i = 0; i < core_.region.region_pages(); ++i) {
    const PageWord found = core_.word(first + i);
    free_in_a_row = found.is(PageState::kFree) ? free_in_a_row + 1 : 0;
    if (free_in_a_row < run_pages) continue;
    ++runs;
    free_in_a_row = 0;
  }
  return runs;
}

bool Grants::rent_regions(Search& search) {
  Shortage& shortage = search.shortage;
  search.looks_for_rows = false;
  uint64_t limit = core_.config.max_regions_per_instance == 0 ? kNever : core_.config.max_regions_per_instance;
  const size_t owned = regions_.regions_of(shortage.asker).size();
  limit = std::min(limit > owned ? limit - owned : 0, shortage.regions_left);
  uint64_t grants_left = std::max<uint64_t>(1, kGrantPagesPerTurn / core_.region.region_pages());
  const bool is_limited = shortage.regions_left != kNever;
  const auto grant = [&](uint32_t index) {
    const uint64_t runs = grant_region(index, shortage.asker, shortage.run_pages);
    if (regions_[index].is_foreign) return;  // another host was faster
    shortage.runs -= std::min(shortage.runs, runs);
    shortage.result->regions.push_back(index);
    --shortage.items_left;
    --limit;
    --grants_left;
    if (is_limited) --shortage.regions_left;
  };
  std::vector<uint32_t> bare;  // without room
  for (uint32_t i = 0; i < regions_.size() && limit > 0 && grants_left > 0 && shortage.is_open(); ++i)
    if (regions_[i].state == RegionState::kUnused) room_.has(i) ? grant(i) : bare.push_back(i);
  if (grants_left == 0) return true;
  if (!bare.empty() && limit > 0 && shortage.is_open()) shortage.room_wanted = bare.front();

  std::vector<uint32_t> orphaned;
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].state == RegionState::kOrphaned && room_.has(i)) orphaned.push_back(i);
  if (!orphaned.empty())
    std::rotate(orphaned.begin(), orphaned.begin() + free_scan_next_ % orphaned.size(), orphaned.end());
  uint64_t pages_left = kFreeScanPagesPerRequest;
  if (limit == 0) {
    if (!is_limited) take_free(orphaned, shortage, &pages_left);
    return false;
  }
  const uint64_t frees_now = frees();
  for (uint32_t i : orphaned) {
    if (limit == 0 || grants_left == 0 || !shortage.is_open()) break;
    RegionEntry& entry = regions_[i];
    if (entry.no_run_since == frees_now && shortage.run_pages >= entry.no_run_pages) continue;
    if (search.row_pages_left == 0) break;
    const uint64_t before = pages_left;
    const std::optional<bool> has_row = look_for_row(i, shortage.run_pages, frees_now, &pages_left);
    search.row_pages_left -= std::min(search.row_pages_left, before - pages_left);
    search.looks_for_rows = !has_row;
    if (!has_row) break;
    ++free_scan_next_;
    if (*has_row) grant(i);
  }
  return grants_left == 0;
}

// Whether a region has a row of so many pages for its next owner. Goes on where the last look had no time for more. Nothing:
// the pages that may be read are used up.
std::optional<bool> Grants::look_for_row(uint32_t index, uint64_t run_pages, uint64_t frees_now, uint64_t* pages_left) {
  RegionEntry& entry = regions_[index];
  RegionEntry::Look& look = entry.row_look;
  if (look.next == 0) look.frees = frees_now;
  for (; look.next < core_.region.region_pages() && look.longest < run_pages; ++look.next, --*pages_left) {
    if (*pages_left == 0) return std::nullopt;
    const PageWord found = core_.word(index * core_.region.region_pages() + look.next);
    look.row = found.is(PageState::kFree) || found.is(PageState::kOut) ? look.row + 1 : 0;
    look.longest = std::max(look.longest, look.row);
  }
  const RegionEntry::Look done = std::exchange(look, {});
  if (done.longest >= run_pages) return true;
  entry.no_run_since = done.frees;
  entry.no_run_pages = done.longest + 1;
  return false;
}

uint64_t Grants::take_free(std::span<const uint32_t> in, Shortage& shortage, uint64_t* pages_left) {
  const uint64_t frees_now = frees();
  const auto run_pages = uint32_t(shortage.run_pages);
  const uint32_t start_at = free_scan_next_;
  uint64_t looked = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const uint32_t index = in[(start_at + i) % in.size()];
    if (!shortage.is_open() || *pages_left == 0) return looked;
    RegionEntry& entry = regions_[index];
    if (!room_.has(index)) continue;  // its FREE pages may have no memory
    if (entry.no_run_since == frees_now && shortage.run_pages >= entry.no_run_pages) continue;
    RegionEntry::Look& look = entry.free_look;
    if (look.next == 0 || look.run_pages > run_pages) look = {0, frees_now, run_pages};
    const uint32_t first = index * core_.region.region_pages(), end = first + core_.region.region_pages();
    uint32_t start = first + look.next;
    while (start + run_pages <= end && shortage.is_open() && *pages_left > 0) {
      uint32_t length = 0;
      while (length < run_pages && core_.word(start + length).is(PageState::kFree)) ++length;
      *pages_left -= std::min<uint64_t>(*pages_left, length + 1);
      if (length < run_pages) {
        start += length + 1;
        continue;
      }
      uint32_t blocker = start;
      start = evictor_.take_for_asker(start, shortage, &blocker) ? start + run_pages : blocker + 1;
    }
    look.next = start - first;
    if (!shortage.is_open() || start + run_pages <= end) return looked;
    ++free_scan_next_;
    ++looked;
    entry.no_run_since = look.frees;
    entry.no_run_pages = run_pages;
    look = {};
  }
  return in.size();
}

void Grants::settle_region(uint32_t index) {
  if (regions_[index].is_foreign) return;
  const bool is_empty = shm::vacate_region(core_.region, index);
  core_.meter.add(is_empty ? 3 * core_.region.region_pages() : core_.region.region_pages());
  const RegionState state = is_empty ? RegionState::kUnused : RegionState::kOrphaned;
  if (core_.region.is_shared() && is_empty)
    queues_.for_shelves(index, [&](uint32_t shelf) { queues_.order.clear(shelf); });  // before another host may rent it
  if (regions_[index].state != state) regions_.set_region(index, state, {});
}

void Grants::orphan_region(uint32_t index) {
  if (!regions_[index].is_foreign) regions_.set_region(index, RegionState::kOrphaned, {});
}

void Grants::ask_other_hosts() {
  std::vector<uint32_t> rented(core_.region.hosts(), 0);
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    const uint32_t host = shm::host_of_region(core_.region, i);
    if (host < core_.region.hosts()) ++rented[host];
  }
  const auto users = std::max<ptrdiff_t>(
      1, std::count_if(rented.begin(), rented.end(), [](uint32_t n) { return n > 0; }) + (rented[core_.host] == 0));
  const size_t share = std::max<size_t>(1, regions_.size() / size_t(users));
  const auto most = uint32_t(std::max_element(rented.begin(), rented.end()) - rented.begin());
  if (rented[core_.host] >= share || rented[most] <= share || most == core_.host) return;
  shm::ask_for_region(core_.region, most, core_.host, core_.host_generation);
}

}  // namespace maru::daemon
