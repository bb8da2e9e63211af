// Where the sections of a control region lie, as its parameters demand: the ASCII map of maru/format/control_region.h
// in numbers. marud, clients and tools compute the same layout from the same parameters, so a header needs no offsets
// to be believed.
#pragma once

#include "maru/format/control_region.h"

#include <bit>
#include <cstdint>

namespace maru::shm {

using format::Parameters;

// The numbers that follow from the parameters.
struct Layout {
  format::SectionRecord sections[format::kSectionCount];
  uint64_t control_bytes;
  uint64_t buckets;
  uint64_t overflow_buckets;
  uint64_t lane_bytes;  // distance between two lanes
  uint32_t pin_slots;   // of a lane, without the overflow area
  uint32_t pin_overflow_slots;
  uint32_t account_slots;    // of a lane
  uint32_t accounts_offset;  // of its first account, in bytes from the start of the lane
};

inline constexpr const char* kTooSmall = "the pool is too small for its control region and a single region of pages";

// Returns nullptr, or the fault in the parameters.
const char* plan_layout(const Parameters& parameters, Layout* ret_layout);

// The steps of plan_layout(), for the sizing of a new pool (pool_sizing.h). plan_lane(): how a lane is divided. lay_out(): all
// sections, of parameters in their ranges, or with more pages than a reference can name; nullptr if there is room for them.
void plan_lane(const Parameters& parameters, Layout* ret_layout);
const char* lay_out(const Parameters& parameters, Layout* ret_layout);

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }
constexpr bool in_power_of_two_range(uint64_t value, uint64_t low, uint64_t high) {
  return std::has_single_bit(value) && value >= low && value <= high;
}

}  // namespace maru::shm
