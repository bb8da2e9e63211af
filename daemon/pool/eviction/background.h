// Between the watermarks. When the high watermark's share of the pool is in use, blocks are evicted in the order of the policy
// until at most the low watermark's share is in use. So a client that stores finds FREE pages in its own regions and asks no
// daemon. The distance between the two keeps this from starting and stopping all the time.
//
// Pages in use are counted from the page words, region after region. A pool of 32,768 pages is counted every 10 ms, a pool of a
// million pages every 0.3 s. Pages that clients keep RESERVED for their next block are in use.
//
//   (1) Nothing is evicted at or below the low watermark.
//   (2) Each batch is as exact as a request's batch.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/recency.h"

#include <cstdint>

namespace maru::daemon {

class Background {
 public:
  Background(PoolCore& core, RegionTable& regions, Queues& queues, Recency& recency, Evictor& evictor)
      : core_(core), regions_(regions), queues_(queues), recency_(recency), evictor_(evictor) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // The next pages. The table of regions has the sums.
  void count_used(uint64_t pages);
  // Returns true when there is more to do right away.
  bool step();
  bool is_evicting() const { return is_evicting_; }

 private:
  PoolCore& core_;
  RegionTable& regions_;
  Queues& queues_;
  Recency& recency_;
  Evictor& evictor_;
  uint64_t count_next_ = 0;      // page: the count of pages in use
  uint32_t counted_used_ = 0;    // of the region that is being counted
  bool is_evicting_ = false;     // from the high watermark down to the low one
  uint64_t evict_round_ = 0;     // the round that the next batch waits for; 0: it was not asked for yet
  uint64_t evict_again_ms_ = 0;  // nothing could go: not before this
};

}  // namespace maru::daemon
