// Memory that is wanted: what a request lacks still, and what has been done for it. For the pool*.cc files alone.
#pragma once

#include "daemon/lane_table.h"
#include "daemon/pool.h"
#include "daemon/pool_limits.h"
#include "daemon/tree_walk.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace maru::daemon {

// What a request still lacks. With lane 0 as the asker pages are only freed, and `runs` counts pages.
struct Shortage {
  EvictReason reason = EvictReason::kRequest;
  LaneId asker;
  uint64_t mark = 0;  // of its request
  uint64_t run_pages = 1;
  uint64_t runs = 0;
  size_t items_left = 0;  // regions and runs that the reply still has room for
  size_t key_bytes_left = 0;
  RentResult* result = nullptr;
  uint64_t regions_left = kNever;  // that the asker may still get
  uint64_t blocks_evicted = 0;
  uint64_t pages_evicted = 0;
  uint64_t lines_left = kNever;         // that looks for pins may read, and the policy's spares
  uint64_t window_pages_left = kNever;  // that may be searched for room for a run
  uint64_t room_pages_left = kNever;    // that may go so that there comes to be room for a run
  uint64_t room_wanted = kNever;        // a region that it may have as soon as that has room in its file system

  bool takes() const { return asker.lane != 0; }
  uint64_t runs_left() const { return takes() ? std::min<uint64_t>(runs, items_left) : runs; }
  bool is_open() const { return runs_left() > 0; }
  // The last look may read more than is left, so that each turn comes a block further however many lanes there are.
  void spend(uint64_t lines) { lines_left -= std::min(lines_left, lines); }
};

// A request for memory that found none so far, as far as it has come.
struct Search {
  RentResult result;
  Shortage shortage;
  uint64_t lines_left = 0;  // that all its turns together may read yet; 0 before the first one, too
  size_t retired_left = 0;  // RETIRED blocks that it has not looked at
  bool has_swept = false, has_tried_shares = false;

  bool was_begun() const { return lines_left > 0; }
  bool has_nothing() const { return result.regions.empty() && result.runs.empty(); }
};

}  // namespace maru::daemon
