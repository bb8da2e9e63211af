// Where the elements of a layout lie, found by laying them down one after the other with a counter: no formula, no stride.
#pragma once

#include "maru/layout.h"
#include "tests/support/random.h"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace maru::test {

// block, layer, outer, token, head, dim; each within the layout
using Element = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t>;
using Place = std::pair<uint64_t, uint64_t>;  // storage, offset

inline uint64_t width_of(uint32_t dtype) {
  static const std::map<uint32_t, uint64_t> kWidths = {
      {MARU_LAYOUT_UINT8, 1},   {MARU_LAYOUT_INT8, 1},     {MARU_LAYOUT_FLOAT8_E4M3FN, 1}, {MARU_LAYOUT_FLOAT8_E5M2, 1},
      {MARU_LAYOUT_FLOAT16, 2}, {MARU_LAYOUT_BFLOAT16, 2}, {MARU_LAYOUT_FLOAT32, 4},       {MARU_LAYOUT_FLOAT64, 8}};
  return kWidths.at(dtype);
}

class LayoutModel {
 public:
  explicit LayoutModel(const maru_layout& layout) : layout_(layout), width_(width_of(layout.dtype)) {
    if (layout.kind == MARU_LAYOUT_CONTIGUOUS) {
      for (uint64_t block = 0; block < layout.blocks; ++block) {
        if (block > 0) align();
        for (uint64_t layer = 0; layer < layout.layers; ++layer)
          for (uint64_t outer = 0; outer < layout.outer; ++outer) region(0, block, layer, outer);
      }
      bytes_ = at_;
      return;
    }
    for (uint64_t layer = 0; layer < layout.layers; ++layer) {
      at_ = 0;
      if (layout.kind == MARU_LAYOUT_SEPARATE_OUTER) {
        for (uint64_t outer = 0; outer < layout.outer; ++outer)
          for (uint64_t block = 0; block < layout.blocks; ++block) region(layer, block, layer, outer), align();
      } else {
        for (uint64_t block = 0; block < layout.blocks; ++block) {
          for (uint64_t outer = 0; outer < layout.outer; ++outer) region(layer, block, layer, outer);
          align();
        }
      }
      bytes_ = at_;
    }
  }

  const std::map<Element, Place>& places() const { return places_; }
  uint64_t storage_bytes() const { return bytes_; }
  uint64_t width() const { return width_; }

 private:
  void align() {
    while (layout_.alignment > 1 && at_ % layout_.alignment != 0) ++at_;
  }
  void region(uint64_t storage, uint64_t block, uint64_t layer, uint64_t outer) {
    const bool is_nhd = layout_.order == MARU_LAYOUT_NHD;
    for (uint64_t i = 0; i < (is_nhd ? layout_.page_tokens : layout_.heads); ++i)
      for (uint64_t j = 0; j < (is_nhd ? layout_.heads : layout_.page_tokens); ++j)
        for (uint64_t dim = 0; dim < layout_.head_dim; ++dim) {
          places_[{block, layer, outer, is_nhd ? i : j, is_nhd ? j : i, dim}] = {storage, at_};
          at_ += width_;
        }
  }

  maru_layout layout_;
  uint64_t width_;
  std::map<Element, Place> places_;
  uint64_t at_ = 0;
  uint64_t bytes_ = 0;
};

inline maru_layout make_layout(uint32_t kind, uint32_t order, uint32_t dtype, uint32_t outer, uint64_t blocks,
                               uint64_t layers, uint64_t page_tokens, uint64_t heads, uint64_t head_dim,
                               uint64_t alignment = 1) {
  maru_layout layout = {};
  layout.size = sizeof(layout);
  layout.kind = kind;
  layout.order = order;
  layout.dtype = dtype;
  layout.outer = outer;
  layout.blocks = blocks;
  layout.layers = layers;
  layout.page_tokens = page_tokens;
  layout.heads = heads;
  layout.head_dim = head_dim;
  layout.alignment = alignment;
  return layout;
}

inline maru_layout random_layout(Random& random) {
  return make_layout(uint32_t(1 + random.below(3)), uint32_t(1 + random.below(2)), uint32_t(1 + random.below(8)),
                     uint32_t(1 + random.below(2)), 1 + random.below(4), 1 + random.below(3), 1 + random.below(4),
                     1 + random.below(4), 1 + random.below(5), uint64_t{1} << random.below(9));
}

}  // namespace maru::test
