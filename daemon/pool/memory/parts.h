// The parts that hand out memory, in their order: rooms and grants of regions, up to a request for memory.
#pragma once

#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/memory/drain.h"
#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/memory/grants.h"
#include "daemon/pool/memory/renting.h"
#include "daemon/pool/memory/room.h"
#include "daemon/pool/memory/sweep.h"
#include "daemon/pool/memory/takeovers.h"
#include "daemon/pool/memory/windows.h"
#include "daemon/pool/removal/parts.h"

namespace maru::daemon {

struct MemoryParts {
  MemoryParts(const Ground& at, EvictionParts& eviction, RemovalParts& removal)
      : room(at.core, at.regions),
        grants({at.core, at.lanes, at.regions, eviction.queues, eviction.evictor, room}),
        sweep({at.core, at.lanes, at.regions, at.findings, eviction.queues, eviction.retired, eviction.rounds,
               removal.expired, removal.poison, grants}),
        windows({at.core, at.lanes, eviction.queues, eviction.held, eviction.evictor}),
        takeovers({at.core, at.lanes, at.regions, eviction.queues, eviction.evictor, room, grants}),
        drain({at.core, at.lanes, at.regions, eviction.evictor, grants}),
        renting({at.core, at.lanes, at.regions, at.tenants, eviction.queues, eviction.retired, eviction.held,
                 eviction.recency, eviction.evictor, removal.expired, room, grants, sweep, windows, takeovers, drain}),
        evictions({at.core, at.lanes, at.regions, at.tenants, eviction.queues, eviction.rounds, eviction.recency,
                   eviction.evictor, sweep, renting}) {}

  PoolRoom room;
  Grants grants;
  Sweep sweep;
  Windows windows;
  Takeovers takeovers;
  Drain drain;
  Renting renting;
  Evictions evictions;
};

}  // namespace maru::daemon
