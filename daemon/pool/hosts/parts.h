// The parts of a pool that several hosts share, in their order: this host's slot, and the watch over the others.
#pragma once

#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/hosts/ended_lanes.h"
#include "daemon/pool/hosts/host_reclaims.h"
#include "daemon/pool/hosts/hosts.h"
#include "daemon/pool/hosts/own_slot.h"
#include "daemon/pool/hosts/wishes.h"
#include "daemon/pool/memory/parts.h"
#include "daemon/pool/reclaim/parts.h"

namespace maru::daemon {

struct HostParts {
  HostParts(const Ground& at, EvictionParts& eviction, MemoryParts& memory, ReclaimParts& reclaiming)
      : slot(at.core),
        ended(at.core, at.lanes, reclaiming.reclaim, slot),
        reclaims(
            {at.core, at.lanes, at.regions, at.tenants, at.findings, eviction.queues, eviction.recency, memory.grants}),
        wishes(at.core, at.regions, memory.grants, memory.takeovers),
        others({at.core, at.regions, eviction.queues, memory.drain, slot, reclaims, wishes}) {}

  OwnSlot slot;
  EndedLanes ended;
  HostReclaims reclaims;
  Wishes wishes;
  Hosts others;
};

}  // namespace maru::daemon
