#include "libmaru/shm/region_handover.h"

#include "libmaru/shm/mutants.h"

namespace maru::shm {

bool owns_region(const ControlRegion& region, uint32_t index, LaneId lane) {
  const RegionWord word{region.region(index).word.load_acquire()};  // [pairs region.word]
  return word.state() == format::RegionState::kRented && word.owner() == lane;
}

uint32_t close_region_pages(const ControlRegion& region, uint32_t index) {
  const uint32_t first = index * region.region_pages();
  uint32_t closed = 0;
  for (uint32_t page = first; page < first + region.region_pages(); ++page) {
    AtomicU64& word = region.block(page).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    if (!found.is(PageState::kFree)) continue;
    const uint64_t out = PageWord::out(found.generation()).bits;
    if (MARU_MUTANT(kMutantCloseByStore)) {
      word.store_release(out);
      continue;
    }
    closed += word.cas_acq_rel(found.bits, out);
  }
  return closed;
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
