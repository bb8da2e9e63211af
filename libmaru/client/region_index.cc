#include "libmaru/client/region_index.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace maru::client {

void RegionIndex::clear() {
  by_place_.clear();
  by_size_.clear();
  pages_ = 0;
}

// An extent without memory for its entry is forgotten: a look at the page words finds it again.
void RegionIndex::insert(uint32_t first, uint32_t count) {
  try {
    const auto place = by_place_.emplace(first, count).first;
    try {
      by_size_.emplace(count, first);
    } catch (...) {
      by_place_.erase(place);
      throw;
    }
    pages_ += count;
  } catch (const std::bad_alloc&) {
    has_forgotten_ = true;
  }
}

void RegionIndex::erase(std::map<uint32_t, uint32_t>::iterator extent) {
  pages_ -= extent->second;
  by_size_.erase({extent->second, extent->first});
  by_place_.erase(extent);
}

// Known extents stay as they are; the gaps between them join their neighbours.
void RegionIndex::add(uint32_t first, uint32_t count, uint32_t region_pages) {
  while (count > 0) {
    const auto after = by_place_.upper_bound(first);
    if (after != by_place_.begin()) {
      const auto before = std::prev(after);
      if (const uint32_t end = before->first + before->second; end > first) {
        const uint32_t known = std::min(count, end - first);
        first += known;
        count -= known;
        continue;
      }
    }
    const uint32_t unknown = after == by_place_.end() ? count : std::min(count, after->first - first);
    join(first, unknown, region_pages);
    first += unknown;
    count -= unknown;
  }
}

// Pages that no extent covers.
void RegionIndex::join(uint32_t first, uint32_t count, uint32_t region_pages) {
  const auto region_of = [&](uint32_t page) { return page / region_pages; };
  const auto after = by_place_.lower_bound(first);
  if (after != by_place_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == first && region_of(before->first) == region_of(first)) {
      first = before->first;
      count += before->second;
      erase(before);
    }
  }
  if (after != by_place_.end() && after->first == first + count && region_of(after->first) == region_of(first)) {
    count += after->second;
    erase(after);
  }
  insert(first, count);
}

void RegionIndex::remove(uint32_t first, uint32_t count) {
  for (auto extent = by_place_.lower_bound(first); extent != by_place_.end() && extent->first - first < count;) {
    const auto next = std::next(extent);
    erase(extent);
    extent = next;
  }
}

bool RegionIndex::take(uint32_t count, Fit fit, uint32_t* ret_first) {
  auto extent = by_place_.end();
  if (fit == Fit::kBest) {
    const auto smallest = by_size_.lower_bound({count, 0});
    if (smallest != by_size_.end()) extent = by_place_.find(smallest->second);
  } else {
    for (extent = by_place_.begin(); extent != by_place_.end() && extent->second < count;) ++extent;
  }
  if (extent == by_place_.end()) return false;
  const auto [first, pages] = *extent;
  erase(extent);
  if (pages > count) insert(first + count, pages - count);
  *ret_first = first;
  return true;
}

uint32_t RegionIndex::take_some(uint32_t wanted, uint32_t* ret_first) {
  if (by_size_.empty()) return 0;
  const auto [pages, first] = *by_size_.begin();
  const uint32_t taken = pages < wanted ? pages : wanted;
  erase(by_place_.find(first));
  if (pages > taken) insert(first + taken, pages - taken);
  *ret_first = first;
  return taken;
}

}  // namespace maru::client
