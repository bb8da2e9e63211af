// Reclaim: takes back the holdings of a dead lane. marud runs it, after proof that the lane's process is gone, in steps of
// bounded size. Every step may be repeated, so a marud that dies in the middle starts again.
//
// Order: the lane's pins end. The pages that name the lane are freed or taken over. The parents whose count the dead client may
// have left too high are counted again. Its overflow buckets are released. Only then may the lane number be used again.
//
// A count is only ever too high after a death. Recount: a flag goes into the parent's word by CAS; the children are counted by
// a pass over the pages; the count goes in by CAS from the flagged word. Every other change of the word clears the flag, so a
// change in between makes the CAS fail. Two things are invisible to that CAS and postpone the recount. A SEALED child of a live
// lane may be about to add itself. A live lane's intent to lower this very count has a child that is free already, so the pass
// no longer finds it.
#pragma once

#include "libmaru/shm/blocks/block_store.h"

#include <cstdint>
#include <span>

namespace maru::shm {

// Ends all pins of a lane and empties its overflow count. After proof of death only.
void clear_pins(const ControlRegion& region, uint32_t lane);
// Whether an entry of the registry names this page, under the digest in its line.
bool is_registered(const ControlRegion& region, uint32_t page);
// Empties touches, counters, intents, which a new client of this lane must not inherit. Touches and counters must have been
// read by then. Not the accounts: fold_accounts.
void clear_lane(const ControlRegion& region, uint32_t lane);

// Receives the findings of a pass over pages.
class ReclaimSink {
 public:
  virtual void parent_suspect(PageRef parent) = 0;  // its count may be too high
  virtual void retired_taken(PageRef ref) = 0;      // RETIRED by the daemon's lane now: finish_retired it
  virtual void unregistered(PageRef ref) = 0;       // READY, published by the dead client, in no bucket: evict it
  virtual void pages_freed(uint32_t pages) = 0;

 protected:
  ~ReclaimSink() = default;
};

// Pages [from, to): RESERVED and SEALED runs of `dead` become FREE, its RETIRED runs the daemon's.
void reclaim_pages(LaneContext& daemon, LaneId dead, uint32_t from, uint32_t to, ReclaimSink& sink);
// The same for all lanes that `is_dead` names, for a marud that starts over a pool: lanes without a client, and older maruds.
class DeadLanes {
 public:
  virtual bool is_dead(LaneId lane) const = 0;
  // Whether a POISONED block holds its ancestors no more: it has no pin and no block below it. Until marud knows that, its
  // parent counts it.
  virtual bool is_let_go(uint32_t page) const { return page == ~0u; }

 protected:
  ~DeadLanes() = default;
};
// kAreFreed: free_dead_tails() went before, and the heads alone are left.
enum class Tails : uint8_t { kAreFreed, kToFree };
void reclaim_pages(LaneContext& daemon, const DeadLanes& dead, uint32_t from, uint32_t to, ReclaimSink& sink,
                   Tails tails = Tails::kToFree);

// The tails among the pages [from, to), which are whole regions, of RESERVED and SEALED heads of the dead become FREE, the last
// first. One walk over the pages, independent of the lengths in the heads' lines: each TAIL says where its head is. If the
// process dies here: the heads stay held, and the next walk finds the remaining tails.
void free_dead_tails(const ControlRegion& region, const DeadLanes& dead, uint32_t from, uint32_t to, ReclaimSink& sink);

// The parents named by intents of a dead lane; clears them.
void reclaim_intents(const ControlRegion& region, uint32_t lane, ReclaimSink& sink);

// The first step, after proof of death. It looks among the pins for blocks that the lane's publishers left between READY and
// their entry, since a publisher holds such a pin all that time. Then the pins end, and the intents are read. If the process
// dies here: the lane is still DEAD, and a marud that starts over asks for every block of it (the READY blocks of
// reclaim_pages).
void begin_reclaim(const ControlRegion& region, LaneId dead, ReclaimSink& sink);
// The same in parts, since a lane has many slots. It looks at all of them, slots [from, to) at a time and the overflow behind
// the others, and then the pins and intents end. Returns how many slots name a page, each of which is a look at its block.
uint32_t look_at_dead_pins(const ControlRegion& region, LaneId dead, uint32_t from, uint32_t to, ReclaimSink& sink);
// Parents that intents name go to the sink.
void end_lane_pins(const ControlRegion& region, uint32_t lane, ReclaimSink& sink);

struct Recount {
  PageRef parent;
  uint64_t flagged = 0;  // the word with the flag; 0: nothing to recount, or given up
  uint32_t children = 0;
  bool postponed = false;
};
// Sets the flags. `recounts` must be sorted by parent.bits, without doubles, for recount_pages to find them.
void recount_begin(const ControlRegion& region, std::span<Recount> recounts);
// Counts children among pages [from, to). Call it for all pages of the pool.
void recount_pages(const ControlRegion& region, std::span<Recount> recounts, const DeadLanes& dead, uint32_t from,
                   uint32_t to);
// Puts the counts in. Returns how many must be done again from recount_begin; those have postponed set.
size_t recount_commit(const ControlRegion& region, std::span<Recount> recounts, const LaneSet& live);

}  // namespace maru::shm
