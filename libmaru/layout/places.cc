// The functions of maru/layout.h for sizes and places.
#include "libmaru/layout/checked.h"
#include "libmaru/layout/geometry.h"
#include "libmaru/layout/reason.h"

#include <bit>
#include <cerrno>

namespace maru::layout {
namespace {

int check_index(const char* what, uint64_t index, uint64_t count, maru_layout_reason* reason) {
  if (index < count) return 0;
  return fail(reason, ERANGE, "there is no %s %llu; the layout has %llu, from 0", what, ull(index), ull(count));
}

struct Region {
  uint64_t block;
  uint64_t layer;
  uint64_t outer;
};

int check_region(const maru_layout& layout, const Region& region, maru_layout_reason* reason) {
  if (const int status = check_index("block", region.block, layout.blocks, reason); status < 0) return status;
  if (const int status = check_index("layer", region.layer, layout.layers, reason); status < 0) return status;
  return check_index("outer index", region.outer, layout.outer, reason);
}

maru_layout_part part_of(const Geometry& geometry, const Region& region, uint64_t bytes) {
  return {geometry.storage(region.layer), geometry.offset(region.block, region.layer, region.outer), bytes};
}

// Splits `total` over `ranks`; where there are more ranks than parts, neighbouring ranks share one.
int split(const char* what, uint64_t total, uint64_t ranks, uint64_t rank, bool may_share, uint64_t& ret_first,
          uint64_t& ret_count, maru_layout_reason* reason) {
  if (ranks == 0 || rank >= ranks)
    return fail(reason, EINVAL, "there is no rank %llu of %llu for the %s; ranks count from 0", ull(rank), ull(ranks),
                what);
  if (total % ranks == 0) {
    ret_count = total / ranks;
    ret_first = rank * ret_count;
    return 0;
  }
  if (may_share && ranks % total == 0) {
    ret_count = 1;
    ret_first = rank / (ranks / total);
    return 0;
  }
  return fail(reason, EINVAL, "%llu ranks cannot share %llu %s evenly", ull(ranks), ull(total), what);
}

int slice(const Geometry& whole, uint64_t tensor_ranks, uint64_t tensor_rank, uint64_t pipeline_ranks,
          uint64_t pipeline_rank, maru_layout& part, maru_layout_reason* reason) {
  part = whole.layout;
  if (part.heads != part.heads_total || part.layers != part.layers_total)
    return fail(reason, EINVAL, "the layout has %llu of %llu heads and %llu of %llu layers, expected all of them",
                ull(part.heads), ull(part.heads_total), ull(part.layers), ull(part.layers_total));
  if (const int status =
          split("heads", part.heads_total, tensor_ranks, tensor_rank, true, part.first_head, part.heads, reason);
      status < 0)
    return status;
  return split("layers", part.layers_total, pipeline_ranks, pipeline_rank, false, part.first_layer, part.layers,
               reason);
}

}  // namespace
}  // namespace maru::layout

using namespace maru::layout;

extern "C" {

MARU_LAYOUT_PUBLIC int maru_layout_measure(const maru_layout* layout, maru_layout_sizes* ret_sizes,
                                           maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  if (ret_sizes == nullptr) return fail(reason, EINVAL, "ret_sizes is NULL");
  *ret_sizes = geometry.sizes;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_base_offset(uint64_t base, uint64_t alignment, uint64_t* ret_bytes,
                                               maru_layout_reason* reason) {
  if (alignment == 0) alignment = 1;
  if (!std::has_single_bit(alignment) || alignment > MARU_LAYOUT_ALIGNMENT_MAX)
    return fail(reason, EINVAL, "alignment is %llu, expected a power of two up to %llu", ull(alignment),
                ull(MARU_LAYOUT_ALIGNMENT_MAX));
  if (ret_bytes == nullptr) return fail(reason, EINVAL, "ret_bytes is NULL");
  const Checked aligned = Checked(base).aligned(alignment);
  if (!aligned.fits(UINT64_MAX))
    return fail(reason, EOVERFLOW, "no multiple of %llu follows the base %llu", ull(alignment), ull(base));
  *ret_bytes = aligned.value() - base;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_locate(const maru_layout* layout, uint64_t block, uint64_t layer, uint64_t outer,
                                          maru_layout_part* ret_part, maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  const Region region = {block, layer, outer};
  if (const int status = check_region(geometry.layout, region, reason); status < 0) return status;
  if (ret_part == nullptr) return fail(reason, EINVAL, "ret_part is NULL");
  *ret_part = part_of(geometry, region, geometry.sizes.region_bytes);
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_locate_element(const maru_layout* layout, const maru_layout_element* element,
                                                  maru_layout_part* ret_part, maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  if (element == nullptr || ret_part == nullptr) return fail(reason, EINVAL, "element or ret_part is NULL");
  const Region region = {element->block, element->layer, element->outer};
  const maru_layout& known = geometry.layout;
  if (const int status = check_region(known, region, reason); status < 0) return status;
  if (const int status = check_index("token", element->token, known.page_tokens, reason); status < 0) return status;
  if (const int status = check_index("head", element->head, known.heads, reason); status < 0) return status;
  if (const int status = check_index("dim", element->dim, known.head_dim, reason); status < 0) return status;
  maru_layout_part part = part_of(geometry, region, geometry.sizes.element_bytes);
  part.offset += element->token * geometry.token_stride + element->head * geometry.head_stride +
                 element->dim * geometry.sizes.element_bytes;
  *ret_part = part;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_block_parts(const maru_layout* layout, uint64_t block, maru_layout_part* ret_parts,
                                               size_t room, size_t* ret_parts_count, maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  const maru_layout& known = geometry.layout;
  if (const int status = check_index("block", block, known.blocks, reason); status < 0) return status;
  if (ret_parts == nullptr || ret_parts_count == nullptr)
    return fail(reason, EINVAL, "ret_parts or ret_parts_count is NULL");
  // K and V of a layer are neighbours unless all K come first.
  const uint64_t outers = known.kind == MARU_LAYOUT_SEPARATE_OUTER ? known.outer : 1;
  const uint64_t layers = geometry.is_separate() ? known.layers : 1;
  if (room < layers * outers)
    return fail(reason, ENOSPC, "the block has %llu parts, and there is room for %zu", ull(layers * outers), room);
  const uint64_t bytes = geometry.sizes.block_bytes / (layers * outers);
  size_t count = 0;
  for (uint64_t layer = 0; layer < layers; ++layer)
    for (uint64_t outer = 0; outer < outers; ++outer)
      ret_parts[count++] = part_of(geometry, {block, layer, outer}, bytes);
  *ret_parts_count = count;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_slice(const maru_layout* whole, uint64_t tensor_ranks, uint64_t tensor_rank,
                                         uint64_t pipeline_ranks, uint64_t pipeline_rank, maru_layout* ret_layout,
                                         maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(whole, geometry, reason); status < 0) return status;
  if (ret_layout == nullptr) return fail(reason, EINVAL, "ret_layout is NULL");
  maru_layout part;
  if (const int status = slice(geometry, tensor_ranks, tensor_rank, pipeline_ranks, pipeline_rank, part, reason);
      status < 0)
    return status;
  *ret_layout = part;
  return 0;
}

}  // extern "C"
