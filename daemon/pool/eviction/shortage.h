// Memory that is wanted: the rest that a request lacks, and the work done for it.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/evict_reason.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace maru::daemon {

// The rest that a request lacks. With lane 0 as the asker pages are only freed, and `runs` counts pages.
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
  uint64_t scan_pages_left = kNever;    // that may be compared with the queues
  uint64_t window_pages_left = kNever;  // that may be searched for room for a run
  uint64_t room_pages_left = kNever;    // that may go so that there comes to be room for a run
  uint64_t room_wanted = kNever;        // a region that it may have as soon as that has room in its file system
  // A window that is being emptied for a run, over turns: no block of the pages before `window_looked_to` was pinned.
  std::optional<uint32_t> window;
  uint32_t window_looked_to = 0;
  // Looks for windows go over turns, too, through the regions of the asker and through all. Before all of them were looked at
  // nothing else goes to make room.
  struct WindowPass {
    size_t regions = 0;
    uint64_t pages_looked_at = 0;
  };
  std::array<WindowPass, 2> window_passes;

  bool takes() const { return asker.lane != 0; }
  uint64_t runs_left() const { return takes() ? std::min<uint64_t>(runs, items_left) : runs; }
  bool is_open() const { return runs_left() > 0; }
  WindowPass& window_pass(size_t of_regions) {
    for (WindowPass& pass : window_passes)
      if (pass.regions == of_regions) return pass;
    std::swap(window_passes[0], window_passes[1]);
    return window_passes[0] = {of_regions, 0};
  }
  // The last look may read more than is left, so that each turn comes a block further however many lanes there are.
  void spend(uint64_t lines) { lines_left -= std::min(lines_left, lines); }
};

}  // namespace maru::daemon
