// The parts of removal, in their order: blocks that go because of an order, their age, or bad memory.
#pragma once

#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/removal/deletions.h"
#include "daemon/pool/removal/expired.h"
#include "daemon/pool/removal/poison.h"
#include "daemon/pool/removal/trees.h"

namespace maru::daemon {

struct RemovalParts {
  RemovalParts(const Ground& at, EvictionParts& eviction)
      : trees({at.core, at.lanes, at.feed, eviction.queues, eviction.retired, eviction.evictor}),
        deletions({at.core, at.lanes, eviction.evictor, trees}),
        expired({at.core, at.lanes, at.regions, eviction.recency, eviction.evictor, trees}),
        poison({at.core, at.lanes, at.regions, at.feed, at.findings, eviction.queues, trees}) {}

  Trees trees;
  Deletions deletions;
  Expired expired;
  Poison poison;
};

}  // namespace maru::daemon
