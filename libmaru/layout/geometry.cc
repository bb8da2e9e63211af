#include "libmaru/layout/geometry.h"

#include "libmaru/layout/checked.h"
#include "libmaru/layout/reason.h"

#include <bit>
#include <cerrno>
#include <initializer_list>

namespace maru::layout {
namespace {

struct Range {
  const char* name;
  uint64_t value;
  uint64_t least;
  uint64_t most;
};

int check_ranges(const maru_layout& layout, maru_layout_reason* reason) {
  const Range ranges[] = {
      {"kind", layout.kind, MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_SEPARATE_BLOCK},
      {"order", layout.order, MARU_LAYOUT_NHD, MARU_LAYOUT_HND},
      {"dtype", layout.dtype, MARU_LAYOUT_UINT8, MARU_LAYOUT_FLOAT64},
      {"outer", layout.outer, 1, 2},
      {"blocks", layout.blocks, 1, MARU_LAYOUT_BLOCKS_MAX},
      {"layers", layout.layers, 1, MARU_LAYOUT_LAYERS_MAX},
      {"page_tokens", layout.page_tokens, 1, MARU_LAYOUT_PAGE_TOKENS_MAX},
      {"heads", layout.heads, 1, MARU_LAYOUT_HEADS_MAX},
      {"head_dim", layout.head_dim, 1, MARU_LAYOUT_HEAD_DIM_MAX},
      {"heads_total", layout.heads_total, 1, MARU_LAYOUT_HEADS_MAX},
      {"layers_total", layout.layers_total, 1, MARU_LAYOUT_LAYERS_MAX},
      {"reserved[0]", layout.reserved[0], 0, 0},
      {"reserved[1]", layout.reserved[1], 0, 0},
  };
  for (const Range& range : ranges)
    if (range.value < range.least || range.value > range.most)
      return fail(reason, EINVAL, "%s is %llu, expected %llu to %llu", range.name, ull(range.value), ull(range.least),
                  ull(range.most));
  if (!std::has_single_bit(layout.alignment) || layout.alignment > MARU_LAYOUT_ALIGNMENT_MAX)
    return fail(reason, EINVAL, "alignment is %llu, expected a power of two up to %llu", ull(layout.alignment),
                ull(MARU_LAYOUT_ALIGNMENT_MAX));
  return 0;
}

int check_part(const char* what, const char* first_name, uint64_t first, uint64_t count, uint64_t total,
               maru_layout_reason* reason) {
  if (count <= total && first <= total - count) return 0;
  return fail(reason, EINVAL, "%s is %llu with %llu %s, expected a part of the model's %llu", first_name, ull(first),
              ull(count), what, ull(total));
}

// The formulas of the three kinds. Returns the size of a whole storage.
Checked measure(const maru_layout& layout, Checked region, Checked& ret_outer, Checked& ret_layer, Checked& ret_block) {
  if (layout.kind == MARU_LAYOUT_CONTIGUOUS) {
    ret_outer = region;
    ret_layer = region * layout.outer;
    const Checked whole_block = ret_layer * layout.layers;
    ret_block = whole_block.aligned(layout.alignment);
    return ret_block * (layout.blocks - 1) + whole_block;  // nothing follows the last block
  }
  ret_layer = 0;
  if (layout.kind == MARU_LAYOUT_SEPARATE_OUTER) {
    ret_block = region.aligned(layout.alignment);
    ret_outer = ret_block * layout.blocks;
    return ret_outer * layout.outer;
  }
  ret_outer = region;
  ret_block = (region * layout.outer).aligned(layout.alignment);
  return ret_block * layout.blocks;
}

}  // namespace

uint64_t element_bytes(uint32_t dtype) {
  switch (dtype) {
    case MARU_LAYOUT_UINT8:
    case MARU_LAYOUT_INT8:
    case MARU_LAYOUT_FLOAT8_E4M3FN:
    case MARU_LAYOUT_FLOAT8_E5M2: return 1;
    case MARU_LAYOUT_FLOAT16:
    case MARU_LAYOUT_BFLOAT16: return 2;
    case MARU_LAYOUT_FLOAT32: return 4;
    case MARU_LAYOUT_FLOAT64: return 8;
    default: return 0;
  }
}

int read_geometry(const maru_layout* given, Geometry& ret_geometry, maru_layout_reason* reason) {
  if (given == nullptr) return fail(reason, EINVAL, "the layout is NULL");
  if (given->size != sizeof(maru_layout))
    return fail(reason, EINVAL, "size is %zu, expected sizeof(maru_layout), %zu", given->size, sizeof(maru_layout));
  maru_layout layout = *given;
  if (layout.alignment == 0) layout.alignment = 1;
  if (layout.heads_total == 0 && layout.first_head == 0) layout.heads_total = layout.heads;
  if (layout.layers_total == 0 && layout.first_layer == 0) layout.layers_total = layout.layers;
  if (const int status = check_ranges(layout, reason); status < 0) return status;
  if (const int status = check_part("heads", "first_head", layout.first_head, layout.heads, layout.heads_total, reason);
      status < 0)
    return status;
  if (const int status =
          check_part("layers", "first_layer", layout.first_layer, layout.layers, layout.layers_total, reason);
      status < 0)
    return status;

  const uint64_t width = element_bytes(layout.dtype);
  const Checked head = Checked(layout.head_dim) * width;
  const Checked region = head * layout.heads * layout.page_tokens;
  Checked outer(0), layer(0), block(0);
  const Checked storage = measure(layout, region, outer, layer, block);
  const Checked allocation = storage + (layout.alignment - 1);
  const Checked whole_block = region * layout.outer * layout.layers;
  // The greatest of all: a layout that this fits has no other sum that does not.
  for (const Checked& sum : {allocation, whole_block, block * layout.blocks})
    if (!sum.fits(MARU_LAYOUT_STORAGE_BYTES_MAX))
      return fail(reason, EOVERFLOW, "a storage or a block of this layout has more than %llu bytes",
                  ull(MARU_LAYOUT_STORAGE_BYTES_MAX));

  Geometry& geometry = ret_geometry;
  geometry.layout = layout;
  geometry.head_bytes = head.value();
  const bool is_nhd = layout.order == MARU_LAYOUT_NHD;
  geometry.token_stride = head.value() * (is_nhd ? layout.heads : 1);
  geometry.head_stride = head.value() * (is_nhd ? 1 : layout.page_tokens);
  maru_layout_sizes& sizes = geometry.sizes;
  sizes = {};
  sizes.element_bytes = width;
  sizes.region_bytes = region.value();
  sizes.outer_stride = outer.value();
  sizes.layer_stride = layer.value();
  sizes.block_stride = block.value();
  sizes.block_bytes = whole_block.value();
  sizes.storages = geometry.is_separate() ? layout.layers : 1;
  sizes.storage_bytes = storage.value();
  sizes.allocation_bytes = allocation.value();
  return 0;
}

}  // namespace maru::layout
