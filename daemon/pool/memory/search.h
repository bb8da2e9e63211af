// A request for memory on its way through turns, and a region on its way to it.
#pragma once

#include "daemon/pool/eviction/shortage.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace maru::daemon {

// The pages that a region would give to a client that takes it over.
struct RegionOutlook {
  uint32_t blocks = 0;
  uint32_t longest_row = 0;                  // of pages that are free when the waves are gone
  std::vector<std::vector<uint32_t>> waves;  // pages of blocks that may go, children first
};

enum class TakeFrom : uint8_t { kOverShare, kAnybody };

// A region on its way from its owner to a client that asked for memory (memory/takeovers.h).
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
  // kBlocks: of the chosen region, which no client rents now.
  LaneId from;
  uint32_t generation = 0;
  size_t wave = 0, next = 0;  // in the outlook: the block that goes next
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
