// The parts that take back the holdings of dead clients, in their order.
#pragma once

#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/memory/parts.h"
#include "daemon/pool/reclaim/reclaim.h"
#include "daemon/pool/reclaim/recounts.h"

namespace maru::daemon {

struct ReclaimParts {
  ReclaimParts(const Ground& at, EvictionParts& eviction, MemoryParts& memory)
      : reclaim({at.core, at.lanes, at.pin_ages, at.regions, at.tenants, at.findings, eviction.retired,
                 eviction.recency, eviction.evictor, memory.grants, memory.renting}),
        recounts({at.core, at.lanes, at.regions, at.findings, eviction.queues}) {}

  Reclaim reclaim;
  Recounts recounts;
};

}  // namespace maru::daemon
