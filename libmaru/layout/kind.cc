// Which kind a layout has: from a name, from a wish, from the shape of an engine's tensors.
#include "libmaru/layout/names.h"
#include "libmaru/layout/reason.h"

#include <cerrno>
#include <string>

namespace maru::layout {
namespace {

// Longer than any of them with its separators.
constexpr size_t kTextBytesMax = 64;

constexpr Name kWishes[] = {
    {"fullycontiguous", MARU_LAYOUT_CONTIGUOUS},   {"contiguous", MARU_LAYOUT_CONTIGUOUS},
    {"layerseparate", MARU_LAYOUT_SEPARATE},       {"layerseparateoutercontiguous", MARU_LAYOUT_SEPARATE_OUTER},
    {"separateouter", MARU_LAYOUT_SEPARATE_OUTER}, {"layerseparateblockcontiguous", MARU_LAYOUT_SEPARATE_BLOCK},
    {"separateblock", MARU_LAYOUT_SEPARATE_BLOCK},
};

// Lower case, without separators.
std::optional<uint32_t> wish_of(const char* text) {
  char plain[kTextBytesMax];
  size_t n = 0;
  for (const char* at = text; *at != 0; ++at) {
    if (*at == '_' || *at == '-') continue;
    if (n == sizeof(plain)) return std::nullopt;
    plain[n++] = char(*at >= 'A' && *at <= 'Z' ? *at - 'A' + 'a' : *at);
  }
  return number_of(kWishes, {plain, n});
}

struct Shape {
  const uint64_t* extents;
  size_t dimensions;
  uint64_t at(size_t dimension) const { return dimension < dimensions ? extents[dimension] : 0; }
};

bool has_room(const Shape& shape, uint32_t kind, uint64_t blocks, uint32_t outer) {
  if (kind == MARU_LAYOUT_SEPARATE_BLOCK) return shape.at(0) >= blocks;
  return shape.at(0) == outer && shape.at(1) >= blocks;
}

int choose_by_shape(const Shape& shape, uint64_t blocks, uint32_t outer, uint32_t& ret_kind,
                    maru_layout_reason* reason) {
  if (shape.at(0) < blocks && shape.at(1) < blocks)
    return fail(reason, EINVAL,
                "the first extents of the shape are %llu and %llu, expected one of at least %llu blocks",
                ull(shape.at(0)), ull(shape.at(1)), ull(blocks));
  if (outer == 2 && blocks <= 2)
    return fail(reason, ENOTUNIQ,
                "with %llu blocks the extents %llu and %llu may be those of blocks or of K and V; wish for "
                "separate_outer or separate_block",
                ull(blocks), ull(shape.at(0)), ull(shape.at(1)));
  ret_kind = shape.at(0) >= blocks ? MARU_LAYOUT_SEPARATE_BLOCK : MARU_LAYOUT_SEPARATE_OUTER;
  return 0;
}

int choose(uint32_t wish, const Shape& shape, uint64_t blocks, uint32_t outer, uint32_t& ret_kind,
           maru_layout_reason* reason) {
  if (wish < MARU_LAYOUT_CONTIGUOUS || wish > MARU_LAYOUT_SEPARATE)
    return fail(reason, EINVAL, "the wish is %u, expected 1 to 4 (enum maru_layout_kind)", wish);
  if (outer < 1 || outer > 2) return fail(reason, EINVAL, "outer is %u, expected 1 or 2", outer);
  if (blocks < 1 || blocks > MARU_LAYOUT_BLOCKS_MAX)
    return fail(reason, EINVAL, "blocks is %llu, expected 1 to %llu", ull(blocks), ull(MARU_LAYOUT_BLOCKS_MAX));
  if (shape.dimensions > 0 && shape.extents == nullptr)
    return fail(reason, EINVAL, "the shape is NULL with %zu dimensions", shape.dimensions);
  ret_kind = wish;
  if (wish == MARU_LAYOUT_CONTIGUOUS) return 0;
  if (shape.dimensions == 0) {
    if (wish == MARU_LAYOUT_SEPARATE) ret_kind = MARU_LAYOUT_SEPARATE_OUTER;
    return 0;
  }
  if (wish == MARU_LAYOUT_SEPARATE) return choose_by_shape(shape, blocks, outer, ret_kind, reason);
  const bool fits =
      has_room(shape, wish, blocks, outer) || (outer == 1 && (shape.at(0) >= blocks || shape.at(1) >= blocks));
  if (fits) return 0;
  return fail(reason, EINVAL, "%s contradicts a shape that begins with %llu, %llu, for %llu blocks and outer %u",
              text_of(kKinds, wish), ull(shape.at(0)), ull(shape.at(1)), ull(blocks), outer);
}

}  // namespace
}  // namespace maru::layout

using namespace maru::layout;

extern "C" {

MARU_LAYOUT_PUBLIC int maru_layout_kind_from_text(const char* text, uint32_t* ret_kind, maru_layout_reason* reason) {
  if (text == nullptr || ret_kind == nullptr) return fail(reason, EINVAL, "text or ret_kind is NULL");
  const std::optional<uint32_t> wish = wish_of(text);
  if (!wish)
    return fail(
        reason, EINVAL,
        "found the kind \"%.64s\", expected fully_contiguous, layer_separate, layer_separate_outer_contiguous or "
        "layer_separate_block_contiguous",
        text);
  *ret_kind = *wish;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_choose_kind(uint32_t wish, const uint64_t* shape, size_t dimensions, uint64_t blocks,
                                               uint32_t outer, uint32_t* ret_kind, maru_layout_reason* reason) {
  if (ret_kind == nullptr) return fail(reason, EINVAL, "ret_kind is NULL");
  uint32_t kind = 0;
  if (const int status = choose(wish, {shape, dimensions}, blocks, outer, kind, reason); status < 0) return status;
  *ret_kind = kind;
  return 0;
}

}  // extern "C"
