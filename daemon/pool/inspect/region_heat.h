// The regions of a pool as a picture: which client rents each, how full it is, and how much it is used. Nothing here reads a
// page. The last count says how full a region is (eviction/background.h), and the touches say how much it is used.
//
// Heat. Each touch that marud reads adds 1 to its region, and all regions cool: heat halves every eight seconds.
// A region with r uses a second so comes to rest at a heat of r * 8 s / ln 2, from which the rate is told.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/region_table.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace maru::daemon {

class RegionHeat {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
  };
  explicit RegionHeat(const Below& below) : core_(below.core), lanes_(below.lanes), regions_(below.regions) {}
  RegionHeat(const RegionHeat&) = delete;
  RegionHeat& operator=(const RegionHeat&) = delete;

  void cool();
  nlohmann::json map() const;

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  uint64_t last_cooling_ms_ = 0;
};

}  // namespace maru::daemon
