// Two processes and one pool: who sees what, who wins, what a pin holds.
#include "tests/process/puppet.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <gtest/gtest.h>

namespace maru::test {
namespace {

using format::PageState;

class Sharing : public ::testing::Test {
 protected:
  MarudProcess marud_;
  TestClient client_{marud_.socket_path()};
  Puppet other_{marud_.socket_path()};
  ControlMap map_{marud_.socket_path()};
};

TEST_F(Sharing, BlockOfOneProcessIsReadByAnother) {
  EXPECT_EQ(other_.exists("a"), 0);
  EXPECT_EQ(client_.store("a", "what the first process wrote"), 0);
  EXPECT_EQ(other_.exists("a"), 1);
  EXPECT_EQ(other_.retrieve("a").at("text"), "what the first process wrote");
  EXPECT_EQ(other_.release("a"), 0);

  EXPECT_EQ(other_.store("b", "and the other one"), 0);
  EXPECT_EQ(client_.text("b"), "and the other one");
}

TEST_F(Sharing, BlockLargerThanAPageIsReadWhole) {
  std::string large(5 * 4096 + 17, 0);
  for (size_t i = 0; i < large.size(); ++i) large[i] = char('a' + i * 31 % 26);
  EXPECT_EQ(client_.store("large", large), 0);
  EXPECT_EQ(other_.retrieve("large").at("text"), large);
}

TEST_F(Sharing, FirstWriterWinsAndLosersPagesReturn) {
  ASSERT_EQ(client_.store("warm", "a page, so that the region is rented"), 0);
  const auto before = map_.count_pages();
  const maru_key key = key_of("k");
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client_, 3 * 4096, &buffer), 0);
  EXPECT_EQ(other_.store("k", "first"), 0);
  maru_block winner = 0;
  EXPECT_EQ(maru_store(client_, &key, &buffer, nullptr, &winner), 1);
  EXPECT_NE(winner, buffer.block);
  EXPECT_EQ(client_.text("k"), "first");
  EXPECT_EQ(maru_abort(client_, &buffer), -EINVAL) << "the buffer of a lost store is used up";
  const auto after = map_.count_pages();
  EXPECT_EQ(after[PageState::kReady], before[PageState::kReady] + 1);
  EXPECT_EQ(after[PageState::kTail], before[PageState::kTail]);
}

TEST_F(Sharing, KeyOfDeletedPinnedBlockIsGoneAtOnceAndMemoryAfterLastPin) {
  ASSERT_EQ(client_.store("k", "held by the other"), 0);
  ASSERT_EQ(other_.retrieve("k").at("result"), 0);
  maru_view mine;
  ASSERT_EQ(client_.retrieve("k", &mine), 0);

  EXPECT_EQ(client_.remove("k"), 0);
  EXPECT_EQ(client_.exists("k"), 0);
  EXPECT_EQ(other_.exists("k"), 0);
  EXPECT_EQ(client_.text("k"), std::nullopt);
  EXPECT_EQ(client_.remove("k"), -ENOENT);
  EXPECT_EQ(map_.count_pages()[PageState::kRetired], 1u);
  // The key can be used again while the old block is still being read.
  EXPECT_EQ(client_.store("k", "another life"), 0);
  EXPECT_EQ(std::string_view(static_cast<const char*>(mine.data), mine.bytes), "held by the other");

  EXPECT_EQ(client_.release(mine), 0);
  EXPECT_EQ(other_.ask({{"do", "read held"}, {"key", "k"}}).at("text"), "held by the other");
  EXPECT_EQ(other_.release("k"), 0);
  EXPECT_TRUE(wait_until([&] { return map_.count_pages()[PageState::kRetired] == 0; })) << map_.count_pages().text();
  EXPECT_EQ(client_.text("k"), "another life");
}

TEST_F(Sharing, AnyClientMayDeleteAnyBlock) {
  ASSERT_EQ(other_.store("k", "text"), 0);
  EXPECT_EQ(client_.remove("k"), 0);
  EXPECT_EQ(other_.exists("k"), 0);
}

TEST_F(Sharing, PinsOfKilledProcessEndAndItsBlocksStay) {
  ASSERT_EQ(other_.store("theirs", "stays"), 0);
  ASSERT_EQ(other_.retrieve("theirs").at("result"), 0);
  ASSERT_EQ(other_.ask({{"do", "alloc"}, {"bytes", 3 * 4096}, {"buffers", 5}}).at("result"), 0);
  EXPECT_GE(map_.count_pages()[PageState::kReserved], 5u);
  EXPECT_EQ(map_.count_pins(), 1u);
  other_.process().kill();
  // Its own caches of pages go, too; ours has none, for it has stored nothing.
  EXPECT_TRUE(wait_until([&] { return map_.count_pins() == 0 && map_.count_pages()[PageState::kReserved] == 0; }))
      << map_.count_pages().text();
  EXPECT_EQ(client_.text("theirs"), "stays");
}

TEST_F(Sharing, DetachReturnsPinsBuffersAndRegions) {
  ASSERT_EQ(client_.store("mine", "stays"), 0);
  maru_view view;
  ASSERT_EQ(client_.retrieve("mine", &view), 0);
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client_, 100, &buffer), 0);
  const uint32_t lane = client_.geometry().lane;
  const auto rented_by_lane = [&] {
    uint32_t regions = 0;
    for (uint32_t i = 0; i < map_.region().regions(); ++i) {
      const uint64_t word = map_.region().region(i).word.load_acquire();
      regions += word >> 60 == uint64_t(format::RegionState::kRented) && (word >> 16 & 0xFFF) == lane;
    }
    return regions;
  };
  EXPECT_EQ(client_.statistics().regions, rented_by_lane());
  EXPECT_GE(rented_by_lane(), 1u);
  client_.detach();
  EXPECT_EQ(rented_by_lane(), 0u);
  EXPECT_EQ(map_.count_pins(), 0u);
  EXPECT_EQ(map_.count_pages()[PageState::kReserved], 0u) << map_.count_pages().text();
  EXPECT_EQ(other_.retrieve("mine").at("text"), "stays");
}

TEST_F(Sharing, ReleaseIsRefusedTheSecondTime) {
  ASSERT_EQ(client_.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client_.retrieve("k", &view), 0);
  EXPECT_EQ(client_.release(view), 0);
  EXPECT_EQ(client_.release(view), -EINVAL);
  // Two pins of one block are two releases.
  maru_view first, second;
  ASSERT_EQ(client_.retrieve("k", &first), 0);
  ASSERT_EQ(client_.retrieve("k", &second), 0);
  EXPECT_EQ(map_.count_pins(), 1u) << "pins of one block share a slot";
  EXPECT_EQ(client_.release(first), 0);
  EXPECT_EQ(map_.count_pins(), 1u);
  EXPECT_EQ(client_.release(second), 0);
  EXPECT_EQ(client_.release(second), -EINVAL);
  EXPECT_EQ(map_.count_pins(), 0u);
}

TEST_F(Sharing, AbortGivesPagesBack) {
  ASSERT_EQ(client_.store("warm", "text"), 0);
  maru_buffer buffers[4];
  ASSERT_EQ(maru_alloc_batch(client_, 2 * 4096, 4, buffers), 0);
  const uint64_t tails = map_.count_pages()[PageState::kTail];
  EXPECT_EQ(tails, 4u);
  EXPECT_EQ(maru_abort_batch(client_, buffers, 4), 0);
  EXPECT_EQ(map_.count_pages()[PageState::kTail], 0u);
  EXPECT_EQ(maru_abort(client_, &buffers[0]), -EINVAL);
}

TEST_F(Sharing, BadArgumentsAreRefused) {
  const maru_key good = key_of("k");
  maru_key bad = good;
  bad.size = 0;
  EXPECT_EQ(maru_exists(client_, &bad), -EINVAL);
  bad = good;
  bad.kind = 9;
  EXPECT_EQ(maru_exists(client_, &bad), -EINVAL);
  bad = good;
  bad.kind = MARU_KEY_DIGEST128;
  EXPECT_EQ(maru_exists(client_, &bad), -EINVAL) << "one byte is no digest";
  EXPECT_EQ(maru_exists(client_, nullptr), -EINVAL);
  EXPECT_EQ(maru_exists(nullptr, &good), -EINVAL);
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(client_, 0, &buffer), -EINVAL);
  EXPECT_EQ(maru_alloc(client_, 64u << 20, &buffer), -EFBIG);
  EXPECT_EQ(maru_alloc(client_, ~uint64_t{0}, &buffer), -EFBIG);
  EXPECT_EQ(maru_store_copy(client_, &good, "text", ~uint64_t{0}, nullptr, nullptr), -EFBIG);
  const maru_buffer invented{nullptr, 4096, 0x1234'5678'0000'0001ull};
  EXPECT_EQ(maru_abort(client_, &invented), -EINVAL);
  EXPECT_EQ(maru_store(client_, &good, &invented, nullptr, nullptr), -EINVAL);
  maru_store_options options{};
  options.size = sizeof(options);
  options.parent = 5;
  EXPECT_EQ(maru_store_copy(client_, &good, "text", 4, &options, nullptr), -EINVAL) << "no block is called so";
  options.parent = 0;
  options.content_type = 0x100;
  EXPECT_EQ(maru_store_copy(client_, &good, "text", 4, &options, nullptr), -EINVAL);
  EXPECT_EQ(client_.exists("k"), 0);
}

TEST_F(Sharing, PagesThatAnotherClientFreedAreFoundWithoutMarud) {
  // One region, full of runs of two pages, so that this client knows of no free page.
  const uint64_t region_pages = client_.geometry().region_pages;
  for (uint64_t i = 0; i < region_pages / 2; ++i)
    ASSERT_EQ(client_.store("k" + std::to_string(i), std::string(2 * 4096, 'x')), 0);
  ASSERT_EQ(client_.statistics().regions, 1u);
  ASSERT_EQ(other_.remove("k7"), 0);
  const uint64_t rents = client_.statistics().rents;
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(client_, 2 * 4096, &buffer), 0);
  EXPECT_EQ(client_.statistics().rents, rents) << "marud was asked for what its client owns";
  EXPECT_EQ(maru_abort(client_, &buffer), 0);
}

TEST_F(Sharing, StoringACopyAgainIsADuplicateAndAUse) {
  ASSERT_EQ(client_.store("k", "text"), 0);
  ASSERT_EQ(client_.store("k", "other text"), 1);
  EXPECT_EQ(client_.statistics().duplicates, 1u);
  const uint64_t touches = map_.region().lane(client_.geometry().lane).header->touch_count.load_relaxed();
  EXPECT_TRUE(wait_until([&] {  // a second touch in the same tick is left out
    EXPECT_EQ(client_.store("k", "other text"), 1);
    return map_.region().lane(client_.geometry().lane).header->touch_count.load_relaxed() > touches;
  }));
  EXPECT_EQ(client_.text("k"), "text");
}

}  // namespace
}  // namespace maru::test
