// Taking over another marud's pool. Clients may be at work meanwhile: lanes that the identities call live stay live until their
// processes are proven gone, and their holdings are not touched. Memory that names no process is freed, counts of children are
// checked in one pass, and the lists are built anew from the ticks. After a loss of power each block whose bytes changed is
// dropped, and bookkeeping that the audit finds damaged is repaired.
//
//   (1) A marud that dies here leaves the next marud the same work.
//
// Cost: some passes over the pool, before it is served; verify() reads every byte.
//
// Thread safety: one thread; verify() has others, which read.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/inspect/audits.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/memory/grants.h"
#include "daemon/pool/memory/room.h"
#include "daemon/pool/reclaim/reclaim.h"
#include "daemon/pool/reclaim/recounts.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/removal/poison.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace maru::daemon {

class Restart {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Findings& findings;
    Queues& queues;
    RetiredBlocks& retired;
    Recency& recency;
    Poison& poison;
    PoolRoom& room;
    Grants& grants;
    Reclaim& reclaim;
    Recounts& recounts;
    Audits& audits;
  };
  explicit Restart(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        findings_(below.findings),
        queues_(below.queues),
        retired_(below.retired),
        recency_(below.recency),
        poison_(below.poison),
        room_(below.room),
        grants_(below.grants),
        reclaim_(below.reclaim),
        recounts_(below.recounts),
        audits_(below.audits) {}
  Restart(const Restart&) = delete;
  Restart& operator=(const Restart&) = delete;

  // In this order. ret_begun: lanes that the last marud was taking back.
  void adopt_lanes(std::vector<LaneId>* ret_begun);
  void adopt_regions();
  void adopt_pages(std::span<const LaneId> begun);
  void finish_begun_lanes(std::span<const LaneId> begun);

  // `turn`: of the pool; true while there is more to do.
  Result<Pool::Verified> verify(const Pool::VerifyProgress& progress, const std::function<bool()>& turn);

 private:
  Result<void> verify_payloads(const Pool::VerifyProgress& progress, std::span<uint8_t> bad, Pool::Verified& verified,
                               std::vector<uint32_t>& ret_unreadable) const;
  void drop_bad(std::span<uint8_t> bad, Pool::Verified& verified);
  Audits::AtRest repair_bookkeeping(Pool::Verified& verified);  // repair.cc

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Findings& findings_;
  Queues& queues_;
  RetiredBlocks& retired_;
  Recency& recency_;
  Poison& poison_;
  PoolRoom& room_;
  Grants& grants_;
  Reclaim& reclaim_;
  Recounts& recounts_;
  Audits& audits_;
};

}  // namespace maru::daemon
