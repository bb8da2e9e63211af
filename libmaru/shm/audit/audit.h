// The auditor: every invariant of docs/format.md as one read-only function with a name. Unit tests, the simulator,
// `marudctl check` and marud's start use the same ones.
//
// Two kinds. An invariant that holds *always* speaks of one word, or of words between two equal readings of one word; it may be
// looked at while clients work. An invariant that holds *at rest* is true when no live lane has an open operation and
// everything that dead lanes held was reclaimed. A live audit looks again at each finding, and reports only findings that it
// sees unchanged kConfirmations times.
//
// Nothing here follows a value from shared memory that was not compared with its limit; every walk counts its steps. No
// allocation: the caller brings the scratch memory. If the process dies here: nothing was written.
#pragma once

#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/region/control_region.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::shm {

enum class Invariant : uint8_t {
  kPageState,         // always   the state is one of the nine
  kPageLow,           // always   the low bits fit the state
  kPageLane,          // at rest  RESERVED, SEALED and RETIRED name a live lane of this time
  kPageSealed,        // at rest  no page is SEALED
  kTail,              // always   a TAIL leads to a head in its region whose run covers it
  kRunLength,         // always   a block's run is one page or more and ends in its region
  kRunTails,          // always   a visible block's further pages are TAIL and name their distance, or POISONED
  kBlockLength,       // always   the payload fits the run
  kBlockMetadata,     // always   the metadata is not too long and ends in the run; there is none without its flag
  kBlockDetail,       // always   reserved bits of the detail line are zero, the publisher's lane is one
  kBlockKey,          // always   the key's kind, length and place fit each other; a long key's cell names the block
  kBlockDigest,       // always   the digest is the digest of the stored key
  kBlockParent,       // always   the parent of READY, RETIRING and RETIRED is that life of a page, READY, with children
  kBlockChain,        // always   depth and chain sum continue the parent's
  kBlockExpiry,       // always   a child expires no later than its parent
  kChildrenAtLeast,   // always   a parent counts at least its READY, RETIRING and RETIRED children
  kChildrenExact,     // at rest  and no more, but for POISONED ones
  kBlockRegistered,   // at rest  a READY block without pins is in the registry
  kBucketBits,        // always   slots of the overflow bucket are valid only with the overflow flag
  kBucketOverflow,    // always   a flagged bucket's link leads to an overflow bucket that names it as its home
  kBucketLink,        // at rest  so does a link without the flag
  kSlotLocation,      // always   a valid slot names that life of a page, READY, RETIRING or RETIRED
  kSlotDigest,        // always   its tag is the block's and the bucket is the block's home
  kBucketDuplicate,   // always   no key is visible twice
  kSlotClaim,         // at rest  a slot that is not valid claims nothing for a page that is still in that life
  kOverflowOwner,     // always   an overflow bucket's owner word is zero, or names a home bucket and a lane
  kOverflowLinked,    // at rest  an owned overflow bucket is linked by its home
  kOverflowLane,      // at rest  its lane is live, or none
  kOverflowClaim,     // at rest  an overflow bucket without owner claims nothing, as kSlotClaim
  kRegionWord,        // always   known state, a host and a lane of this pool
  kRegionLane,        // at rest  a RENTED region's lane is live
  kRegionUnused,      // always   pages of an UNUSED region are OUT or POISONED
  kQueueLinks,        // queues   links stay in the region and in the queue, and agree both ways
  kQueueEnds,         // queues   every entry is reached from a cold end: there is no cycle
  kLaneBitmap,        // always   no bit beyond the last lane
  kLaneIdentity,      // always   known state, reserved bits zero, a lock of a live lane alone
  kLaneInUse,         // at rest  a lane's bit is set if and only if its identity is not free
  kLaneLive,          // at rest  a lane in use is live
  kLaneUnused,        // at rest  a lane that is not in use has no pin, intent, touch or account
  kPinPage,           // always   a pin slot is zero or names a page of the pool
  kPinSet,            // always   a pin lies in the set of its page, or no evictor would see it
  kPinHolds,          // at rest  a pin's page is in that life and READY, RETIRING or RETIRED
  kPinOverflow,       // at rest  the overflow count is the number of used overflow slots
  kLaneIntent,        // always   an intent is zero or names a page of the pool
  kLaneIntentDone,    // at rest  no intent is open
  kExtentOwner,       // always   a key cell's owner is zero or names a page of the pool
  kTenantName,        // always   a tenant record that has a name has its id
  kTenantPlace,       // always   a used tenant record is where a client looks for it, and the only one of its id
  kLaneAccounts,      // always   a lane's account is where its tenant is looked for; an unused one is zero
  kLaneAccountsDone,  // at rest  nothing is in flight in an account
};
inline constexpr uint32_t kInvariantCount = uint32_t(Invariant::kLaneAccountsDone) + 1;
static_assert(kInvariantCount <= 64, "InvariantSet is one word");

// The things that Finding::index counts.
enum class AuditPlace : uint8_t { kPool, kPage, kBucket, kOverflowBucket, kRegion, kLane, kKeyExtent, kTenant };
// The times at which an invariant holds.
enum class AuditClass : uint8_t {
  kAlways,
  kAtRest,
  kQueues,  // between two steps of the marud that writes the queues
};

struct InvariantInfo {
  const char* name;  // "page.state": stable, for people and for JSON
  AuditPlace place;
  AuditClass when;
};
const InvariantInfo& invariant_info(Invariant invariant);

struct InvariantSet {
  uint64_t bits = 0;
  constexpr InvariantSet with(Invariant i) const { return {bits | 1ull << uint32_t(i)}; }
  constexpr bool has(Invariant i) const { return (bits >> uint32_t(i) & 1) != 0; }
};

struct Finding {
  Invariant invariant;
  uint32_t slot = 0;  // of a bucket or of a lane's pins (overflow slots after the sets), else 0
  uint64_t index = 0;
  uint64_t words[3] = {};  // as they were seen; the invariant's function says which words
  friend constexpr bool operator==(const Finding&, const Finding&) = default;
};

class FindingSink {
 public:
  virtual void found(const Finding& finding) = 0;

 protected:
  ~FindingSink() = default;
};

enum class AuditMode : uint8_t {
  kLive,       // by any program, while clients and marud work: invariants that hold always
  kLiveOwner,  // by the marud that writes the queues of eviction: these too
  kExact,      // at rest: a file, the simulator between runs, `marudctl check --quiesce`
};

inline constexpr uint32_t kConfirmations = 3;
// A damaged pool may break one invariant once for every page.
inline constexpr uint64_t kFindingsReportedDefault = 1000;

struct AuditRequest {
  AuditMode mode = AuditMode::kLive;
  LaneSet live;       // lanes whose processes are not known to be dead; lane 0 is always taken as live
  InvariantSet skip;  // invariants that the caller cannot promise: a simulator that makes digests up has no keys
  uint64_t findings_max = kFindingsReportedDefault;  // the most that the sink is told
};

struct AuditReport {
  uint64_t findings = 0;  // all, also findings that the sink was not told
  uint64_t counts[kInvariantCount] = {};
};

// Scratch memory for one audit: a child count and a bit for each page.
size_t audit_scratch_bytes(const ControlRegion& region);

// `scratch`: at least audit_scratch_bytes, aligned to 8; its content does not matter.
AuditReport audit(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch,
                  FindingSink& sink);

}  // namespace maru::shm
