// Lanes whose clients have ended. Each is taken back at once, or waits here while a check at rest looks at the pool: what is
// found of a lane that begins to be taken back would be taken for damage.
//
//   (1) A lane that waits is no other client's meanwhile.
//   (2) A lane of a slot that this host has lost is not touched: it may be another host's client's by now.
//
// Cost: memory of marud's own. Thread safety: one thread.
#pragma once

#include "daemon/pool/hosts/own_slot.h"
#include "daemon/pool/reclaim/reclaim.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class EndedLanes {
 public:
  EndedLanes(PoolCore& core, LaneTable& lanes, Reclaim& reclaim, OwnSlot& slot)
      : core_(core), lanes_(lanes), reclaim_(reclaim), slot_(slot) {}
  EndedLanes(const EndedLanes&) = delete;
  EndedLanes& operator=(const EndedLanes&) = delete;

  void end(uint32_t lane);
  void put_off(uint32_t lane) { waiting_.push_back(lanes_.id(lane)); }
  const std::vector<LaneId>& waiting() const { return waiting_; }
  bool waits(LaneId lane) const;
  // Those that waited and are not another life's by now.
  std::vector<uint32_t> take();

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  Reclaim& reclaim_;
  OwnSlot& slot_;
  std::vector<LaneId> waiting_;
};

}  // namespace maru::daemon
