// A pool is made of parts: each has its own folder, its own fields, and the parts below it. Here they are in their order, from
// the core up; scripts/check-structure holds them to it. pool.cc has the pool's life, turn.cc its turns, and calls.cc gives
// each call of the rest of marud to the part that does it.
//
// The shared words only show the parts' truth, except the page words, which are the truth about pages for every
// process.
//
// Thread safety: one thread. Nothing that comes from shared memory is used without a check; every loop over shared links or
// words counts its steps against a limit that is known before it starts.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/feed/pool_feed.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/hosts/parts.h"
#include "daemon/pool/inspect/parts.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/memory/parts.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/reclaim/parts.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/removal/parts.h"
#include "daemon/pool/restart/restart.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>

namespace maru::daemon {

// The work that comes back after a pause, as far as it is left: so much of each part.
struct Upkeep {
  uint64_t retired_lines = 0, held_lines = 0, sweep_pages = 0, count_pages = 0, feed_pages = 0, pin_slots = 0;
  uint64_t last_ms = 0, last_pin_look_ms = 0;
};

// Where the turns of a pool are.
struct TurnState {
  uint64_t lines_before = 0;  // the meter, when the last turn ended
  uint32_t work_next = 0;     // the next turn begins with this work
  Upkeep upkeep;
};

struct Pool::State final {
  PoolCore core;
  RegionTable regions{core};
  LaneTable lanes{core};
  PinAges pin_ages;
  PoolTenants tenants;
  Findings findings;
  PoolFeed feed{core, lanes, regions};

  EvictionParts eviction{ground()};
  RemovalParts removal{ground(), eviction};
  MemoryParts memory{ground(), eviction, removal};
  ReclaimParts reclaiming{ground(), eviction, memory};
  HostParts hosts{ground(), eviction, memory, reclaiming};
  InspectParts inspect{ground(), eviction, removal, memory, reclaiming, hosts};
  Restart restart{{core, lanes, regions, findings, eviction.queues, eviction.retired, eviction.recency, removal.poison,
                   memory.room, memory.grants, reclaiming.reclaim, reclaiming.recounts, inspect.audits}};

  TurnState turns;

  Ground ground() { return {core, regions, lanes, pin_ages, tenants, findings, feed}; }
  // pool.cc
  Result<void> begin(uint64_t now);
  bool keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const;
  Result<LaneGrant> attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation,
                           FileDescriptor* ret_control);
  void leave_slot();
  // turn.cc
  bool turn();
  bool do_work(uint32_t which, const LineBudget& budget);
  bool step_upkeep(const LineBudget& budget);
  void end_turn();
};

}  // namespace maru::daemon
