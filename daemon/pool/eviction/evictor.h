// Eviction: the childless blocks that no process pins, from a set of regions, in the order of the pool's policy.
//
// Each shelf has queues with their coldest blocks at one end; EvictionOrder::Coldest merges the cold ends of many. The order is
// exact over the blocks that may go. A parent may go once its last child has, with the later of their two ticks. So a batch
// ends before a block that is warmer than a parent whose last child goes in this batch. A block that cannot go leaves its
// queue: a block with children comes back when its last child leaves, a pinned block when its pin was seen to end.
//
//   (1) A block that goes is told to the feed, counted, and reported to the asker, before its page is FREE.
//   (2) A call reports its freed pages in the Shortage that it was given. It acts for no request on its own.
//
// Cost: for each page about a microsecond for eight lanes. This is one CAS to mark it, one line of each lane, one CAS to retire
// it, its registry entry, one CAS to free it, one CAS to reserve it for the asker.
//
// Thread safety: one thread. If marud dies here: a marked block is READY again as soon as a process touches it, and the next
// marud takes RETIRED blocks back.
#pragma once

#include "daemon/pool/eviction/held_blocks.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/shortage.h"
#include "daemon/pool/feed/pool_feed.h"

#include <cstdint>
#include <span>
#include <vector>

namespace maru::daemon {

class Evictor {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    PoolFeed& feed;
    Queues& queues;
    HeldBlocks& held;
  };
  explicit Evictor(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        feed_(below.feed),
        queues_(below.queues),
        held_(below.held) {}
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  // Evicts the coldest blocks of these regions, as far as the shortage goes and its lines last. Returns false if it stopped at
  // a block of another size than the wanted runs.
  bool evict_coldest(std::span<const uint32_t> in, Shortage& shortage);
  // Takes away the blocks of these pages that may go; keeps their queues and parents right. Returns how many went.
  size_t evict_pages(std::span<const uint32_t> victims, EvictReason reason);
  // `into` counts them and takes nothing.
  size_t evict_pages(std::span<const uint32_t> victims, Shortage& into);
  // A run of the wanted length becomes the asker's, if all of it is FREE.
  bool take_for_asker(uint32_t first, Shortage& shortage, uint32_t* ret_blocker);
  // Lines that the eviction of a block reads: `look` for a look for pins in all lanes, the lines of the block and of its
  // bucket, and its run. A client wrote the run's length.
  uint64_t eviction_lines(uint32_t page, uint64_t look) const;

 private:
  struct Walk;
  void choose_batch(Walk& walk, Shortage& shortage);
  PageWord revived(uint32_t page) const;
  bool is_enough_of_tenant(Walk& walk, uint32_t page, uint32_t run_pages) const;
  bool take_out(Walk& walk, uint32_t page);
  void note_parent(Walk& walk, uint32_t page, uint64_t at_tick);
  void take_batch(Walk& walk, Shortage& shortage);
  void report_evicted(PageRef ref, Shortage& shortage);
  void take_freed(uint32_t first, uint32_t count, Shortage& shortage);
  void finish_evicted(PageRef ref, uint64_t at_tick, Shortage& shortage, EvictionOrder::Coldest* coldest);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  PoolFeed& feed_;
  Queues& queues_;
  HeldBlocks& held_;
};

}  // namespace maru::daemon
