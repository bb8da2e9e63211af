// Blocks that are out of the queues because a pin was seen, and the passes that bring them back when their pins have ended.
//
//   (1) Queues::held has the page of each block here, and no other page.
//   (2) A pass looks at each block that was held when it began. It walks down. So the block that takes the place of a
//       returning block was looked at in this pass, or was not held when it began.
//
// Cost: for a block that is pinned where it was, a line a look; for any other, a line of each lane.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/rounds.h"
#include "daemon/pool/eviction/waiting_block.h"
#include "daemon/pool/lanes/lane_table.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class HeldBlocks {
 public:
  HeldBlocks(PoolCore& core, RegionTable& regions, LaneTable& lanes, Queues& queues, Rounds& rounds)
      : core_(core), regions_(regions), lanes_(lanes), queues_(queues), rounds_(rounds) {}
  HeldBlocks(const HeldBlocks&) = delete;
  HeldBlocks& operator=(const HeldBlocks&) = delete;

  size_t size() const { return blocks_.size(); }
  void hold(PageRef ref);
  // Whether a work waits for a pass that begins now, or began since.
  bool is_pass_due() const;
  // Blocks whose pins ended return to their old places in the queues. Goes on with the pass under way as far as these lines
  // last, to its end at most, or begins a pass.
  void look(uint64_t lines);
  // In one go, even if a work waits for the pass under way.
  void look_at_all();

 private:
  void take_back(const std::vector<uint32_t>& blocks, uint64_t round);

  PoolCore& core_;
  RegionTable& regions_;
  LaneTable& lanes_;
  Queues& queues_;
  Rounds& rounds_;
  std::vector<WaitingBlock> blocks_;
  size_t left_ = 0;     // of the pass: those behind were looked at, or came later
  uint64_t round_ = 0;  // the number of the pass that is under way, or was last
};

}  // namespace maru::daemon
