// Memory that is wanted: what a request lacks still, and what has been done for it. For the pool*.cc files alone.
#pragma once

#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/removal/tree_walk.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

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
  uint64_t scan_pages_left = kNever;    // that may be compared with the queues
  uint64_t window_pages_left = kNever;  // that may be searched for room for a run
  uint64_t room_pages_left = kNever;    // that may go so that there comes to be room for a run
  uint64_t room_wanted = kNever;        // a region that it may have as soon as that has room in its file system
  // A window that is being emptied for a run, over turns: nobody pinned a block of the pages before `window_looked_to`.
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

// What a region would give to a client that takes it over.
struct RegionOutlook {
  uint32_t blocks = 0;
  uint32_t longest_row = 0;                  // of pages that are free when the waves are gone
  std::vector<std::vector<uint32_t>> waves;  // pages of blocks that may go, children first
};

enum class TakeFrom : uint8_t { kOverShare, kAnybody };

// A region on its way from its owner to whoever asked for memory (memory/takeover.cc).
struct Takeover {
  enum class Part : uint8_t { kPins, kChoice, kBlocks };
  Part part = Part::kPins;
  // kPins: regions of which some lane pins a page, as far as lanes were looked at.
  std::vector<bool> pinned;
  uint32_t next_lane = 0;
  // kChoice: those from which it is taken, and the best one of the first `looked`.
  std::vector<uint32_t> candidates;
  size_t looked = 0;
  std::optional<uint32_t> index;
  RegionOutlook outlook;
  // kBlocks: of that one, which is nobody's now.
  LaneId from;
  uint32_t generation = 0;
  size_t wave = 0, next = 0;  // in the outlook: what goes next
  uint64_t gone = 0;
};

// A request for memory that found none so far, as far as it has come.
struct Search {
  RentResult result;
  Shortage shortage;
  uint64_t lines_left = 0;           // that all its turns together may read yet; 0 before the first one, too
  size_t retired_left = 0;           // RETIRED blocks that it has not looked at
  std::optional<Takeover> takeover;  // under way
  uint32_t takeovers_left = 0;       // from clients above their share
  bool may_take_from_anybody = true;
  uint64_t sweep_left = 0;         // pages, once it looks everywhere
  uint64_t free_regions_left = 0;  // then: in which it looks for FREE pages
  uint64_t window_pages_left = 0;  // in which it has not looked for room for a run
  // Pages of regions without an owner that all its turns read for a row of pages; and whether it has to go on there.
  uint64_t row_pages_left = 0;
  bool looks_for_rows = false;
  bool has_swept = false;

  bool was_begun() const { return lines_left > 0; }
  bool has_nothing() const { return result.regions.empty() && result.runs.empty(); }
};

}  // namespace maru::daemon
