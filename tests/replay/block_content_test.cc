#include "daemon/tools/replay/block_content.h"

#include <gtest/gtest.h>
#include <set>

namespace maru::replay {
namespace {

std::vector<BlockDigest> digests_of(std::vector<uint64_t> ids, uint64_t payload_bytes = 16384) {
  std::vector<BlockDigest> digests;
  prefix_digests(trace::Request{std::move(ids)}, payload_bytes, digests);
  return digests;
}

TEST(BlockContent, EqualPrefixesHaveEqualDigests) {
  const auto one = digests_of({1, 2, 3}), other = digests_of({1, 2, 4});
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(one[0], other[0]);
  EXPECT_EQ(one[1], other[1]);
  EXPECT_NE(one[2], other[2]);
}

TEST(BlockContent, ADigestSpeaksOfEverythingBeforeIt) {
  EXPECT_NE(digests_of({1, 2, 3})[2], digests_of({9, 2, 3})[2]);
  EXPECT_NE(digests_of({1, 2})[1], digests_of({2, 1})[1]);
}

// A pool may still have the blocks of a replay with other ones.
TEST(BlockContent, BlocksOfAnotherLengthHaveOtherDigests) {
  const auto one = digests_of({1, 2}), other = digests_of({1, 2}, 16385);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NE(one[i][0], other[i][0]);
    EXPECT_NE(one[i][1], other[i][1]);
  }
}

TEST(BlockContent, ManyDigestsDifferInBothHalves) {
  std::set<uint64_t> low, high;
  for (uint64_t id = 0; id < 100'000; ++id) {
    const BlockDigest digest = digests_of({0, id})[1];
    low.insert(digest[0]);
    high.insert(digest[1]);
  }
  EXPECT_EQ(low.size(), 100'000u);
  EXPECT_EQ(high.size(), 100'000u);
}

class BlockContentOfSize : public testing::TestWithParam<size_t> {};

TEST_P(BlockContentOfSize, WhatWasFilledIsRight) {
  std::vector<std::byte> block(GetParam());
  const BlockDigest digest = digests_of({5, 6})[1];
  fill_block(digest, block);
  EXPECT_EQ(count_wrong_bytes(digest, block), 0u);
}

TEST_P(BlockContentOfSize, EverySingleByteCounts) {
  std::vector<std::byte> block(GetParam());
  const BlockDigest digest = digests_of({5, 6})[1];
  fill_block(digest, block);
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] ^= std::byte{1};
    EXPECT_EQ(count_wrong_bytes(digest, block), 1u) << "byte " << i;
    block[i] ^= std::byte{1};
  }
}

TEST_P(BlockContentOfSize, AnotherBlocksBytesAreWrong) {
  std::vector<std::byte> block(GetParam());
  const auto digests = digests_of({5, 6});
  fill_block(digests[0], block);
  EXPECT_GT(count_wrong_bytes(digests[1], block), GetParam() * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockContentOfSize, testing::Values(64, 511, 512, 513, 1000, 4096, 16384));

TEST(BlockContent, AShiftedBlockIsWrong) {
  const BlockDigest digest = digests_of({5})[0];
  std::vector<std::byte> block(4096 + 8);
  fill_block(digest, block);
  EXPECT_GT(count_wrong_bytes(digest, std::span(block).subspan(8)), 3600u);
}

}  // namespace
}  // namespace maru::replay
