#include "libmaru/shm/lru.h"

// All words here are written by marud's one thread; the relaxed order is enough for it, and readers elsewhere only look.

namespace maru::shm {

using format::PolicyEntry;
using format::RegionRecord;

bool LruLists::contains(uint32_t page) const { return region_->policy(page).list.load_relaxed() == 1; }

uint32_t LruLists::coldest(uint32_t region_index) const {
  return checked(region_->region(region_index).lru_tail.load_relaxed());
}

uint32_t LruLists::warmer(uint32_t page) const { return checked(region_->policy(page).newer.load_relaxed()); }

bool LruLists::insert(uint32_t page, uint32_t generation, uint64_t tick_ms) {
  RegionRecord& list = region_->region(region_->region_of(page));
  PolicyEntry& entry = region_->policy(page);
  entry.generation.store_relaxed(generation);
  entry.last_use_ms.store_relaxed(tick_ms);

  const uint32_t head = checked(list.lru_head.load_relaxed());
  uint32_t newer = 0, older = head;
  if (head != 0 && last_use_ms(head - 1) > tick_ms) {
    // Find the place from the cold end: what comes back to the list is usually old.
    older = 0;
    newer = coldest(region_->region_of(page));
    for (uint64_t steps = 0; newer != 0 && last_use_ms(newer - 1) < tick_ms; ++steps) {
      if (steps > region_->region_pages()) return false;  // a cycle
      older = newer;
      newer = warmer(newer - 1);
    }
  }
  entry.newer.store_relaxed(newer);
  entry.older.store_relaxed(older);
  entry.list.store_relaxed(1);
  (newer ? region_->policy(newer - 1).older : list.lru_head).store_relaxed(page + 1);
  (older ? region_->policy(older - 1).newer : list.lru_tail).store_relaxed(page + 1);
  list.lru_count.store_relaxed(list.lru_count.load_relaxed() + 1);
  return true;
}

bool LruLists::remove(uint32_t page) {
  PolicyEntry& entry = region_->policy(page);
  if (entry.list.load_relaxed() != 1) return true;
  RegionRecord& list = region_->region(region_->region_of(page));
  const uint32_t newer = checked(entry.newer.load_relaxed()), older = checked(entry.older.load_relaxed());
  auto& from_newer = newer ? region_->policy(newer - 1).older : list.lru_head;
  auto& from_older = older ? region_->policy(older - 1).newer : list.lru_tail;
  entry.list.store_relaxed(0);
  if (from_newer.load_relaxed() != page + 1 || from_older.load_relaxed() != page + 1) return false;
  from_newer.store_relaxed(older);
  from_older.store_relaxed(newer);
  list.lru_count.store_relaxed(list.lru_count.load_relaxed() - 1);
  return true;
}

bool LruLists::touch(uint32_t page, uint64_t tick_ms) {
  if (contains(page) && last_use_ms(page) >= tick_ms) return true;  // rings are read one after the other
  const RegionRecord& list = region_->region(region_->region_of(page));
  if (list.lru_head.load_relaxed() == page + 1) {
    set_last_use_ms(page, tick_ms);
    return true;
  }
  if (!remove(page)) return false;
  return insert(page, generation(page), tick_ms);
}

void LruLists::clear(uint32_t region_index) {
  RegionRecord& list = region_->region(region_index);
  list.lru_head.store_relaxed(0);
  list.lru_tail.store_relaxed(0);
  list.lru_count.store_relaxed(0);
  const uint32_t first = region_index * region_->region_pages();
  for (uint32_t i = 0; i < region_->region_pages(); ++i) region_->policy(first + i).list.store_relaxed(0);
}

}  // namespace maru::shm
