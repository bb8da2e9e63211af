// maru/layout.h: sizes and places against a model that counts, the cases that have gone wrong elsewhere, and refusals.
#include "maru/layout.h"
#include "tests/support/layout_model.h"

#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <string>

namespace {

using namespace maru::test;

maru_layout usual() {
  return make_layout(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, MARU_LAYOUT_FLOAT16, 2, 10, 4, 16, 8, 128);
}

maru_layout_sizes sizes_of(const maru_layout& layout) {
  maru_layout_sizes sizes = {};
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_layout_measure(&layout, &sizes, &reason), 0) << reason.text;
  return sizes;
}

// Refused with this errno, in a sentence that has each of these words, and without a change of the output.
void expect_refused(const maru_layout& layout, int code, const std::vector<std::string>& words) {
  maru_layout_sizes sizes = {}, untouched = {};
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_layout_measure(&layout, &sizes, &reason), -code) << reason.text;
  for (const std::string& word : words)
    EXPECT_NE(std::string(reason.text).find(word), std::string::npos) << word << " in: " << reason.text;
  EXPECT_EQ(std::memcmp(&sizes, &untouched, sizeof(sizes)), 0);
  EXPECT_EQ(maru_layout_measure(&layout, &sizes, nullptr), -code);
}

void compare_with_model(const maru_layout& layout) {
  const LayoutModel model(layout);
  const maru_layout_sizes sizes = sizes_of(layout);
  ASSERT_EQ(sizes.storage_bytes, model.storage_bytes());
  ASSERT_EQ(sizes.storages, layout.kind == MARU_LAYOUT_CONTIGUOUS ? 1 : layout.layers);
  ASSERT_EQ(sizes.block_bytes, model.places().size() / layout.blocks * model.width());
  ASSERT_EQ(sizes.allocation_bytes, sizes.storage_bytes + layout.alignment - 1);
  for (const auto& [element, place] : model.places()) {
    const auto [block, layer, outer, token, head, dim] = element;
    const maru_layout_element asked = {block, layer, outer, token, head, dim};
    maru_layout_part part = {};
    ASSERT_EQ(maru_layout_locate_element(&layout, &asked, &part, nullptr), 0);
    ASSERT_EQ(Place(part.storage, part.offset), place);
    ASSERT_EQ(part.bytes, model.width());
    if (token != 0 || head != 0 || dim != 0) continue;
    ASSERT_EQ(maru_layout_locate(&layout, block, layer, outer, &part, nullptr), 0);
    ASSERT_EQ(Place(part.storage, part.offset), place);
    ASSERT_EQ(part.bytes, sizes.region_bytes);
    // The formula in the header.
    ASSERT_EQ(part.offset, block * sizes.block_stride + layer * sizes.layer_stride + outer * sizes.outer_stride);
  }
}

// The parts of a block are the places of its elements, each once, and no other byte.
void compare_parts_with_model(const maru_layout& layout) {
  const LayoutModel model(layout);
  for (uint64_t block = 0; block < layout.blocks; ++block) {
    std::map<Place, int> bytes;
    std::vector<maru_layout_part> parts(2 * layout.layers);
    size_t count = 0;
    ASSERT_EQ(maru_layout_block_parts(&layout, block, parts.data(), parts.size(), &count, nullptr), 0);
    for (size_t i = 0; i < count; ++i)
      for (uint64_t byte = 0; byte < parts[i].bytes; ++byte) ++bytes[{parts[i].storage, parts[i].offset + byte}];
    for (const auto& [element, place] : model.places()) {
      if (std::get<0>(element) != block) continue;
      for (uint64_t byte = 0; byte < model.width(); ++byte) ASSERT_EQ((bytes[{place.first, place.second + byte}]--), 1);
    }
    for (const auto& [place, left] : bytes) ASSERT_EQ(left, 0);
  }
}

TEST(Layout, HasItsElementsWhereTheModelCountsThem) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) compare_with_model(random_layout(random));
}

TEST(Layout, BlockIsThePartsThatTheModelCounts) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 100 && !::testing::Test::HasFatalFailure(); ++i) compare_parts_with_model(random_layout(random));
}

// In literal numbers: 16 tokens of 8 heads of 128 elements of 2 bytes.
TEST(Layout, HasTheSizesOfTheFormulas) {
  maru_layout layout = usual();
  layout.layers = 3;
  layout.alignment = 1 << 18;
  const maru_layout_sizes contiguous = sizes_of(layout);
  EXPECT_EQ(contiguous.element_bytes, 2);
  EXPECT_EQ(contiguous.region_bytes, 32768);
  EXPECT_EQ(contiguous.outer_stride, 32768);
  EXPECT_EQ(contiguous.layer_stride, 65536);
  EXPECT_EQ(contiguous.block_bytes, 196608);
  EXPECT_EQ(contiguous.block_stride, 262144);
  EXPECT_EQ(contiguous.storage_bytes, 9 * 262144 + 196608);
  layout.kind = MARU_LAYOUT_SEPARATE_OUTER;
  const maru_layout_sizes outer = sizes_of(layout);
  EXPECT_EQ(outer.block_stride, 262144);
  EXPECT_EQ(outer.outer_stride, 10 * 262144);
  EXPECT_EQ(outer.storage_bytes, 20 * 262144);
  layout.kind = MARU_LAYOUT_SEPARATE_BLOCK;
  const maru_layout_sizes block = sizes_of(layout);
  EXPECT_EQ(block.block_stride, 262144);
  EXPECT_EQ(block.outer_stride, 32768);
  EXPECT_EQ(block.storage_bytes, 10 * 262144);
}

TEST(Layout, LastBlockIsNotPadded) {
  maru_layout layout = usual();
  layout.blocks = 1;
  layout.alignment = 1 << 30;
  const maru_layout_sizes sizes = sizes_of(layout);
  EXPECT_EQ(sizes.storage_bytes, sizes.block_bytes);
  EXPECT_LT(sizes.storage_bytes, sizes.block_stride);
}

// A view of the layers alone would have half of such a block.
TEST(Layout, WholeBlockCoversKAndV) {
  for (const uint32_t kind : {MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_SEPARATE_OUTER, MARU_LAYOUT_SEPARATE_BLOCK}) {
    maru_layout layout = usual();
    layout.kind = kind;
    std::vector<maru_layout_part> parts(2 * layout.layers);
    size_t count = 0;
    ASSERT_EQ(maru_layout_block_parts(&layout, 3, parts.data(), parts.size(), &count, nullptr), 0);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += parts[i].bytes;
    EXPECT_EQ(bytes, 2 * layout.layers * sizes_of(layout).region_bytes);
    EXPECT_EQ(count, kind == MARU_LAYOUT_CONTIGUOUS ? 1 : kind == MARU_LAYOUT_SEPARATE_BLOCK ? 4 : 8);
  }
}

TEST(Layout, BaseIsBroughtToTheAlignment) {
  uint64_t bytes = 99;
  EXPECT_EQ(maru_layout_base_offset(0x1001, 0x1000, &bytes, nullptr), 0);
  EXPECT_EQ(bytes, 0xFFF);
  EXPECT_EQ(maru_layout_base_offset(0x1000, 0x1000, &bytes, nullptr), 0);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(maru_layout_base_offset(77, 0, &bytes, nullptr), 0);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(maru_layout_base_offset(77, 3, &bytes, nullptr), -EINVAL);
  EXPECT_EQ(maru_layout_base_offset(UINT64_MAX, 4096, &bytes, nullptr), -EOVERFLOW);
}

TEST(Layout, RefusesWhatIsOutOfRange) {
  const std::pair<uint64_t maru_layout::*, std::string> words[] = {{&maru_layout::blocks, "blocks"},
                                                                   {&maru_layout::layers, "layers"},
                                                                   {&maru_layout::page_tokens, "page_tokens"},
                                                                   {&maru_layout::heads, "heads"},
                                                                   {&maru_layout::head_dim, "head_dim"},
                                                                   {&maru_layout::heads_total, "heads_total"},
                                                                   {&maru_layout::layers_total, "layers_total"}};
  for (const auto& [member, name] : words) {
    maru_layout layout = usual();
    layout.*member = UINT64_MAX;
    expect_refused(layout, EINVAL, {name, "18446744073709551615", "expected"});
  }
  for (const auto& [member, name] : {words[0], words[1], words[2], words[3], words[4]}) {
    maru_layout layout = usual();
    layout.*member = 0;
    expect_refused(layout, EINVAL, {name + " is 0", "expected 1 to"});
  }
  const std::pair<uint32_t maru_layout::*, std::string> numbers[] = {{&maru_layout::kind, "kind"},
                                                                     {&maru_layout::order, "order"},
                                                                     {&maru_layout::dtype, "dtype"},
                                                                     {&maru_layout::outer, "outer"}};
  for (const auto& [member, name] : numbers)
    for (const uint32_t value : {0u, 9u, UINT32_MAX}) {
      maru_layout layout = usual();
      layout.*member = value;
      expect_refused(layout, EINVAL, {name + " is " + std::to_string(value), "expected 1 to"});
    }
  maru_layout wish = usual();
  wish.kind = MARU_LAYOUT_SEPARATE;
  expect_refused(wish, EINVAL, {"kind is 4"});
  maru_layout uneven = usual();
  uneven.alignment = 48;
  expect_refused(uneven, EINVAL, {"alignment is 48", "power of two"});
  maru_layout reserved = usual();
  reserved.reserved[1] = 5;
  expect_refused(reserved, EINVAL, {"reserved[1] is 5"});
  maru_layout other = usual();
  other.size -= 8;
  expect_refused(other, EINVAL, {"size is"});
  EXPECT_EQ(maru_layout_measure(nullptr, nullptr, nullptr), -EINVAL);
}

TEST(Layout, RefusesAPartOutsideOfTheModel) {
  maru_layout layout = usual();
  layout.heads_total = 8;
  layout.first_head = 1;
  expect_refused(layout, EINVAL, {"first_head is 1 with 8 heads", "model's 8"});
  layout = usual();
  layout.layers_total = 5;
  layout.first_layer = UINT64_MAX;
  expect_refused(layout, EINVAL, {"first_layer", "model's 5"});
}

TEST(Layout, RefusesWhatOverflows) {
  maru_layout layout = usual();
  layout.blocks = MARU_LAYOUT_BLOCKS_MAX;
  layout.page_tokens = MARU_LAYOUT_PAGE_TOKENS_MAX;
  expect_refused(layout, EOVERFLOW, {"4611686018427387903 bytes"});
  layout = usual();
  layout.layers = MARU_LAYOUT_LAYERS_MAX;
  layout.page_tokens = MARU_LAYOUT_PAGE_TOKENS_MAX;
  layout.heads = MARU_LAYOUT_HEADS_MAX;
  layout.head_dim = MARU_LAYOUT_HEAD_DIM_MAX;
  layout.kind = MARU_LAYOUT_SEPARATE_BLOCK;  // each storage would fit, and a block would not
  layout.blocks = 1;
  expect_refused(layout, EOVERFLOW, {"a block"});
}

TEST(Layout, GreatestSizesAreExact) {
  maru_layout layout = make_layout(MARU_LAYOUT_SEPARATE_OUTER, MARU_LAYOUT_HND, MARU_LAYOUT_UINT8, 1,
                                   MARU_LAYOUT_BLOCKS_MAX, 1, MARU_LAYOUT_PAGE_TOKENS_MAX, 3, 1);
  EXPECT_EQ(sizes_of(layout).storage_bytes, 3ull << 60);
  layout.heads = 4;  // one byte more than the most
  expect_refused(layout, EOVERFLOW, {});
}

TEST(Layout, RefusesIndicesByName) {
  const maru_layout layout = usual();
  maru_layout_part part = {};
  maru_layout_reason reason = {};
  const auto refused = [&](int status, const char* words) {
    EXPECT_EQ(status, -ERANGE);
    EXPECT_STREQ(reason.text, words);
  };
  refused(maru_layout_locate(&layout, 10, 0, 0, &part, &reason), "there is no block 10; the layout has 10, from 0");
  refused(maru_layout_locate(&layout, 9, 4, 0, &part, &reason), "there is no layer 4; the layout has 4, from 0");
  refused(maru_layout_locate(&layout, 9, 3, 2, &part, &reason), "there is no outer index 2; the layout has 2, from 0");
  maru_layout_element element = {0, 0, 0, 16, 0, 0};
  refused(maru_layout_locate_element(&layout, &element, &part, &reason),
          "there is no token 16; the layout has 16, from 0");
  element = {0, 0, 0, 0, 8, 0};
  refused(maru_layout_locate_element(&layout, &element, &part, &reason),
          "there is no head 8; the layout has 8, from 0");
  element = {0, 0, 0, 0, 0, UINT64_MAX};
  EXPECT_EQ(maru_layout_locate_element(&layout, &element, &part, &reason), -ERANGE);
  maru_layout_part parts[1];
  size_t count = 0;
  refused(maru_layout_block_parts(&layout, 10, parts, 1, &count, &reason),
          "there is no block 10; the layout has 10, from 0");
  maru_layout separate = layout;
  separate.kind = MARU_LAYOUT_SEPARATE_OUTER;
  EXPECT_EQ(maru_layout_block_parts(&separate, 0, parts, 1, &count, &reason), -ENOSPC);
  EXPECT_STREQ(reason.text, "the block has 8 parts, and there is room for 1");
}

TEST(Layout, RanksSplitHeadsAndLayers) {
  const maru_layout whole = usual();
  maru_layout part = {};
  ASSERT_EQ(maru_layout_slice(&whole, 4, 3, 2, 1, &part, nullptr), 0);
  EXPECT_EQ(part.heads, 2);
  EXPECT_EQ(part.first_head, 6);
  EXPECT_EQ(part.heads_total, 8);
  EXPECT_EQ(part.layers, 2);
  EXPECT_EQ(part.first_layer, 2);
  EXPECT_EQ(part.layers_total, 4);
  // More ranks than heads: neighbours have the same.
  ASSERT_EQ(maru_layout_slice(&whole, 16, 13, 1, 0, &part, nullptr), 0);
  EXPECT_EQ(part.heads, 1);
  EXPECT_EQ(part.first_head, 6);
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_layout_slice(&whole, 3, 0, 1, 0, &part, &reason), -EINVAL);
  EXPECT_STREQ(reason.text, "3 ranks cannot share 8 heads evenly");
  EXPECT_EQ(maru_layout_slice(&whole, 4, 4, 1, 0, &part, &reason), -EINVAL);
  EXPECT_EQ(maru_layout_slice(&whole, 0, 0, 1, 0, &part, &reason), -EINVAL);
  EXPECT_EQ(maru_layout_slice(&whole, 1, 0, 8, 0, &part, &reason), -EINVAL);
  EXPECT_STREQ(reason.text, "8 ranks cannot share 4 layers evenly");
  maru_layout half = whole;
  half.heads_total = 16;
  EXPECT_EQ(maru_layout_slice(&half, 2, 0, 1, 0, &part, &reason), -EINVAL);
}

TEST(LayoutKind, IsFoundByEachOfItsNames) {
  const std::pair<const char*, uint32_t> names[] = {{"fully_contiguous", MARU_LAYOUT_CONTIGUOUS},
                                                    {"FullyContiguous", MARU_LAYOUT_CONTIGUOUS},
                                                    {"layer-separate", MARU_LAYOUT_SEPARATE},
                                                    {"LAYER_SEPARATE_OUTER_CONTIGUOUS", MARU_LAYOUT_SEPARATE_OUTER},
                                                    {"layer_separate-blockContiguous", MARU_LAYOUT_SEPARATE_BLOCK},
                                                    {"separate_outer", MARU_LAYOUT_SEPARATE_OUTER},
                                                    {"separate_block", MARU_LAYOUT_SEPARATE_BLOCK},
                                                    {"contiguous", MARU_LAYOUT_CONTIGUOUS}};
  for (const auto& [text, expected] : names) {
    uint32_t kind = 0;
    EXPECT_EQ(maru_layout_kind_from_text(text, &kind, nullptr), 0) << text;
    EXPECT_EQ(kind, expected) << text;
  }
  for (const std::string& text : {std::string(), std::string("contiguou"), std::string("contiguous "),
                                  std::string(1000, 'x'), std::string(1000, '-')}) {
    uint32_t kind = 7;
    maru_layout_reason reason = {};
    EXPECT_EQ(maru_layout_kind_from_text(text.c_str(), &kind, &reason), -EINVAL);
    EXPECT_NE(std::string(reason.text).find("expected fully_contiguous"), std::string::npos) << reason.text;
    EXPECT_EQ(kind, 7);
  }
}

struct Choice {
  uint32_t wish;
  std::vector<uint64_t> shape;
  uint64_t blocks;
  uint32_t outer;
  int status;
  uint32_t kind;
};

TEST(LayoutKind, FollowsTheShapeUnlessThatCannotBe) {
  const Choice choices[] = {
      // The shape decides.
      {MARU_LAYOUT_SEPARATE, {100, 2, 16, 1024}, 100, 2, 0, MARU_LAYOUT_SEPARATE_BLOCK},
      {MARU_LAYOUT_SEPARATE, {2, 100, 16, 1024}, 100, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE, {2, 128}, 100, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE, {}, 100, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE, {2, 99}, 100, 2, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE, {99}, 100, 2, -EINVAL, 0},
      // A wish that contradicts the shape would swap K and V.
      {MARU_LAYOUT_SEPARATE_OUTER, {100, 2}, 100, 2, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE_BLOCK, {2, 100}, 100, 2, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE_OUTER, {64, 64}, 10, 2, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE_OUTER, {2, 100}, 100, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE_BLOCK, {100, 2}, 100, 2, 0, MARU_LAYOUT_SEPARATE_BLOCK},
      // With outer 1 the two are the same.
      {MARU_LAYOUT_SEPARATE_OUTER, {100, 16}, 100, 1, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE_BLOCK, {1, 100}, 100, 1, 0, MARU_LAYOUT_SEPARATE_BLOCK},
      {MARU_LAYOUT_SEPARATE, {2, 16}, 2, 1, 0, MARU_LAYOUT_SEPARATE_BLOCK},
      // Two blocks look like K and V.
      {MARU_LAYOUT_SEPARATE, {2, 2}, 2, 2, -ENOTUNIQ, 0},
      {MARU_LAYOUT_SEPARATE, {2, 2}, 1, 2, -ENOTUNIQ, 0},
      {MARU_LAYOUT_SEPARATE, {2, 3}, 3, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE_OUTER, {2, 2}, 2, 2, 0, MARU_LAYOUT_SEPARATE_OUTER},
      {MARU_LAYOUT_SEPARATE_BLOCK, {2, 2}, 2, 2, 0, MARU_LAYOUT_SEPARATE_BLOCK},
      // One tensor for all layers has no such shape.
      {MARU_LAYOUT_CONTIGUOUS, {7, 7}, 100, 2, 0, MARU_LAYOUT_CONTIGUOUS},
      {0, {2, 100}, 100, 2, -EINVAL, 0},
      {5, {2, 100}, 100, 2, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE, {2, 100}, 100, 3, -EINVAL, 0},
      {MARU_LAYOUT_SEPARATE, {2, 100}, 0, 2, -EINVAL, 0},
  };
  for (const Choice& choice : choices) {
    uint32_t kind = 0;
    maru_layout_reason reason = {};
    EXPECT_EQ(maru_layout_choose_kind(choice.wish, choice.shape.empty() ? nullptr : choice.shape.data(),
                                      choice.shape.size(), choice.blocks, choice.outer, &kind, &reason),
              choice.status)
        << "choice " << &choice - choices << ": " << reason.text;
    EXPECT_EQ(kind, choice.kind) << "choice " << &choice - choices;
    EXPECT_EQ(reason.text[0] == 0, choice.status == 0);
  }
}

}  // namespace
