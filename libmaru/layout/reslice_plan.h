// A plan of copies between the storages of some layouts.
//
// A move is a pattern of equal runs. A run is bytes that are neighbours on both sides; up to five nested loops with constant
// strides repeat it (blocks, layers, K and V, tokens, heads). Moves that differ in their places alone share a shape. So a plan
// for thousands of blocks is small, and the copy reads few bytes besides those that it copies. Moves stand in the order in
// which their sources lie.
#pragma once

#include "libmaru/layout/geometry.h"

#include <array>
#include <cstdint>
#include <vector>

namespace maru::layout {

struct Loop {
  uint64_t count;
  uint64_t source_stride;  // bytes
  uint64_t target_stride;
  bool operator==(const Loop&) const = default;
};

struct Shape {
  uint64_t run_bytes = 0;
  uint64_t runs = 0;  // of all loops together
  uint32_t loops = 0;
  std::array<Loop, 5> loop = {};  // the slowest first: the loop with the largest stride in the source
  bool operator==(const Shape&) const = default;
};

struct Move {
  uint32_t source;  // storages, through all layouts
  uint32_t target;
  uint32_t shape;
  uint32_t zero;
  uint64_t source_offset;
  uint64_t target_offset;
  uint64_t first_run;  // of all runs of the plan
};
static_assert(sizeof(Move) == 40, "maru/layout.h says so");

struct StorageNeed {
  uint64_t alignment;
  uint64_t bytes;
};

}  // namespace maru::layout

struct maru_reslice {
  std::vector<maru::layout::Shape> shapes;
  std::vector<maru::layout::Move> moves;
  std::vector<maru::layout::StorageNeed> sources, targets;
  maru_reslice_totals totals = {};
};

namespace maru::layout {

// Fills the plan; 0, or -errno with the reason. Throws std::bad_alloc.
int plan_reslice(const maru_reslice_options* options, const std::vector<Geometry>& sources,
                 const std::vector<Geometry>& targets, maru_reslice& ret_plan, maru_layout_reason* reason);

}  // namespace maru::layout
