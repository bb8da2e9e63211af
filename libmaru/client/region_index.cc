#include "libmaru/client/region_index.h"

#include <iterator>

namespace maru::client {

void RegionIndex::clear() {
  by_place_.clear();
  by_size_.clear();
  pages_ = 0;
}

void RegionIndex::insert(uint32_t first, uint32_t count) {
  by_place_.emplace(first, count);
  by_size_.emplace(count, first);
  pages_ += count;
}

void RegionIndex::erase(std::map<uint32_t, uint32_t>::iterator extent) {
  pages_ -= extent->second;
  by_size_.erase({extent->second, extent->first});
  by_place_.erase(extent);
}

void RegionIndex::add(uint32_t first, uint32_t count, uint32_t region_pages) {
  const auto region_of = [&](uint32_t page) { return page / region_pages; };
  auto next = by_place_.lower_bound(first);
  if (next != by_place_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second > first) return;  // known already
    if (before->first + before->second == first && region_of(before->first) == region_of(first)) {
      first = before->first;
      count += before->second;
      erase(before);
    }
  }
  if (next != by_place_.end() && next->first < first + count) return insert(first, next->first - first);
  if (next != by_place_.end() && next->first == first + count && region_of(next->first) == region_of(first)) {
    count += next->second;
    erase(next);
  }
  insert(first, count);
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
