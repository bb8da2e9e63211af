#include "libmaru/shm/region/pool_sizing.h"

#include <algorithm>
#include <bit>

namespace maru::shm {
namespace {

// Lanes for a large pool would take most of a small pool. Sizes without a wish are halved until they take a small share of
// `size`: the pins, then lanes and pins in turns. Neither falls below the need of a few clients.
void choose_lanes(const FormatWishes& wishes, uint64_t size, Parameters* p) {
  p->lanes = wishes.lanes ? wishes.lanes : limits::kLanesDefault;
  p->pins_max = wishes.pins_max ? wishes.pins_max : limits::kPinsMaxDefault;
  p->touch_entries =
      wishes.touch_entries
          ? wishes.touch_entries
          : uint32_t(std::clamp<uint64_t>(std::bit_floor(size / limits::kTouchPoolBytes),
                                          limits::kTouchEntriesMinDefault, limits::kTouchEntriesDefault));
  const uint32_t lanes_min = std::max(limits::kLanesMinDefault, limits::kLanesMinOfHostDefault * p->hosts);
  const auto pins_min = uint32_t(
      std::clamp<uint64_t>(std::bit_floor(size / p->page_bytes), limits::kPinsMinDefault, limits::kPinsEnoughDefault));
  Layout layout;
  for (;;) {
    plan_lane(*p, &layout);
    if (p->lanes * layout.lane_bytes <= size / limits::kLanesShareDefault) return;
    const bool fewer_lanes = wishes.lanes == 0 && p->lanes > lanes_min;
    const bool fewer_pins = wishes.pins_max == 0 && p->pins_max > pins_min;
    if (fewer_pins && (p->pins_max > limits::kPinsPerLaneDefault * p->lanes || !fewer_lanes))
      p->pins_max /= 2;
    else if (fewer_lanes)
      p->lanes = std::max(lanes_min, p->lanes / 2);
    else
      return;
  }
}

const char* check_size(const FormatWishes& wishes) {
  if (wishes.pool_bytes == 0) return "the pool has no size";
  return wishes.pool_bytes > limits::kPoolBytesMax ? "the pool is larger than 64 TiB" : nullptr;
}

constexpr const char* kTooManyPages =
    "page_bytes is too small for this size: there would be more than 2^32 - 2 pages, and the rest would stay unused; "
    "choose a larger page_bytes";

// The share of the pages' bytes for cells of long keys, and for inline keys that are longer than the usual default.
constexpr uint64_t kKeyBytesShare = 64;
constexpr uint64_t kKeyInlineDefaultMax = 1024;

// A pool whose users have long keys must hold as many blocks as any other. Where a page's share is large enough to hold a cell,
// there is a cell for each page; below that the inline key takes a share as large.
uint32_t default_key_inline(uint64_t page_bytes) {
  const uint64_t share = page_bytes / kKeyBytesShare;
  if (share >= limits::kKeyExtentBytes) return limits::kKeyInlineDefault;
  return uint32_t(std::clamp<uint64_t>(share, limits::kKeyInlineDefault, kKeyInlineDefaultMax));
}

// All but the pages, with the defaults of a pool of `size` bytes, of which `cut_bytes` are cut into regions. A smaller pool's
// defaults are nowhere larger. So a caller that tries sizes in turn never refuses a pool that is larger than a possible pool.
const char* choose_shape(const FormatWishes& wishes, uint64_t size, uint64_t cut_bytes, Parameters* ret_parameters) {
  const bool small = size < limits::kSmallPoolBytes;
  Parameters p{};
  p.pool_bytes = wishes.pool_bytes;
  p.page_bytes = small ? limits::kPageBytesSmallPool : limits::kPageBytesDefault;
  if (wishes.region_bytes >= limits::kPageBytesMin)
    p.page_bytes = std::min(p.page_bytes, std::bit_floor(wishes.region_bytes));
  if (wishes.page_bytes) p.page_bytes = wishes.page_bytes;
  if (!in_power_of_two_range(p.page_bytes, limits::kPageBytesMin, limits::kPageBytesMax))
    return "page_bytes is not a power of two from 4 KiB to 4 MiB";
  uint64_t region_bytes = wishes.region_bytes;
  if (region_bytes == 0)
    region_bytes = std::max<uint64_t>(
        p.page_bytes, std::bit_floor(std::min(limits::kRegionBytesDefault, cut_bytes / limits::kRegionsMinDefault)));
  if (!std::has_single_bit(region_bytes) || region_bytes < p.page_bytes)
    return "region_bytes is not a power of two of at least one page";
  p.region_pages = region_bytes / p.page_bytes;
  p.hosts = wishes.hosts ? wishes.hosts : 1;
  p.tenants = wishes.tenants ? wishes.tenants
                             : uint32_t(std::clamp<uint64_t>(size / limits::kTenantPoolBytes,
                                                             limits::kTenantsMinDefault, limits::kTenantsDefault));
  choose_lanes(wishes, size, &p);
  p.key_inline_bytes = wishes.key_inline_bytes ? wishes.key_inline_bytes : default_key_inline(p.page_bytes);
  p.section_align = small ? 4096 : 2ull << 20;
  *ret_parameters = p;
  return nullptr;
}

uint64_t pages_bytes_of(const Parameters& p) { return p.pages * p.page_bytes; }

// As many regions of pages as `room_bytes` and the control region have room for; `fits` says whether a layout fits the control
// region. The control region grows with them, so the largest count is found by bisection. Refused when there is room for a
// region more than references can name: an administrator wants all of a pool's memory used.
template <typename Fits>
const char* choose_pages(const FormatWishes& wishes, uint64_t room_bytes, const Fits& fits, Parameters* shape,
                         Layout* ret_layout) {
  Parameters p = *shape;
  const uint64_t region_bytes = p.region_pages * p.page_bytes;
  const uint64_t most = limits::kPagesMax / p.region_pages;
  uint64_t enough = 0, too_many = std::min(room_bytes / region_bytes, most + 1) + 1;
  const char* problem = kTooSmall;
  while (too_many - enough > 1) {
    const uint64_t middle = enough + (too_many - enough) / 2;
    p.pages = middle * p.region_pages;
    // One cell for each page while that is at most 1/64 of the pages' bytes: 4 KiB for 2 MiB costs 0.2 %.
    p.key_extents = wishes.key_extents
                        ? wishes.key_extents
                        : std::clamp<uint64_t>(pages_bytes_of(p) / kKeyBytesShare / limits::kKeyExtentBytes, 8,
                                               std::max<uint64_t>(8, p.pages));
    Layout layout{};
    const char* refusal = middle > most ? lay_out(p, &layout) : plan_layout(p, &layout);
    if (refusal == nullptr) refusal = fits(p, layout);
    if (refusal == nullptr) {
      enough = middle;
      *shape = p;
      *ret_layout = layout;
    } else {
      problem = refusal;
      too_many = middle;
    }
  }
  if (enough > most) return kTooManyPages;
  return enough ? nullptr : problem;
}

// A pool of the same pages in one piece: its control region takes less than an eighth of it.
constexpr uint64_t whole_for(uint64_t pages_bytes) { return pages_bytes / 7 * 8; }

// As many pages as both pieces have room for. Where a small control region leaves pages unused, lanes without a wish give way
// to them, if an eighth more is gained.
const char* fill_pieces(const FormatWishes& wishes, const Pieces& pieces, Parameters* ret_parameters,
                        Layout* ret_layout) {
  const auto fits = [&](const Parameters&, const Layout& layout) {
    return layout.control_bytes <= pieces.control_room
               ? nullptr
               : "the piece of the control region is too small for a single region of the other one's pages";
  };
  uint64_t most = 0;
  for (uint64_t size = wishes.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(wishes, size, std::min(size, whole_for(pieces.pages_room)), &p))
      return problem;
    const char* problem = choose_pages(wishes, pieces.pages_room, fits, &p, &layout);
    if (const uint64_t found = problem ? 0 : pages_bytes_of(p); found > most + most / 8) {
      most = found;
      *ret_parameters = p;
      *ret_layout = layout;
    }
    const bool is_full = most != 0 && most >= pieces.pages_room - pieces.pages_room / 8;
    if (is_full || size == 0) return most != 0 ? nullptr : problem;
  }
}

}  // namespace

const char* choose_parameters(const FormatWishes& wishes, Parameters* ret_parameters) {
  if (const char* problem = check_size(wishes)) return problem;
  const auto fits = [](const Parameters&, const Layout&) -> const char* { return nullptr; };
  for (uint64_t size = wishes.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(wishes, size, size, &p)) return problem;
    const char* problem = choose_pages(wishes, wishes.pool_bytes, fits, &p, &layout);
    if (problem == nullptr) *ret_parameters = p;
    if (problem == nullptr || size == 0) return problem;
  }
}

// A possible size makes every larger one possible (choose_shape()) up to where there are too many pages.
std::optional<uint64_t> least_pool_bytes(FormatWishes wishes) {
  constexpr uint64_t kUnit = 4096;
  const auto is_enough = [&](uint64_t units) {
    Parameters parameters;
    Layout layout;
    wishes.pool_bytes = units * kUnit;
    return choose_parameters(wishes, &parameters) == nullptr && plan_layout(parameters, &layout) == nullptr;
  };
  constexpr uint64_t kMost = limits::kPoolBytesMax / kUnit;
  uint64_t too_few = wishes.pool_bytes / kUnit, enough = std::min(std::max<uint64_t>(1, 2 * too_few), kMost);
  while (!is_enough(enough)) {
    if (enough == kMost) return std::nullopt;
    too_few = enough;
    enough = std::min(2 * enough, kMost);
  }
  while (enough - too_few > 1) {
    const uint64_t middle = too_few + (enough - too_few) / 2;
    (is_enough(middle) ? enough : too_few) = middle;
  }
  return enough * kUnit;
}

const char* choose_parameters_in_two(const FormatWishes& wishes, const Pieces& pieces, Parameters* ret_parameters,
                                     Layout* ret_layout) {
  if (const char* problem = check_size(wishes)) return problem;
  Parameters whole;
  if (const char* problem = choose_shape(wishes, wishes.pool_bytes, wishes.pool_bytes, &whole)) return problem;
  FormatWishes kept = wishes;
  kept.page_bytes = whole.page_bytes;  // smaller pages would need a larger control region
  const char* problem = fill_pieces(kept, pieces, ret_parameters, ret_layout);
  return problem == nullptr ? nullptr : fill_pieces(wishes, pieces, ret_parameters, ret_layout);
}

const char* divide_pool(const FormatWishes& wishes, uint64_t unit, uint64_t label_bytes, Pieces* ret_pieces) {
  FormatWishes whole = wishes;
  whole.pool_bytes = align_up(wishes.pool_bytes, unit);
  if (const char* problem = check_size(whole)) return problem;
  if (whole.pool_bytes <= label_bytes) return kTooSmall;
  const uint64_t room = whole.pool_bytes - label_bytes;  // of both
  const auto fits = [&](const Parameters& p, const Layout& layout) {
    return align_up(layout.control_bytes, unit) + pages_bytes_of(p) <= room ? nullptr : kTooSmall;
  };
  for (uint64_t size = whole.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(whole, size, std::min(size, whole_for(room)), &p)) return problem;
    const char* problem = choose_pages(whole, room, fits, &p, &layout);
    if (problem == nullptr) {
      // Where a region more would find room beside this control region and none in it, the piece of the pages ends before.
      const uint64_t used = label_bytes + pages_bytes_of(p), next = used + p.region_pages * p.page_bytes;
      const uint64_t pages_piece = std::min(whole.pool_bytes - align_up(layout.control_bytes, unit),
                                            std::max(align_up(used, unit), (next - 1) / unit * unit));
      *ret_pieces = {whole.pool_bytes - pages_piece, pages_piece - label_bytes};
    }
    if (problem == nullptr || size == 0) return problem;
  }
}

}  // namespace maru::shm
