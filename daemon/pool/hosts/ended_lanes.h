// Lanes whose clients have ended. Each is taken back at once, or waits here while a check at rest looks at the pool: a lane
// that is half taken back would look like damage.
//
//   (1) A waiting lane has no other client meanwhile.
//   (2) A lane of a slot that this host has lost is not touched: it may belong to another host's client by now.
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
  // Takes the lanes that waited and have no new client by now.
  std::vector<uint32_t> take();

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  Reclaim& reclaim_;
  OwnSlot& slot_;
  std::vector<LaneId> waiting_;
};

}  // namespace maru::daemon
