// The sweep compares the page words with all of marud's own records about pages. It finds blocks whose touches were lost,
// entries of blocks that are gone, expired blocks, and pages that dead clients have left. It also finds bad memory of another
// host's former regions, and regions that have become empty.
//
//   (1) Each page of the pool is looked at in the end, for any words of clients.
//
// Cost: some lines a page; a step ends early where clients made its pages costly.
//
// Thread safety: one thread. If marud dies here: nothing of this is in shared memory.
#pragma once

#include "daemon/pool/memory/grants.h"
#include "daemon/pool/removal/expired.h"
#include "daemon/pool/removal/poison.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class Sweep {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Findings& findings;
    Queues& queues;
    RetiredBlocks& retired;
    Rounds& rounds;
    Expired& expired;
    Poison& poison;
    Grants& grants;
  };
  explicit Sweep(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        findings_(below.findings),
        queues_(below.queues),
        retired_(below.retired),
        rounds_(below.rounds),
        expired_(below.expired),
        poison_(below.poison),
        grants_(below.grants) {}
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // The next `count` pages, region by region; fewer where clients' words make them costly. Returns how many.
  uint64_t step(uint64_t count);
  void sweep_shelf(uint32_t shelf);

 private:
  void sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Findings& findings_;
  Queues& queues_;
  RetiredBlocks& retired_;
  Rounds& rounds_;
  Expired& expired_;
  Poison& poison_;
  Grants& grants_;
  uint64_t next_ = 0;             // page
  uint32_t free_ = 0, used_ = 0;  // pages of the region that it is in
  uint64_t walked_ = 0;           // pages, for the tails of the dead
};

}  // namespace maru::daemon
