// maru/layout.hpp: each call once, and a refusal of each with its reason.
#include "maru/layout.hpp"
#include "tests/support/layout_model.h"

#include <gtest/gtest.h>

namespace {

using maru::Layout;
using maru::Reslice;

Layout model() {
  return Layout(
      maru::test::make_layout(MARU_LAYOUT_SEPARATE_OUTER, MARU_LAYOUT_NHD, MARU_LAYOUT_UINT8, 2, 4, 2, 4, 8, 2));
}

std::vector<Layout> ranks_of(const Layout& whole, uint64_t ranks) {
  std::vector<Layout> layouts;
  for (uint64_t i = 0; i < ranks; ++i) layouts.push_back(*whole.slice(ranks, i));
  return layouts;
}

struct Memory {
  explicit Memory(const std::vector<Layout>& layouts) {
    for (const Layout& layout : layouts)
      for (uint64_t i = 0; i < layout.measure()->storages; ++i) bytes.emplace_back(layout.measure()->allocation_bytes);
    for (auto& each : bytes) storages.push_back({each.data(), each.size()});
  }
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<maru_reslice_storage> storages;
};

TEST(LayoutInCpp, SaysWhatTheCallsOfCSay) {
  const Layout layout = model();
  ASSERT_TRUE(layout.measure().ok());
  EXPECT_EQ(layout.measure()->region_bytes, 64u);
  EXPECT_EQ(layout.locate(1, 1, 1)->offset, 64u * 5);
  EXPECT_EQ(layout.locate({1, 1, 1, 3, 7, 1})->offset, 64u * 5 + 63);
  EXPECT_EQ(layout.block_parts(3)->size(), 4u);
  EXPECT_EQ(layout.slice(4, 1)->first_head, 2u);
  EXPECT_EQ(Layout::decode(*layout.encode())->layers, 2u);
  EXPECT_EQ(Layout::from_json(*layout.to_json())->fingerprint().ok(), true);
  EXPECT_EQ(*Layout::from_json(*layout.to_json())->fingerprint(), *layout.fingerprint());
}

TEST(LayoutInCpp, RefusesWithAReason) {
  Layout layout = model();
  EXPECT_EQ(layout.locate(4, 0, 0).error(), ERANGE);
  EXPECT_EQ(layout.locate(4, 0, 0).reason(), "there is no block 4; the layout has 4, from 0");
  EXPECT_EQ(layout.slice(3, 0).reason(), "3 ranks cannot share 8 heads evenly");
  EXPECT_EQ(Layout::decode({}).reason(), "found 0 bytes, expected 128");
  EXPECT_EQ(Layout::from_json("").error(), EBADMSG);
  layout.layers = UINT64_MAX;
  EXPECT_FALSE(layout.measure().ok());
  EXPECT_FALSE(layout.block_parts(0).ok());
  EXPECT_FALSE(layout.encode().ok());
  EXPECT_FALSE(layout.to_json().ok());
  EXPECT_FALSE(layout.fingerprint().ok());
  EXPECT_EQ(Reslice::plan({}, {}).error(), EINVAL);
}

TEST(LayoutInCpp, CopiesThereAndBack) {
  const std::vector<Layout> four = ranks_of(model(), 4), eight = ranks_of(model(), 8);
  Memory from(four), to(eight), again(four);
  for (size_t i = 0; i < from.bytes.size(); ++i)
    for (size_t j = 0; j < from.bytes[i].size(); ++j) from.bytes[i][j] = uint8_t(1 + (i * 131 + j * 7) % 255);
  maru::Answer<Reslice> there = Reslice::plan(four, eight);
  ASSERT_TRUE(there.ok()) << there.reason();
  Reslice moved = *std::move(there);
  EXPECT_EQ(moved.totals().bytes, 4u * 2 * 2 * 64);
  std::array<maru_reslice_run, 3> runs;
  EXPECT_EQ(moved.runs(0, runs)->size(), 3u);
  EXPECT_EQ(moved.runs(moved.totals().runs, runs).error(), ERANGE);
  ASSERT_TRUE(moved.copy(from.storages, to.storages).ok());
  EXPECT_EQ(moved.copy(from.storages, {}).error(), EINVAL);
  const std::vector<uint64_t> blocks = {0, 1, 2, 3};
  const maru::Answer<Reslice> back = Reslice::plan(eight, four, {blocks, blocks});
  ASSERT_TRUE(back->copy(to.storages, again.storages).ok());
  EXPECT_EQ(again.bytes, from.bytes);
}

}  // namespace
