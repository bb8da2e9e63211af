#include "libmaru/client/page_source.h"

#include "libmaru/client/thread_state.h"
#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>
#include <cerrno>

namespace maru::client {
namespace {

using shm::PageRef;
using shm::PageState;
using shm::PageWord;

// Each round either gets pages or ends with marud's refusal; this bounds a marud that grants and never delivers.
constexpr int kRentRounds = 64;

}  // namespace

// Held for a few instructions; a thread that finds it taken spins, which only happens when threads share a cache.
class PageSource::CacheLock {
 public:
  explicit CacheLock(Cache& cache) : cache_(cache) {
    while (cache_.locked.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~CacheLock() { cache_.locked.clear(std::memory_order_release); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  Cache& cache_;
};

PageSource::PageSource(const shm::ControlRegion& region, shm::LaneId lane, uint32_t cache_pages, RegionIndex::Fit fit,
                       Rent rent)
    : region_(region),
      lane_(lane),
      cache_pages_(cache_pages),
      fit_(fit),
      rent_(std::move(rent)),
      lost_(std::make_unique<std::atomic<bool>[]>(region.regions())) {
  for (Cache& cache : caches_) cache.pages = std::make_unique<PageRef[]>(cache_pages_);
  owned_.reserve(region.regions());  // no region is lost for want of memory
}

// Each identity has a home among the caches. A thread takes the first free cache from there on, or shares its home when the
// caches near it are taken. A thread that ends leaves its cache to the next thread with the same identity.
PageSource::Cache& PageSource::my_cache() {
  constexpr uint64_t kSpread =
      0x9E37'79B9'7F4A'7C15;  // 2^64 by the golden ratio: identities are multiples of large powers of 2
  constexpr uint32_t kNear = 8;
  static_assert(kCaches == 64);
  const uint64_t me = thread_identity();
  const auto home = uint32_t(me * kSpread >> 58);
  for (uint32_t i = 0; i < kNear; ++i) {
    Cache& cache = caches_[(home + i) % kCaches];
    uint64_t thread = cache.thread.load(std::memory_order_relaxed);  // a wish: the lock guards the cache
    if (thread == me) return cache;
    if (thread == 0 && cache.thread.compare_exchange_strong(thread, me, std::memory_order_relaxed)) return cache;
  }
  return caches_[home];
}

// marud's word: the region is still rented to this lane. (Written by marud before it answers.)
bool PageSource::owns(uint32_t index) const { return shm::owns_region(region_, index, lane_); }

uint64_t PageSource::freed_by_anyone() const {
  uint64_t sum = 0;
  shm::LaneSet::in_use(region_).for_each(region_.lanes(), [&](uint32_t lane) {
    sum += region_.lane(lane).header->frees.load_relaxed();  // a hint that looking again may be worth it
  });
  return sum + region_.lane(0).header->frees.load_relaxed();  // marud's own
}

bool PageSource::is_owned(uint32_t index) const {
  return std::find(owned_.begin(), owned_.end(), index) != owned_.end() && owns(index);
}

// Whether pages of this region may be taken now.
bool PageSource::may_use(uint32_t index) {
  if (owns(index)) return true;
  forget(index);
  return false;
}

// The region has another owner. Its pages in caches go back when no cache is locked by this thread.
void PageSource::forget(uint32_t index) {
  index_.remove(index * region_.region_pages(), region_.region_pages());
  const auto place = std::find(owned_.begin(), owned_.end(), index);
  if (place == owned_.end()) return;
  owned_.erase(place);
  ++regions_taken_;
  lost_[index].store(true, std::memory_order_relaxed);  // the next thread that locks a cache sees it
  caches_hold_lost_.store(true, std::memory_order_release);
}

void PageSource::region_taken(uint32_t index) {
  if (index >= region_.regions()) return;
  {
    const std::lock_guard lock(owned_mutex_);
    if (!owns(index)) forget(index);
  }
  return_lost_pages();
}

void PageSource::return_lost_pages() {
  if (!caches_hold_lost_.exchange(false, std::memory_order_acq_rel)) return;
  uint64_t freed = 0;
  for (Cache& cache : caches_) {
    const CacheLock lock(cache);
    const uint32_t count = cache.count.load(std::memory_order_relaxed);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const PageRef page = cache.pages[i];
      if (is_lost(page.page()))
        freed += shm::give_back_run(region_, lane_, page);
      else
        cache.pages[kept++] = page;
    }
    cache.count.store(kept, std::memory_order_relaxed);
  }
  if (freed > 0) region_.lane(lane_.lane).header->frees.fetch_add_relaxed(freed);  // the new owner's to find
}

// Adds the FREE ones of these pages, which lie in one region, to the index. A hint: taking decides.
void PageSource::index_free_pages(uint32_t first, uint32_t count) {
  for (uint32_t i = 0, run = 0; i <= count; ++i) {
    const bool free = i < count && PageWord{region_.block(first + i).word.load_relaxed()}.is(PageState::kFree);  // hint
    if (free) {
      ++run;
    } else if (run) {
      index_.add(first + i - run, run, region_.region_pages());
      run = 0;
    }
  }
}

// Looks for free pages that the index does not know, region by region, until some are found. After a whole round without any it
// waits until a client has freed a page. True if there is a page now.
bool PageSource::rescan() {
  const uint64_t frees = freed_by_anyone();
  if (index_.has_forgotten()) frees_seen_ = ~frees;  // a whole round is due
  if (frees == frees_seen_) return index_.pages() != 0;
  const uint64_t before = index_.pages();
  for (size_t i = owned_.size(); i-- > 0;) may_use(owned_[i]);
  for (size_t i = 0; i < owned_.size(); ++i) {
    rescan_next_ = (rescan_next_ + 1) % owned_.size();
    index_free_pages(owned_[rescan_next_] * region_.region_pages(), region_.region_pages());
    if (index_.pages() != before) return true;
  }
  frees_seen_ = frees;
  return index_.pages() != 0;
}

size_t PageSource::take_single_owned(size_t wanted, PageRef* ret_pages) {
  size_t taken = 0;
  while (taken < wanted) {
    uint32_t first = 0;
    const uint32_t count = index_.take_some(uint32_t(std::min<size_t>(wanted - taken, 1u << 20)), &first);
    if (count == 0) {
      if (!rescan()) return taken;
      continue;
    }
    if (!may_use(region_.region_of(first))) continue;
    for (uint32_t i = 0; i < count; ++i) {
      const PageRef page = shm::take_page(region_, lane_, first + i);
      if (!page.is_none()) ret_pages[taken++] = page;
    }
  }
  return taken;
}

size_t PageSource::take_owned(size_t runs, uint32_t run_pages, PageRef* ret_heads) {
  const std::lock_guard lock(owned_mutex_);
  if (run_pages == 1) return take_single_owned(runs, ret_heads);
  size_t taken = 0;
  while (taken < runs) {
    uint32_t first = 0;
    if (!index_.take(run_pages, fit_, &first)) {
      // Ends: each look either finds pages that the index did not know, or was one at every region without finding any.
      const uint64_t known = index_.pages();
      rescan();
      if (index_.pages() == known) return taken;
      continue;
    }
    if (!may_use(region_.region_of(first))) continue;
    uint32_t blocker = 0;
    const PageRef head = shm::take_run(region_, lane_, first, run_pages, &blocker);
    if (!head.is_none()) {
      ret_heads[taken++] = head;
      continue;
    }
    // Another process holds a page in the middle: the pages on both sides are still free, as far as is known.
    if (blocker > first) index_.add(first, blocker - first, region_.region_pages());
    if (blocker + 1 < first + run_pages)
      index_.add(blocker + 1, first + run_pages - blocker - 1, region_.region_pages());
  }
  return taken;
}

size_t PageSource::take_cached(size_t wanted, PageRef* ret_pages) {
  Cache& cache = my_cache();
  const CacheLock lock(cache);
  if (cache.count.load(std::memory_order_relaxed) == 0 && wanted <= cache_pages_) refill(cache);
  const uint32_t count = cache.count.load(std::memory_order_relaxed);
  const uint32_t taken = uint32_t(std::min<size_t>(wanted, count));
  for (uint32_t i = 0; i < taken; ++i) ret_pages[i] = cache.pages[count - 1 - i];
  cache.count.store(count - taken, std::memory_order_relaxed);
  return taken;
}

void PageSource::refill(Cache& cache) {
  const std::unique_lock lock(owned_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread is at it; the slow path waits
  cache.count.store(uint32_t(take_single_owned(std::max(1u, cache_pages_ / 2), cache.pages.get())),
                    std::memory_order_relaxed);
}

size_t PageSource::steal_cached(size_t wanted, PageRef* ret_pages) {
  size_t taken = 0;
  for (Cache& cache : caches_) {
    if (taken == wanted) break;
    if (cache.count.load(std::memory_order_relaxed) == 0) continue;
    const CacheLock lock(cache);
    uint32_t count = cache.count.load(std::memory_order_relaxed);
    while (count > 0 && taken < wanted) ret_pages[taken++] = cache.pages[--count];
    cache.count.store(count, std::memory_order_relaxed);
  }
  return taken;
}

// Calls `reserved(head)` for every run that is this lane's. Allocates nothing.
template <typename F>
void PageSource::accept(const Rented& rented, F&& reserved) {
  {
    const std::lock_guard lock(owned_mutex_);
    for (const uint32_t index : rented.regions) {
      if (!owns(index)) continue;  // a late answer: the region has a new owner
      lost_[index].store(false, std::memory_order_relaxed);
      if (!is_owned(index)) owned_.push_back(index);
      index_free_pages(index * region_.region_pages(), region_.region_pages());
    }
  }
  for (const auto& [page, pages] : rented.runs) {
    const PageWord word{region_.block(page).word.load_acquire()};  // [pairs page.word]
    if (word.is(PageState::kReserved) && word.lane() == lane_ && region_.run_pages(page) == pages)
      reserved(PageRef::of(page, word.generation()));
  }
}

void PageSource::accept_late(const Rented& rented) {
  accept(rented, [&](PageRef head) { give_back(head); });
}

void PageSource::give_back_granted(std::span<const uint32_t> request_ids) {
  std::vector<uint64_t> marks;
  for (const uint32_t id : request_ids) marks.push_back(shm::grant_mark(lane_, id));
  std::sort(marks.begin(), marks.end());
  const uint64_t freed = shm::give_back_granted(region_, lane_, marks);
  if (freed > 0) region_.lane(lane_.lane).header->frees.fetch_add_relaxed(freed);  // the regions' owners find them
}

int PageSource::take(size_t runs, uint32_t run_pages, PageRef* ret_heads, size_t* ret_taken) {
  size_t taken = 0;
  const auto fail = [&](int status) {
    if (ret_taken)
      *ret_taken = taken;
    else
      for (size_t i = 0; i < taken; ++i) give_back(ret_heads[i]);
    return status;
  };
  // A request that can never succeed must not evict blocks on the way to its refusal.
  if (runs > region_.pages() / run_pages) return fail(-ENOSPC);
  if (caches_hold_lost_.load(std::memory_order_relaxed)) return_lost_pages();  // private, and almost never so
  if (run_pages == 1) taken = take_cached(runs, ret_heads);
  if (taken == runs) return 0;
  for (int round = 0; round < kRentRounds; ++round) {
    taken += take_owned(runs - taken, run_pages, ret_heads + taken);
    if (taken < runs && run_pages == 1) taken += steal_cached(runs - taken, ret_heads + taken);
    if (taken == runs) return 0;
    // A late reply to an earlier request may have come with a refusal.
    const auto look_once_more = [&](int status) {
      taken += take_owned(runs - taken, run_pages, ret_heads + taken);
      if (taken < runs && run_pages == 1) taken += steal_cached(runs - taken, ret_heads + taken);
      return taken == runs ? 0 : fail(status);
    };
    Rented rented;
    if (const int status = rent_(runs - taken, run_pages, &rented); status != 0) return look_once_more(status);
    if (rented.regions.empty() && rented.runs.empty()) return look_once_more(-ENOSPC);
    size_t granted = 0;
    accept(rented, [&](PageRef head) {
      ++granted;
      if (taken < runs && region_.run_pages(head.page()) == run_pages)
        ret_heads[taken++] = head;
      else
        give_back(head);
    });
    if (taken == runs) return 0;
    if (rented.regions.empty() && granted == 0) return fail(-ENOSPC);
  }
  return fail(-ENOSPC);
}

bool PageSource::give_back(PageRef head) {
  if (region_.run_pages(head.page()) == 1 && !is_lost(head.page())) {
    const PageRef renewed = shm::renew_page(region_, lane_, head);
    if (renewed.is_none()) return false;
    if (keep(renewed)) return true;
    head = renewed;
  }
  const uint32_t pages = region_.run_pages(head.page());
  if (shm::give_back_run(region_, lane_, head) == 0) return false;
  leave_free(head.page(), pages);
  return true;
}

// FREE pages go into the index, or their owner is told that there are some.
void PageSource::leave_free(uint32_t first, uint32_t pages) {
  const std::lock_guard lock(owned_mutex_);
  if (is_owned(region_.region_of(first)))
    index_.add(first, pages, region_.region_pages());
  else
    region_.lane(lane_.lane).header->frees.fetch_add_relaxed(pages);  // its owner's to find
}

// A page goes into the calling thread's cache if there is room.
bool PageSource::keep(PageRef page) {
  Cache& cache = my_cache();
  const CacheLock lock(cache);
  const uint32_t count = cache.count.load(std::memory_order_relaxed);
  if (count == cache_pages_ || is_lost(page.page())) return false;
  cache.pages[count] = page;
  cache.count.store(count + 1, std::memory_order_relaxed);
  return true;
}

void PageSource::was_freed(uint32_t first, uint32_t pages) {
  bool owned;
  {
    const std::lock_guard lock(owned_mutex_);
    owned = is_owned(region_.region_of(first));
  }
  if (owned && pages == 1) {
    const PageRef page = shm::take_page(region_, lane_, first);
    if (page.is_none() || keep(page)) return;
    shm::give_back_run(region_, lane_, page);
  }
  leave_free(first, pages);
}

void PageSource::empty_caches() {
  for (Cache& cache : caches_) {
    const CacheLock lock(cache);
    const uint32_t count = cache.count.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) shm::give_back_run(region_, lane_, cache.pages[i]);
    cache.count.store(0, std::memory_order_relaxed);
  }
}

uint64_t PageSource::cached_pages() const {
  uint64_t sum = 0;
  for (const Cache& cache : caches_) sum += cache.count.load(std::memory_order_relaxed);  // a statistic
  return sum;
}

uint64_t PageSource::regions() const {
  const std::lock_guard lock(owned_mutex_);
  return uint64_t(std::count_if(owned_.begin(), owned_.end(), [&](uint32_t index) { return owns(index); }));
}

uint64_t PageSource::regions_taken() const {
  const std::lock_guard lock(owned_mutex_);
  const auto unnoticed = std::count_if(owned_.begin(), owned_.end(), [&](uint32_t index) { return !owns(index); });
  return regions_taken_ + uint64_t(unnoticed);
}

}  // namespace maru::client
