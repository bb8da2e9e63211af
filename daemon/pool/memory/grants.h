// Regions on their way to clients and back, and FREE pages that a request takes.
//
//   (1) A region is granted with its pages FREE or in use, never OUT, and only where it has room.
//   (2) A region that no client rents is unused when it is empty, and orphaned, to be rented by the next client, when not.
//   (3) In a pool of several hosts an unused region is any host's, by one CAS.
//
// Cost: a grant reads the words of a region; the searches have budgets of pages (limits.h).
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/memory/room.h"
#include "daemon/pool/memory/search.h"

#include <cstdint>
#include <optional>
#include <span>

namespace maru::daemon {

class Grants {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Queues& queues;
    Evictor& evictor;
    PoolRoom& room;
  };
  explicit Grants(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        queues_(below.queues),
        evictor_(below.evictor),
        room_(below.room) {}
  Grants(const Grants&) = delete;
  Grants& operator=(const Grants&) = delete;

  // Gives a region to a lane. Returns how many runs of this length its FREE pages make.
  uint64_t grant_region(uint32_t index, LaneId owner, uint64_t run_pages);
  // Unused regions first, then regions whose owner is gone and which have FREE pages. Returns true when it got as many as a
  // turn gives: a client that wants more asks again.
  bool rent_regions(Search& search);
  // FREE pages of these regions become the asker's, even if another client rents them. Returns how many regions it has looked
  // at to their ends, or all of them when none is left to look at. Goes on in a region where the last look had no time for
  // more.
  uint64_t take_free(std::span<const uint32_t> in, Shortage& shortage, uint64_t* pages_left);
  // After its owner left, or when no client rents it: a region with pages in use waits for a new owner, an empty region is
  // unused.
  void settle_region(uint32_t index);
  // The same without a look at its pages, which the sweep has in its time.
  void orphan_region(uint32_t index);
  // A host that rents less than its share asks the host that rents the most. The other host may refuse. A region that it gives
  // up belongs to no host, and the first host that asks for a region rents it.
  void ask_other_hosts();

 private:
  bool claim_region(uint32_t index, LaneId owner);
  std::optional<bool> look_for_row(uint32_t index, uint64_t run_pages, uint64_t frees_now, uint64_t* pages_left);
  uint64_t frees() const;

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Queues& queues_;
  Evictor& evictor_;
  PoolRoom& room_;
  uint32_t free_scan_next_ = 0;  // so that requests with little time look at other regions than the last one
};

}  // namespace maru::daemon
