// A layout that has been checked, with its computed sizes. The other files compute with this alone: every sum of its strides
// that stays within the layout fits into 62 bits.
#pragma once

#include "maru/layout.h"

namespace maru::layout {

struct Geometry {
  maru_layout layout;  // complete: no zero stands for anything
  maru_layout_sizes sizes;
  uint64_t token_stride;  // bytes, within a region
  uint64_t head_stride;
  uint64_t head_bytes;  // elements of a head follow each other

  bool is_separate() const { return layout.kind != MARU_LAYOUT_CONTIGUOUS; }
  // Of a region, in its storage.
  uint64_t offset(uint64_t block, uint64_t layer, uint64_t outer) const {
    return block * sizes.block_stride + layer * sizes.layer_stride + outer * sizes.outer_stride;
  }
  uint64_t storage(uint64_t layer) const { return is_separate() ? layer : 0; }
};

// 0, or -errno with the reason.
int read_geometry(const maru_layout* layout, Geometry& ret_geometry, maru_layout_reason* reason);

// 0: none.
uint64_t element_bytes(uint32_t dtype);

}  // namespace maru::layout
