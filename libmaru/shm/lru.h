// The LRU lists: one for each region, doubly linked through the policy table, most recently used first. Every step is O(1);
// inserting an old block walks from the cold end past those that are colder.
//
// Only marud writes the policy table, but a client can scribble over it: every index is checked before it is used, and a
// link whose neighbour does not agree makes the list count as damaged, which the caller answers by rebuilding it from the
// ticks. If the process dies here: lists are rebuilt by the next marud, never repaired.
#pragma once

#include "libmaru/shm/control_region.h"

#include <cstdint>

namespace maru::shm {

class LruLists {
 public:
  LruLists() = default;
  explicit LruLists(const ControlRegion& region) : region_(&region) {}

  bool contains(uint32_t page) const;
  // The generation that the page's entry speaks of, and its last use.
  uint32_t generation(uint32_t page) const { return region_->policy(page).generation.load_relaxed(); }
  uint64_t last_use_ms(uint32_t page) const { return region_->policy(page).last_use_ms.load_relaxed(); }
  void set_last_use_ms(uint32_t page, uint64_t tick_ms) { region_->policy(page).last_use_ms.store_relaxed(tick_ms); }

  // Puts a page that is in no list into its region's, by its tick: O(1) when it is the most recent one or the coldest.
  // Returns false if the list is damaged.
  bool insert(uint32_t page, uint32_t generation, uint64_t tick_ms);
  // Takes a page out, if it is in. Returns false if the list is damaged.
  bool remove(uint32_t page);
  // A use: to the front, with this tick.
  bool touch(uint32_t page, uint64_t tick_ms);

  // Walking from the cold end: coldest page + 1, and the next warmer one; 0 at the end.
  uint32_t coldest(uint32_t region_index) const;
  uint32_t warmer(uint32_t page) const;
  uint64_t count(uint32_t region_index) const { return region_->region(region_index).lru_count.load_relaxed(); }

  // Empties a region's list and every entry of its pages; ticks stay.
  void clear(uint32_t region_index);

 private:
  const ControlRegion* region_ = nullptr;
  uint32_t checked(uint32_t link) const { return link <= region_->pages() ? link : 0; }
};

}  // namespace maru::shm
