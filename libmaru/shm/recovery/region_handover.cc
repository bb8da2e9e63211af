#include "libmaru/shm/recovery/region_handover.h"

#include "libmaru/shm/region/flush.h"

namespace maru::shm {

bool owns_region(const ControlRegion& region, uint32_t index, LaneId lane) {
  const RegionWord word{region.region(index).word.load_acquire()};  // [pairs region.word]
  return word.state() == format::RegionState::kRented && word.owner() == lane;
}

uint32_t close_region_pages(const ControlRegion& region, uint32_t index) {
  const uint32_t first = index * region.region_pages();
  return close_pages(region, first, first + region.region_pages());
}

uint32_t close_pages(const ControlRegion& region, uint32_t first, uint32_t end) {
  uint32_t closed = 0;
  for (uint32_t page = first; page < end; ++page) {
    AtomicU64& word = region.block(page).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    if (!found.is(PageState::kFree)) continue;
    const uint64_t out = PageWord::out(found.generation()).bits;
    closed += word.cas_acq_rel(found.bits, out);
  }
  return closed;
}

bool vacate_region(const ControlRegion& region, uint32_t index) {
  const uint32_t first = index * region.region_pages();
  const auto holds_only = [&](auto&& is_nobodys) {
    for (uint32_t page = first; page < first + region.region_pages(); ++page)
      if (!is_nobodys(PageWord{region.block(page).word.load_acquire()})) return false;  // [pairs page.word]
    return true;
  };
  const auto is_out = [](PageWord word) { return word.is(PageState::kOut) || word.is(PageState::kPoisoned); };
  if (!holds_only([&](PageWord word) { return word.is(PageState::kFree) || is_out(word); })) return false;
  close_region_pages(region, index);
  // A client may have learned of a FREE page while the region was rented, and has taken it since. OUT stays OUT: only the
  // caller opens pages here.
  if (!holds_only(is_out)) return false;
  // Otherwise a lost host would leave FREE pages in a region that should have none.
  flush(region, &region.block(first), region.region_pages() * sizeof(format::BlockLine));
  return true;
}

void show_region(const ControlRegion& region, uint32_t index, RegionWord word) {
  AtomicU64& shown = region.region(index).word;
  shown.store_release(word.bits);  // [pairs region.word]
  flush(region, shown);
}

uint32_t open_region_pages(const ControlRegion& region, uint32_t index) {
  const uint32_t first = index * region.region_pages();
  uint32_t opened = 0;
  for (uint32_t page = first; page < first + region.region_pages(); ++page) {
    AtomicU64& word = region.block(page).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    if (found.is(PageState::kOut)) opened += word.cas_acq_rel(found.bits, PageWord::free(found.generation()).bits);
  }
  return opened;
}

}  // namespace maru::shm
