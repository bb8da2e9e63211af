// The source of a client's pages: caches of its threads, then the free pages of the regions it rents, then marud.
//
// A cache holds pages that are RESERVED by this lane already, so taking one and giving it back are a few private instructions
// and one CAS. Threads are spread over the caches by their identity, and a cache is locked for a moment. So a thread whose
// cache is empty can take from the others before it asks marud, and pages of ended threads are not lost.
//
// marud may give a region of this client to another client at any time. Pages of a region are taken only after a look at its
// word, once per refill of a cache. A region that is lost is forgotten, and its pages in caches are given back. (Buffers that
// are being filled stay the client's own.) Taking a FREE page of a region lost an instant ago is harmless: the page word
// decides.
//
// Thread safety: any.
#pragma once

#include "libmaru/client/region_index.h"
#include "libmaru/shm/region/page_run.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace maru::client {

class PageSource {
 public:
  // marud's answer to a request for memory: regions are owned now, runs are RESERVED by this lane.
  struct Rented {
    std::vector<uint32_t> regions;
    std::vector<std::pair<uint32_t, uint32_t>> runs;  // page, pages
  };
  // Asks marud for `runs` runs of `run_pages` pages. 0 or -errno; throws nothing.
  using Rent = std::function<int(uint64_t runs, uint32_t run_pages, Rented* ret_rented)>;

  PageSource(const shm::ControlRegion& region, shm::LaneId lane, uint32_t cache_pages, RegionIndex::Fit fit, Rent rent);

  // Takes `runs` runs of `run_pages` pages each. 0, or -errno and nothing was taken; with ret_taken as many as it says then.
  int take(size_t runs, uint32_t run_pages, shm::PageRef* ret_heads, size_t* ret_taken = nullptr);
  // Gives back a RESERVED run of this lane. False if it is not one.
  bool give_back(shm::PageRef head);
  // A run that this client has just freed by deleting its block. It is taken again if it lies in a region of this client, and
  // left to the owner of the region otherwise.
  void was_freed(uint32_t first, uint32_t pages);
  // Takes marud's late grant to a request that had been given up.
  void accept_late(const Rented& rented);
  // marud's answers to these requests were lost, and with them which pages it took for this client: they become FREE.
  void give_back_granted(std::span<const uint32_t> request_ids);
  // marud says that a region has another owner now. A hint: the region's word decides.
  void region_taken(uint32_t region_index);
  // All pages in caches become FREE: before detaching.
  void empty_caches();

  uint64_t cached_pages() const;
  uint64_t regions() const;
  uint64_t regions_taken() const;  // by marud, for others, since this client attached

 private:
  static constexpr uint32_t kCaches = 64;
  struct alignas(64) Cache {
    std::atomic_flag locked = ATOMIC_FLAG_INIT;
    std::atomic<uint32_t> count{0};
    std::atomic<uint64_t> thread{0};  // the identity of the first that took it; 0: none has
    std::unique_ptr<shm::PageRef[]> pages;
  };
  class CacheLock;

  Cache& my_cache();
  size_t take_cached(size_t wanted, shm::PageRef* ret_pages);
  size_t steal_cached(size_t wanted, shm::PageRef* ret_pages);
  void refill(Cache& cache);
  size_t take_owned(size_t runs, uint32_t run_pages, shm::PageRef* ret_heads);
  size_t take_single_owned(size_t wanted, shm::PageRef* ret_pages);
  bool keep(shm::PageRef page);
  void leave_free(uint32_t first, uint32_t pages);
  bool rescan();
  bool may_use(uint32_t region_index);
  void forget(uint32_t region_index);
  void return_lost_pages();
  bool is_lost(uint32_t page) const {
    return lost_[region_.region_of(page)].load(
        std::memory_order_relaxed);  // ordered by the cache's lock where it matters
  }
  bool is_owned(uint32_t region_index) const;
  void index_free_pages(uint32_t first, uint32_t count);
  bool owns(uint32_t region_index) const;
  uint64_t freed_by_anyone() const;
  template <typename F>
  void accept(const Rented& rented, F&& reserved);

  const shm::ControlRegion& region_;
  const shm::LaneId lane_;
  const uint32_t cache_pages_;
  const RegionIndex::Fit fit_;
  const Rent rent_;
  std::unique_ptr<std::atomic<bool>[]> lost_;  // by region: taken away, and not rented again since
  std::atomic<bool> caches_hold_lost_{false};  // perhaps
  std::array<Cache, kCaches> caches_;

  mutable std::mutex owned_mutex_;  // index_, owned_, frees_seen_, regions_taken_; taken before a cache's lock
  RegionIndex index_;
  std::vector<uint32_t> owned_;
  uint64_t frees_seen_ = ~uint64_t{0};  // freed_by_anyone() when the round of rescanning began that found nothing more
  size_t rescan_next_ = 0;              // place in owned_
  uint64_t regions_taken_ = 0;          // that were noticed
};

}  // namespace maru::client
