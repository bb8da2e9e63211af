// Parts of a Pool's state (pool/state.h): a region, a shelf, and the findings of reclaim. For the pool*.cc files alone.
#pragma once

#include <cstdint>

namespace maru::daemon {

// What a pool does now and then, as far as it is left: so much of each part.
struct Upkeep {
  uint64_t retired_lines = 0, held_lines = 0, sweep_pages = 0, count_pages = 0, feed_pages = 0, pin_slots = 0;
};

}  // namespace maru::daemon
