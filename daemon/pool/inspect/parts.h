// The parts that answer administrators, in their order. JSON lives here alone.
#pragma once

#include "daemon/pool/eviction/parts.h"
#include "daemon/pool/hosts/parts.h"
#include "daemon/pool/inspect/administration.h"
#include "daemon/pool/inspect/audits.h"
#include "daemon/pool/inspect/bad_memory.h"
#include "daemon/pool/inspect/block_lists.h"
#include "daemon/pool/inspect/eviction_spans.h"
#include "daemon/pool/inspect/host_lists.h"
#include "daemon/pool/inspect/late_answers.h"
#include "daemon/pool/inspect/limit_commands.h"
#include "daemon/pool/inspect/pin_watch.h"
#include "daemon/pool/inspect/pool_status.h"
#include "daemon/pool/inspect/region_heat.h"
#include "daemon/pool/memory/parts.h"
#include "daemon/pool/reclaim/parts.h"
#include "daemon/pool/removal/parts.h"

namespace maru::daemon {

struct InspectParts {
  InspectParts(const Ground& at, EvictionParts& eviction, RemovalParts& removal, MemoryParts& memory,
               ReclaimParts& reclaiming, HostParts& hosts)
      : late({at.core, eviction.queues, removal.deletions, memory.evictions}),
        audits({at.core, at.lanes, at.findings, eviction.queues, eviction.retired, eviction.recency, removal.deletions,
                memory.sweep, reclaiming.reclaim, reclaiming.recounts, hosts.ended, hosts.reclaims, late}),
        blocks({at.core, at.lanes, at.tenants, eviction.queues}),
        pin_watch({at.core, at.lanes, at.pin_ages, at.tenants, eviction.queues}),
        heat({at.core, at.lanes, at.regions}),
        host_lists({at.core, at.regions, hosts.reclaims, hosts.others}),
        bad_memory({at.core, at.lanes, removal.poison, blocks}),
        limit_commands({at.core, at.tenants, late}),
        status({at.core, at.lanes, at.regions, at.tenants, at.findings, eviction.queues, eviction.retired,
                eviction.held, eviction.background, memory.room, memory.drain, at.pin_ages, audits, pin_watch,
                host_lists}),
        administration({at.core, at.tenants, removal.deletions, memory.evictions, late, audits, blocks, pin_watch, heat,
                        host_lists, bad_memory, limit_commands, status}),
        eviction_spans(at.core) {}

  LateAnswers late;
  Audits audits;
  BlockLists blocks;
  PinWatch pin_watch;
  RegionHeat heat;
  HostLists host_lists;
  BadMemoryCommands bad_memory;
  LimitCommands limit_commands;
  PoolStatus status;
  Administration administration;
  EvictionSpans eviction_spans;
};

}  // namespace maru::daemon
