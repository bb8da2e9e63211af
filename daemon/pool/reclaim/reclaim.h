// Reclaim: takes back the holdings of a client that died or left. Its pins end soon; its page words are read slice by slice;
// then its regions, its overflow buckets, and the counts of parents that it may have left too high. Only then is the lane free.
//
// A client can forge all its words, and many clients can die at once. So every part has a budget of lines and goes on in
// the next turn. Pages to look at wait in queues that have each page once (Findings).
//
//   (1) Nothing is taken back before a proof that the client is gone, or its goodbye.
//   (2) The pins of all dead clients end before their pages are read, since a pin keeps another client's block from going.
//   (3) A lane is free only when all its holdings were taken back, so a later client never meets them.
//
// Cost: a pass over the pages for each lane, in turns.
//
// Thread safety: one thread. If marud dies here: the lane's identity says DEAD or its bit is set, and the next marud starts
// over.
#pragma once

#include "daemon/pool/findings.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/memory/renting.h"

#include <cstdint>

namespace maru::daemon {

class Reclaim {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    PinAges& pin_ages;
    RegionTable& regions;
    PoolTenants& tenants;
    Findings& findings;
    RetiredBlocks& retired;
    Recency& recency;
    Evictor& evictor;
    Grants& grants;
    Renting& renting;
  };
  explicit Reclaim(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        pin_ages_(below.pin_ages),
        regions_(below.regions),
        tenants_(below.tenants),
        findings_(below.findings),
        retired_(below.retired),
        recency_(below.recency),
        evictor_(below.evictor),
        grants_(below.grants),
        renting_(below.renting) {}
  Reclaim(const Reclaim&) = delete;
  Reclaim& operator=(const Reclaim&) = delete;

  // After proof that the client of this lane is gone, or after its goodbye.
  void begin(uint32_t lane);
  // Takes back a part of the holdings of dead clients. Returns true when more work can be done right away.
  bool step(const LineBudget& budget);
  // As far as so many lines last. Returns true when the lane is free again.
  bool reclaim_lane(uint32_t lane, uint64_t lines);
  // At the end of marud: all lanes that are being taken back, in one walk over the pages, within the `count` pages left.
  void finish_lanes(uint64_t count);
  // The findings become work, as far as the lines last: RETIRED blocks, and blocks that no bucket names.
  void take_findings(uint64_t lines = kLinesPerTurn);

 private:
  bool end_pins(uint32_t lane, const LineBudget& budget);
  void end_pins_of_the_dead(const LineBudget& budget);
  bool settle_lane(uint32_t lane, const LineBudget& budget);
  void finish_lane(uint32_t lane);
  void evict_orphans(const LineBudget& budget);

  PoolCore& core_;
  LaneTable& lanes_;
  PinAges& pin_ages_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Findings& findings_;
  RetiredBlocks& retired_;
  Recency& recency_;
  Evictor& evictor_;
  Grants& grants_;
  Renting& renting_;
};

}  // namespace maru::daemon
