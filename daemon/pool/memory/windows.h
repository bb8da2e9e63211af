// Room for a run of k pages among blocks of other sizes. Candidates are all windows of k pages that hold only FREE pages and
// whole blocks that may go. The best window has the coldest warmest block in the order of the policy; among equal windows,
// fewer pages in use.
//
// Example, k = 2, last uses of one-page blocks: [9][FREE][3][4][1]: windows cost 9, 3, 4, 4; {FREE, 3} is taken.
//
//   (1) A window is emptied only when no process pins any block of it.
//
// Cost: one pass over the words of the regions, a running maximum over each window, and a sort of the cheapest. In a large pool
// one turn of a request sees a part, and the next turn goes on there. A block whose pin was seen is held, so that no other
// window costs another look at it.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/evictor.h"

#include <cstdint>
#include <span>

namespace maru::daemon {

class Windows {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    Queues& queues;
    HeldBlocks& held;
    Evictor& evictor;
  };
  explicit Windows(const Below& below)
      : core_(below.core), lanes_(below.lanes), queues_(below.queues), held_(below.held), evictor_(below.evictor) {}
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Pages of one region among which a turn looks for windows of so many pages at once; and of all regions.
  uint64_t part(uint64_t run_pages) const;
  uint64_t pages(uint64_t run_pages) const;
  // Returns true when no page is wanted any more.
  bool evict(std::span<const uint32_t> in, Shortage& shortage);

 private:
  enum class Look : uint8_t { kMayGo, kMustStay, kUnfinished };
  Look may_all_go(std::span<const uint32_t> heads, Shortage& shortage);
  bool empty_window(uint32_t first, Shortage& shortage);

  PoolCore& core_;
  LaneTable& lanes_;
  Queues& queues_;
  HeldBlocks& held_;
  Evictor& evictor_;
  uint32_t next_ = 0;  // page: where a search goes on that had not time for all
};

}  // namespace maru::daemon
