// How far a pool is with making room for long keys (eviction/evict_key_cells.cc).
#pragma once

#include "daemon/policy/eviction_order.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

struct KeyCells {
  bool is_looking = false, has_looked = false;  // at all cells; then those of `coldest` go
  bool is_freeing = false;                      // until a quarter is free
  uint64_t refused_seen = 0;                    // stores, when it was last asked
  uint64_t look_again_ms = 0;
  uint64_t round = 0;                       // of has_caught_up()
  uint64_t next = 0;                        // cell
  uint64_t held = 0, movable = 0;           // of those looked at: with a holder, and one that may go
  uint64_t went = 0, pinned = 0;            // of those chosen
  std::vector<EvictionOrder::Key> coldest;  // who holds one and may go; sorted when all were looked at
};

}  // namespace maru::daemon
