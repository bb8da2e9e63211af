// The parts of eviction, in their order: how cold blocks are, which of them go, and when they go without a request.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/background.h"
#include "daemon/pool/eviction/bucket_room.h"
#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/held_blocks.h"
#include "daemon/pool/eviction/key_cells.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/eviction/rounds.h"
#include "daemon/pool/feed/pool_feed.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/tenants/pool_tenants.h"

namespace maru::daemon {

// The parts of a pool below eviction, on which all others stand.
struct Ground {
  PoolCore& core;
  RegionTable& regions;
  LaneTable& lanes;
  PinAges& pin_ages;
  PoolTenants& tenants;
  Findings& findings;
  PoolFeed& feed;
};

struct EvictionParts {
  explicit EvictionParts(const Ground& at)
      : queues(at.core, at.regions, at.tenants),
        retired(at.core, at.regions, at.lanes, queues),
        held(at.core, at.regions, at.lanes, queues, rounds),
        recency({at.core, at.lanes, at.regions, at.feed, at.findings, queues, retired, rounds, held}),
        evictor({at.core, at.lanes, at.regions, at.tenants, at.feed, queues, held}),
        background(at.core, at.regions, queues, recency, evictor),
        key_cells({at.core, at.lanes, at.regions, at.tenants, queues, held, recency, evictor}),
        bucket_room(at.core, at.regions, queues, recency, evictor) {}

  Queues queues;
  RetiredBlocks retired;
  Rounds rounds;
  HeldBlocks held;
  Recency recency;
  Evictor evictor;
  Background background;
  KeyCells key_cells;
  BucketRoom bucket_room;
};

}  // namespace maru::daemon
