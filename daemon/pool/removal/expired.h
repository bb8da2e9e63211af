// Expired blocks that lookups met or the sweep found. A client that wants to store under such a key again waits for the whole
// tree below it, all of which has expired.
//
//   (1) An expired root goes after all blocks below it, so its key is free only then.
//   (2) Blocks that a turn has no time for wait in Recency::met_expired, which is bounded: the sweep comes there, too.
//
// Cost: for each block a look at all lanes; a walk over the pool for roots with children, with a pause before the next walk.
//
// Thread safety: one thread. If marud dies here: the next marud's sweep finds them.
#pragma once

#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/removal/trees.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace maru::daemon {

class Expired {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Recency& recency;
    Evictor& evictor;
    Trees& trees;
  };
  explicit Expired(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        recency_(below.recency),
        evictor_(below.evictor),
        trees_(below.trees) {}
  Expired(const Expired&) = delete;
  Expired& operator=(const Expired&) = delete;

  // Evicts expired blocks without children, and their ancestors that become childless and are expired, too. At most `limit`,
  // and no more than a turn may cost: each is a look at all lanes, whose clients decide how much there is to read. The rest is
  // for later turns.
  void evict(std::vector<uint32_t> leaves, uint64_t limit);
  // Returns true when more work can be done right away.
  bool step();

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Recency& recency_;
  Evictor& evictor_;
  Trees& trees_;
  std::vector<PageRef> roots_;  // expired blocks with children that lookups met: the next walk takes them away
  std::optional<TreeWalk> walk_;
  uint64_t again_ms_ = 0;
};

}  // namespace maru::daemon
