#include "daemon/pool/hosts/ended_lanes.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {

void EndedLanes::end(uint32_t lane) {
  if (core_.region.is_shared() && slot_.is_lost())
    lanes_.records[lane].phase = LaneRecord::Phase::kFree;
  else
    reclaim_.begin(lane);
}

bool EndedLanes::waits(LaneId lane) const {
  return std::find(waiting_.begin(), waiting_.end(), lane) != waiting_.end();
}

std::vector<uint32_t> EndedLanes::take() {
  std::vector<uint32_t> ended;
  for (const LaneId lane : std::exchange(waiting_, {}))
    if (lanes_.is_live(lane.lane) && lanes_.id(lane.lane) == lane) ended.push_back(lane.lane);
  return ended;
}

}  // namespace maru::daemon
