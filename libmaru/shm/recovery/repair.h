// Repair: puts right the findings of an audit at rest, one at a time, for a pool that lost its power and has no clients yet. It
// drops each thing that cannot be believed: an entry, a block, a claim, an overflow bucket. The rest of the pool stays. A drop
// may leave findings of its own, such as a child without its parent. So the caller audits and repairs again, a bounded number
// of times, until nothing is found (daemon/pool/restart/repair.cc).
//
// Thread safety: no other process works in the pool. No system call, allocation, log or clock. If the process dies here: the
// pool is damaged as before, or less; the next audit finds the rest.
#pragma once

#include "libmaru/shm/audit/audit.h"

#include <cstdint>

namespace maru::shm {

// The things that the repair of a finding takes away.
enum class Repair : uint8_t {
  kNone,    // there is no repair: for regions and queues, which marud writes anew when it starts
  kBlock,   // the block; its entry and its tails are found by the next audit
  kPage,    // a page that is no block becomes FREE, or OUT in an unrented region; POISONED stays
  kCount,   // nothing: the parent's children are counted again
  kEntry,   // a registry entry, or all of an overflow bucket
  kClaim,   // a claim without an entry
  kBucket,  // the owner of an overflow bucket, or the link to it
  kLane,    // the holdings of a lane: no process has it
  kCell,    // the owner of a key cell
  kTenant,  // a tenant's name, or its record
};
inline constexpr uint32_t kRepairCount = uint32_t(Repair::kTenant) + 1;
const char* repair_name(Repair repair);  // "blocks dropped": for the log
Repair repair_of(Invariant invariant);

class RepairSink {
 public:
  virtual void block_goes(PageRef ref) = 0;         // the key can still be read, unless it is the damaged part
  virtual void count_is_wrong(PageRef parent) = 0;  // to be counted again when all findings of the audit are repaired

 protected:
  ~RepairSink() = default;
};

// `marud_lane`: the lane of the marud that repairs, which keeps its totals. Returns the kind of thing that it took away; kNone
// also when an earlier repair has put the finding right.
Repair repair(const ControlRegion& region, uint32_t marud_lane, const Finding& finding, RepairSink& sink);

}  // namespace maru::shm
