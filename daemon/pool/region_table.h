// Which lane rents which region of a pool: marud's truth, which the region words show. Renting names the client that
// should allocate in a region; only the page words say which pages may be taken.
//
//   (1) A region that another host looks after is foreign. This marud changes nothing of it, and its state is not known here.
//   (2) A change of state or owner raises the generation, and is shown before anything else depends on it.
//   (3) pages_in_use is the sum of counted_pages over all regions.
//
// Cost: memory of marud's own; to show a region is one line.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

using format::RegionState;

struct RegionEntry {
  RegionState state = RegionState::kUnused;
  bool is_foreign = false;  // another host's; its state is not ours to know
  bool was_found = false;   // its word named its owner when this marud took the pool over
  uint32_t generation = 0;  // 20 bits
  LaneId owner;
  uint32_t free_pages = 0;  // when it was last swept
  uint32_t used_pages = 0;
  uint32_t counted_pages = 0;      // in use, as the pool's sum has them
  uint64_t no_run_since = kNever;  // frees() when a search for FREE pages found nothing
  uint64_t no_run_pages = 0;       // the shortest run that was not found
  // A look for FREE pages to take, or for a row of pages that its next owner may take, with no time for all of the region.
  struct Look {
    uint32_t next = 0;       // page in the region; 0: none is under way
    uint64_t frees = 0;      // when it began
    uint64_t run_pages = 0;  // no shorter run was looked for
    uint32_t row = 0, longest = 0;
  } free_look, row_look;
  float heat = 0;          // touches, cooling: inspect/region_heat.h
  uint64_t used_tick = 0;  // of the last touch that was read; 0: none
};

class RegionTable {
 public:
  explicit RegionTable(PoolCore& core) : core_(core) {}
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;
  // Of a pool of several hosts every region is foreign until its word was read.
  void set_up();

  RegionEntry& operator[](size_t index) { return entries_[index]; }
  const RegionEntry& operator[](size_t index) const { return entries_[index]; }
  size_t size() const { return entries_.size(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

  // Whether this marud keeps the order of a page.
  bool owns_page(uint32_t page) const {
    if (!core_.region.is_shared()) return true;
    const RegionEntry& entry = entries_[core_.region.region_of(page)];
    return !entry.is_foreign && entry.state != RegionState::kUnused;
  }
  std::vector<uint32_t> own_regions() const;
  std::vector<uint32_t> regions_of(LaneId owner) const;  // that it rents

  void show_region(uint32_t index);
  void set_region(uint32_t index, RegionState state, LaneId owner);
  void set_counted(uint32_t index, uint32_t used);
  // A hint to the owners of regions.
  void show_frees() { core_.self.header().frees.store_relaxed(own_frees); }

  uint64_t pages_in_use = 0;  // of the pool: the sum of the last counts of each region
  uint64_t own_frees = 0;     // pages that marud freed and no client has taken yet

 private:
  PoolCore& core_;
  std::vector<RegionEntry> entries_;
};

}  // namespace maru::daemon
