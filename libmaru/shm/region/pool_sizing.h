// How many pages a new pool gets, and how large its control region is: wishes and a size in bytes become parameters. The
// control region grows with the number of pages, so each function looks for the largest number that fits.
#pragma once

#include "libmaru/shm/region/layout.h"

#include <cstdint>
#include <optional>

namespace maru::shm {

// The configuration of a new pool; 0 is the default.
struct FormatWishes {
  uint64_t pool_bytes = 0;
  uint64_t page_bytes = 0;
  uint64_t region_bytes = 0;
  uint32_t lanes = 0;
  uint32_t hosts = 0;
  uint32_t tenants = 0;
  uint32_t pins_max = 0;
  uint32_t touch_entries = 0;
  uint32_t key_inline_bytes = 0;
  uint64_t key_extents = 0;
};

// A pool whose control region and pages lie apart: how many bytes there are for each.
struct Pieces {
  uint64_t control_room = 0;
  uint64_t pages_room = 0;
};

// Fills in defaults and counts the pages that fit. Returns nullptr, or the reason why so many bytes or fewer are impossible.
const char* choose_parameters(const FormatWishes& wishes, Parameters* ret_parameters);
// The least size, a multiple of 4 KiB, that is possible with wishes whose pool_bytes is too small. Nothing: no size is.
std::optional<uint64_t> least_pool_bytes(FormatWishes wishes);
// The same for a pool in two pieces. wishes.pool_bytes is the size of both, with all bytes that are not for pages. The
// parameters describe both together, so that neither alone is ever taken for the whole. No other number of pages is better.
const char* choose_parameters_in_two(const FormatWishes& wishes, const Pieces& pieces, Parameters* ret_parameters,
                                     Layout* ret_layout);
// Divides wishes.pool_bytes, rounded up, into pieces that are multiples of `unit`, a power of two. `label_bytes` of the
// piece of the pages are not for pages. Returns nullptr, or why that many bytes are no pool.
const char* divide_pool(const FormatWishes& wishes, uint64_t unit, uint64_t label_bytes, Pieces* ret_pieces);

}  // namespace maru::shm
