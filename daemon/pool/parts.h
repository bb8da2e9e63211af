// Parts of a Pool's state (pool/state.h): a region, a shelf, and the findings of reclaim. For the pool*.cc files alone.
#pragma once


#include <cstdint>

namespace maru::daemon {

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

}  // namespace maru::daemon
