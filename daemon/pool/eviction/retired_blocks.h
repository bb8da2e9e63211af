// Blocks that are RETIRED by marud's lane and wait for the end of their pins: marud chose them, or a client left them to it.
//
//   (1) A page is here once, even if a client leaves it several times.
//   (2) The page of a block whose pins have ended becomes FREE, and its parent has a child less.
//
// Cost: for a block that is pinned where it was, a line a look; for any other, a line of each lane.
//
// Thread safety: one thread. If marud dies here: the page words name its lane, and the next marud finds them.
#pragma once

#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/waiting_block.h"
#include "daemon/pool/lanes/lane_table.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class RetiredBlocks {
 public:
  RetiredBlocks(PoolCore& core, RegionTable& regions, LaneTable& lanes, Queues& queues)
      : core_(core), regions_(regions), lanes_(lanes), queues_(queues) {}
  RetiredBlocks(const RetiredBlocks&) = delete;
  RetiredBlocks& operator=(const RetiredBlocks&) = delete;
  void set_up() { known_.resize(core_.pages()); }

  size_t size() const { return blocks_.size(); }
  void add(PageRef ref);
  // `lines`: of memory, to look for pins. `pages_left`: to walk for tails; clients wrote how long the runs are. Returns how
  // many of the next `blocks` were not looked at.
  size_t finish(uint64_t lines, uint64_t pages_left = kReclaimPagesPerTurn, size_t blocks = SIZE_MAX);
  void finish_all() { finish(kNever, 2 * core_.pages()); }

 private:
  PoolCore& core_;
  RegionTable& regions_;
  LaneTable& lanes_;
  Queues& queues_;
  PageBits known_;  // in blocks_
  std::vector<WaitingBlock> blocks_;
  size_t next_ = 0;
};

}  // namespace maru::daemon
