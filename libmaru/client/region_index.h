// The owner's knowledge of free pages in its regions: extents of contiguous pages, by place and by size. Private and only a
// hint: the page words decide which pages may be taken, and a wrong extent is corrected.
//
// Thread safety: the caller's lock. Throws nothing: without memory it knows less.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace maru::client {

class RegionIndex {
 public:
  enum class Fit { kBest, kFirst };

  void clear();
  // Marks pages free. Merges with neighbours, never across a multiple of region_pages.
  void add(uint32_t first, uint32_t count, uint32_t region_pages);
  // Forgets these pages. No extent reaches beyond them on either side: a region's pages.
  void remove(uint32_t first, uint32_t count);
  // Finds a place for `count` contiguous pages, and takes it out: the smallest extent that is large enough (O(log n)), or the
  // first in memory. False if there is none.
  bool take(uint32_t count, Fit fit, uint32_t* ret_first);
  // Up to `wanted` contiguous pages from the smallest extent, so that large ones stay whole. 0 if nothing is free.
  uint32_t take_some(uint32_t wanted, uint32_t* ret_first);
  uint64_t pages() const { return pages_; }
  // Whether it had to forget pages since this was asked last: then a look at the page words is worth it.
  bool has_forgotten() { return std::exchange(has_forgotten_, false); }

 private:
  void join(uint32_t first, uint32_t count, uint32_t region_pages);
  void insert(uint32_t first, uint32_t count);
  void erase(std::map<uint32_t, uint32_t>::iterator extent);

  std::map<uint32_t, uint32_t> by_place_;            // first -> count
  std::set<std::pair<uint32_t, uint32_t>> by_size_;  // count, first
  uint64_t pages_ = 0;
  bool has_forgotten_ = false;
};

}  // namespace maru::client
