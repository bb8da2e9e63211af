// All blocks below some others, or all blocks of the pool, found and taken away, leaves first, as the child counts demand.
//
// A child names its parent, and no word names a child. So one pass over the pages turns this round; then the tree is climbed
// from its roots, level by level; then its levels are taken away, the deepest first. A pool may have millions of pages, and
// others wait: each slice spends its budget, and the next slice goes on there.
//
// Between slices clients store, delete and reuse pages. A noted link is therefore a hint. The climb reads again whether that
// page still names this parent, and the removal whether it still holds that block. A child that came below a block after its
// page was passed is not found; its parent, which counts it, then stays.
//
// Cost: for a page that is looked at one step of the budget, for a block that goes its look for pins.
//
// Thread safety: one thread. If marud dies here: nothing of this is in shared memory.
#pragma once

#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/removal/tree_walk.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class Trees {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    PoolFeed& feed;
    Queues& queues;
    RetiredBlocks& retired;
    Evictor& evictor;
  };
  explicit Trees(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        feed_(below.feed),
        queues_(below.queues),
        retired_(below.retired),
        evictor_(below.evictor) {}
  Trees(const Trees&) = delete;
  Trees& operator=(const Trees&) = delete;

  void begin(TreeWalk& walk, std::vector<PageRef> roots) const;
  // Every block, those without a parent being the roots. They are found with the links.
  void begin_whole(TreeWalk& walk) const;
  // Returns true when everything was taken away that may go.
  bool step(TreeWalk& walk, uint64_t& budget);
  // Of a block that a process holds the key goes, and the memory when no process does. False if it has children, or is not
  // there.
  bool take_key(PageRef ref);

 private:
  bool is_higher(PageRef parent, uint32_t page) const;
  bool counts_for_parent(uint32_t page, PageWord found) const;
  bool gather_links(TreeWalk& walk, uint64_t& budget);
  bool climb(TreeWalk& walk, uint64_t& budget);
  bool take(TreeWalk& walk, uint64_t& budget);

  PoolCore& core_;
  LaneTable& lanes_;
  PoolFeed& feed_;
  Queues& queues_;
  RetiredBlocks& retired_;
  Evictor& evictor_;
};

}  // namespace maru::daemon
