// Parts of a Pool's state (pool/state.h): a region, a shelf, and the findings of reclaim. For the pool*.cc files alone.
#pragma once

#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/page_queue.h"
#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

using format::RegionState;
using shm::PageRef;

struct RegionEntry {
  RegionState state = RegionState::kUnused;
  bool is_foreign = false;  // another host's; its state is not ours to know
  bool was_found = false;   // its word named its owner when this marud took the pool over
  uint32_t generation = 0;  // 20 bits
  LaneId owner;
  uint32_t free_pages = 0;  // when it was last swept
  uint32_t used_pages = 0;
  uint32_t counted_pages = 0;      // in use, as the pool's sum has them
  uint64_t no_run_since = kNever;  // frees() when a search for FREE pages found nothing
  uint64_t no_run_pages = 0;       // the shortest run that was not found
  // A look for FREE pages to take, or for a row of pages that its next owner may take, with no time for all of the region.
  struct Look {
    uint32_t next = 0;       // page in the region; 0: none is under way
    uint64_t frees = 0;      // when it began
    uint64_t run_pages = 0;  // no shorter run was looked for
    uint32_t row = 0, longest = 0;
  } free_look, row_look;
  float heat = 0;          // touches, cooling: inspect/map.cc
  uint64_t used_tick = 0;  // of the last touch that was read; 0: none
};

// Of the order of eviction, by shelf (policy/eviction_order.h).
struct ShelfEntry {
  bool is_unordered = false;   // its queues are empty until they are built anew
  bool is_late = false;        // blocks are missing from its queues until then; it is in late_shelves
  uint64_t swept_at_lost = 0;  // lost touches when its queues were last compared with the page words
};

struct LateShelf {
  uint32_t index;
  uint64_t round;  // who waits for this one, or a later one, waits for the blocks that were left out
};

// What draining has left.
struct DrainCount {
  uint64_t pages = 0;   // in use
  uint64_t blocks = 0;  // among them
  uint64_t pinned = 0;  // among those
};

// What a pool does now and then, as far as it is left: so much of each part.
struct Upkeep {
  uint64_t retired_lines = 0, held_lines = 0, sweep_pages = 0, count_pages = 0, feed_pages = 0, pin_slots = 0;
};

// What reclaim finds, kept until it is worked off.
class Findings final : public shm::ReclaimSink {
 public:
  PageQueue parents;  // their counts may be too high
  std::vector<PageRef> taken;
  PageQueue orphans;  // READY and in no bucket
  uint64_t freed = 0;

  void resize(uint64_t pages) {
    parents.resize(pages);
    orphans.resize(pages);
  }
  void parent_suspect(PageRef parent) override { parents.add(parent.page()); }
  void retired_taken(PageRef ref) override { taken.push_back(ref); }
  void unregistered(PageRef ref) override { orphans.add(ref.page()); }
  void pages_freed(uint32_t pages) override { freed += pages; }
};

}  // namespace maru::daemon
