// A pool's facts: for people, and in numbers for graphs. Nothing here walks the pool in one go: the census is taken in steps.
//
// Thread safety: one thread.
#pragma once

#include "daemon/metrics/snapshot.h"
#include "daemon/pool/core.h"
#include "daemon/pool/eviction/background.h"
#include "daemon/pool/eviction/held_blocks.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/inspect/audits.h"
#include "daemon/pool/inspect/host_lists.h"
#include "daemon/pool/inspect/pin_watch.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/memory/drain.h"
#include "daemon/pool/memory/room.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace maru::daemon {

class PoolStatus {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    Findings& findings;
    Queues& queues;
    RetiredBlocks& retired;
    HeldBlocks& held;
    Background& background;
    PoolRoom& room;
    Drain& drain;
    PinAges& pin_ages;
    Audits& audits;
    PinWatch& pin_watch;
    HostLists& host_lists;
  };
  explicit PoolStatus(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        findings_(below.findings),
        queues_(below.queues),
        retired_(below.retired),
        held_(below.held),
        background_(below.background),
        room_(below.room),
        drain_(below.drain),
        pin_ages_(below.pin_ages),
        audits_(below.audits),
        pin_watch_(below.pin_watch),
        host_lists_(below.host_lists) {}
  PoolStatus(const PoolStatus&) = delete;
  PoolStatus& operator=(const PoolStatus&) = delete;

  nlohmann::json status(const metrics::PageCensus& census) const;
  nlohmann::json lane(uint32_t lane) const;
  nlohmann::json list_regions(const nlohmann::json& request);
  nlohmann::json drain() const;
  // Counts the next pages. Returns true when the census is complete.
  bool take_census(metrics::PageCensus& census, uint64_t count) const;
  void fill(metrics::PoolSnapshot& snapshot);

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Findings& findings_;
  Queues& queues_;
  RetiredBlocks& retired_;
  HeldBlocks& held_;
  Background& background_;
  PoolRoom& room_;
  Drain& drain_;
  PinAges& pin_ages_;
  Audits& audits_;
  PinWatch& pin_watch_;
  HostLists& host_lists_;
};

}  // namespace maru::daemon
