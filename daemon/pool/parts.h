// A pool is made of parts: each has its own folder, its own fields, and the parts below it. Here they are in their order, from
// the core up; scripts/check-structure holds them to it. pool.cc has the pool's life, turn.cc its turns, and calls.cc gives
// each call of the rest of marud to the part that does it.
//
// The shared words are a display of what stands in the parts, except the page words, which are the truth about pages for every
// process.
//
// Thread safety: one thread. Nothing that comes from shared memory is used without a check; every loop over shared links or
// words counts its steps against a limit that is known before it starts.
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
#include "daemon/pool/hosts/hosts.h"
#include "daemon/pool/hosts/own_slot.h"
#include "daemon/pool/hosts/wishes.h"
#include "daemon/pool/inspect/administration.h"
#include "daemon/pool/inspect/pool_status.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/memory/renting.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/reclaim/reclaim.h"
#include "daemon/pool/reclaim/recounts.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/removal/deletions.h"
#include "daemon/pool/restart/restart.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>

namespace maru::daemon {

// What a pool does now and then, as far as it is left: so much of each part.
struct Upkeep {
  uint64_t retired_lines = 0, held_lines = 0, sweep_pages = 0, count_pages = 0, feed_pages = 0, pin_slots = 0;
};

struct Pool::State final {
  PoolCore core;
  RegionTable regions{core};
  LaneTable lanes{core};

  PoolTenants tenants;
  Findings findings;
  PoolFeed feed{core, lanes, regions};
  Queues queues{core, regions, tenants};
  RetiredBlocks retired{core, regions, lanes, queues};
  Rounds rounds;
  HeldBlocks held{core, regions, lanes, queues, rounds};
  Recency recency{{core, lanes, regions, feed, findings, queues, retired, rounds, held}};
  Evictor evictor{{core, lanes, regions, tenants, feed, queues, held}};
  Background background{core, regions, queues, recency, evictor};
  KeyCells key_cells{{core, lanes, regions, tenants, queues, held, recency, evictor}};
  BucketRoom bucket_room{core, regions, queues, recency, evictor};
  Trees trees{{core, lanes, feed, queues, retired, evictor}};
  Deletions deletions{{core, lanes, evictor, trees}};
  Expired expired{{core, lanes, regions, recency, evictor, trees}};
  Poison poison{{core, lanes, regions, feed, findings, queues, trees}};
  PoolRoom room{core, regions};
  Grants grants{{core, lanes, regions, queues, evictor, room}};
  Sweep sweep{{core, lanes, regions, findings, queues, retired, rounds, expired, poison, grants}};
  Windows windows{{core, lanes, queues, held, evictor}};
  Takeovers takeovers{{core, lanes, regions, queues, evictor, room, grants}};
  Drain drain{{core, lanes, regions, evictor, grants}};
  Renting renting{{core, lanes, regions, tenants, queues, retired, held, recency, evictor, expired, room, grants, sweep,
                   windows, takeovers, drain}};
  Evictions evictions{{core, lanes, regions, tenants, queues, rounds, recency, evictor, sweep, renting}};
  PinAges pin_ages;
  Reclaim reclaim{{core, lanes, pin_ages, regions, tenants, findings, retired, recency, evictor, grants, renting}};
  Recounts recounts{{core, lanes, regions, findings, queues}};
  OwnSlot slot{core};
  EndedLanes ended{core, lanes, reclaim, slot};
  HostReclaims reclaims{{core, lanes, regions, tenants, findings, queues, recency, grants}};
  Wishes wishes{core, regions, grants, takeovers};
  Hosts hosts{{core, regions, queues, drain, slot, reclaims, wishes}};

  LateAnswers late{{core, queues, deletions, evictions}};
  Audits audits{
      {core, lanes, findings, queues, retired, recency, deletions, sweep, reclaim, recounts, ended, reclaims, late}};
  BlockLists blocks{{core, lanes, tenants, queues}};
  PinWatch pin_watch{{core, lanes, pin_ages, tenants, queues}};
  RegionHeat heat{{core, lanes, regions}};
  HostLists host_lists{{core, regions, reclaims, hosts}};
  BadMemoryCommands bad_memory{{core, lanes, poison, blocks}};
  LimitCommands limit_commands{{core, tenants, late}};
  PoolStatus status{{core, lanes, regions, tenants, findings, queues, retired, held, background, room, drain, pin_ages,
                     audits, pin_watch, host_lists}};
  Administration administration{{core, tenants, deletions, evictions, late, audits, blocks, pin_watch, heat, host_lists,
                                 bad_memory, limit_commands, status}};
  Restart restart{
      {core, lanes, regions, findings, queues, retired, recency, poison, room, grants, reclaim, recounts, audits}};

  uint64_t lines_before = 0;  // the meter, when the last turn ended
  uint32_t work_next = 0;     // what the next turn does first
  Upkeep upkeep;              // what is left until the next pause
  uint64_t last_upkeep_ms = 0, last_pin_look_ms = 0;

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
