// Takeover: a whole region of another client, for a client that gets no memory in a gentler way. docs/format.md, "A region is
// taken from its owner", has the steps and the state after a death at each. Its old owner is told, or finds the region's word.
//
// From which client: first from clients that rent more than their share, if the asker rents less than its own. The share is the
// pool's regions divided by the number of clients that rent any, with the asker. So a client that loses a region keeps its
// share and does not take the region back: takeovers come to an end. As the last thing before a refusal: from any client.
//
// Which region: the region with the fewest blocks, none of them pinned, where the blocks that may go and the pages that no
// client uses make room for the request. Buffers that the old owner is filling stay the owner's.
//
//   (1) Between two turns the region on its way is DRAINING and no client's. When the asker ends, or has got memory otherwise,
//       the region becomes an orphan.
//   (2) The result of a look is a hint; eviction looks again, block by block.
//
// Cost: a pass over the pin slots in use, and over the page words of some regions; once a region, not once a store. A takeover
// goes on over as many turns as it takes, and each turn spends from the lines that its request may read.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/memory/grants.h"

#include <cstdint>

namespace maru::daemon {

class Takeovers {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Queues& queues;
    Evictor& evictor;
    PoolRoom& room;
    Grants& grants;
  };
  explicit Takeovers(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        queues_(below.queues),
        evictor_(below.evictor),
        room_(below.room),
        grants_(below.grants) {}
  Takeovers(const Takeovers&) = delete;
  Takeovers& operator=(const Takeovers&) = delete;

  uint64_t pin_lines() const;  // of one lane
  // Returns false if there is no region to take.
  bool begin(Search& search, TakeFrom whom);
  // Goes on with the takeover as far as the lines of this turn last. When it is over search.takeover is empty, and a region was
  // taken or there is none to take.
  void step(Search& search);
  // Its request is over before the region is the asker's.
  void end(Search& search);

  // -- the steps, also for a region that another host asks for (hosts/wishes.h) ---------------------------------------
  // Regions with a page that some lane pins, lane by lane. Returns true at the end.
  bool look_for_pins(Takeover& takeover, Shortage& shortage) const;
  // Reads the candidates, and keeps the outlook of the best one. Returns true at the end.
  bool choose_region(Takeover& takeover, Shortage& shortage) const;
  // Whether it is still as it was when the lines of an earlier turn were used up.
  bool is_still_anothers(const Takeover& takeover, LaneId asker) const;
  void close_region(Takeover& takeover, Shortage& shortage);
  // Returns true at the end.
  bool empty_region(Takeover& takeover, Shortage& shortage);

 private:
  void sort_candidates(Takeover& takeover) const;
  RegionOutlook look_at_region(uint32_t index) const;
  void hand_over(Takeover& takeover, Shortage& shortage);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Queues& queues_;
  Evictor& evictor_;
  PoolRoom& room_;
  Grants& grants_;
};

}  // namespace maru::daemon
