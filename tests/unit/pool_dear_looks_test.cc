// A client can make every look at whether a block is pinned dear: its lane says that its pins overflow. Whatever takes blocks
// away, or lists them, then does less in a turn, and all of it in the end. Bounds are counts of blocks.
#include "tests/unit/filled_pool.h"

namespace maru::daemon {
namespace {

using nlohmann::json;

class DearLooks : public ::testing::Test {
 protected:
  static constexpr uint64_t kPins = 1u << 14, kOverflowLines = 2 * kPins / 8 / 8;  // of a lane
  static constexpr uint64_t kBlocks = 300, kTurnsMax = 1000;

  DearLooks() {
    while (auto other = home_.attach()) others_.push_back(std::move(other));
    EXPECT_EQ(others_.size(), 6u);
  }
  // Blocks that a turn may look at for one purpose: as long as lines are left, one more.
  uint64_t most() const { return (1u << 16) / (others_.size() * kOverflowLines) + 1; }
  void make_looks(bool dear) {
    for (const auto& other : others_) home_.region.lane_header(other->grant.lane).pin_overflow.store_relaxed(dear);
  }
  std::vector<PageRef> store_many(PageRef parent = PageRef::none()) {
    std::vector<PageRef> blocks;
    for (uint64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(client_->store(name(i), parent));
      if (i % 100 == 0) home_.pool->turn(home_.now_ms);
    }
    home_.pool->turn(home_.now_ms);
    return blocks;
  }
  void let_expire(const std::vector<PageRef>& blocks) {
    for (const PageRef ref : blocks) home_.region.block(ref.page()).expires_ms.store_relaxed(home_.now_ms);
  }
  uint64_t there() const { return home_.count(PageState::kReady); }
  // Turns until no more than so many blocks are there, none of which takes away more than `most_a_turn`.
  void turn_down_to(uint64_t left, uint64_t most_a_turn, uint64_t ms_a_turn) {
    uint64_t turns = 0;
    for (uint64_t before = there(); before > left && turns < kTurnsMax; ++turns) {
      home_.now_ms += ms_a_turn;
      home_.pool->turn(home_.now_ms);
      ASSERT_LE(before - there(), most_a_turn) << "in turn " << turns;
      before = there();
    }
    EXPECT_EQ(there(), left) << "after " << turns << " turns";
    EXPECT_GT(turns, 1u);
  }
  void expect_clean() {
    make_looks(false);
    home_.settle();
    EXPECT_EQ(home_.audit(), std::set<std::string>{});
  }

  PoolUnderTest home_{8u << 20, 64, kPins};
  std::unique_ptr<InProcessClient> client_ = home_.attach();
  std::vector<std::unique_ptr<InProcessClient>> others_;
};

TEST_F(DearLooks, WhatTheSweepFindsExpiredGoesInTurns) {
  let_expire(store_many());
  make_looks(true);
  // What one sweep leaves, and what the next one finds.
  turn_down_to(0, 2 * most(), 10);
  expect_clean();
}

TEST_F(DearLooks, WhatLookupsMetExpiredGoesInTurnsAndWaitsForNoSweep) {
  std::vector<PageRef> blocks = store_many();
  blocks.resize(200);  // that a ring has room for
  let_expire(blocks);
  make_looks(true);
  for (const PageRef ref : blocks) client_->touch(ref);
  turn_down_to(kBlocks - blocks.size(), most(), 0);
  expect_clean();
}

TEST_F(DearLooks, ARequestTakesAwayNoMoreOfWhatExpiredThanATurn) {
  std::vector<PageRef> blocks = fill(home_, *client_);
  home_.pool->turn(home_.now_ms);
  const PageRef used = blocks.back();
  blocks.pop_back();
  let_expire(blocks);
  for (int i = 0; i < 1000; ++i) client_->touch(used);  // more than the ring keeps: the request compares whole regions
  make_looks(true);
  const uint64_t before = there();
  ASSERT_TRUE(client_->rent(1));
  EXPECT_LE(before - there(), most() + 1);
  make_looks(false);
  for (int i = 0; i < 20; ++i) home_.pool->turn(home_.now_ms += 10);
  EXPECT_EQ(there(), 1u);
  expect_clean();
}

TEST_F(DearLooks, ATreeIsDeletedInTurns) {
  const PageRef root = client_->store("root");
  store_many(root);
  make_looks(true);
  const shm::Digest digest = home_.digest("root");
  uint64_t ticket = 0;
  home_.pool->delete_tree(client_->grant.lane, {digest.lo, digest.hi}, home_.now_ms, &ticket);
  ASSERT_NE(ticket, 0u) << "more than one request looks at";
  EXPECT_LE(kBlocks + 1 - there(), most());
  turn_down_to(0, most(), 0);
  const auto done = home_.pool->take_deleted_trees();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].result.deleted, kBlocks + 1);
  EXPECT_EQ(done[0].result.left, 0u);
  expect_clean();
}

TEST_F(DearLooks, WhatAClearHadToLeaveGoesInTurns) {
  const std::vector<PageRef> blocks = store_many();
  std::vector<std::pair<shm::Pin, PageRef>> pins;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const PageRef child = client_->store("below " + name(i), blocks[i]);
    ASSERT_FALSE(child.is_none());
    pins.emplace_back(client_->pin(child), child);
  }
  home_.pool->turn(home_.now_ms);
  const json reply = home_.pool->admin("clear", json::object(), home_.now_ms, nullptr);
  ASSERT_EQ(reply["deleted_when_unpinned"], kBlocks) << reply;
  ASSERT_EQ(reply["left_blocks"], kBlocks) << reply;
  for (const auto& [pin, child] : pins) ASSERT_TRUE(client_->pins.unpin(pin.slot, child));
  home_.pool->turn(home_.now_ms);  // what was pinned goes, and what was above it with the next upkeep
  ASSERT_EQ(home_.count(PageState::kRetired), 0u);
  ASSERT_EQ(there(), kBlocks);
  make_looks(true);
  turn_down_to(0, most(), 10);
  expect_clean();
}

TEST_F(DearLooks, PinnedBlocksAreListedInParts) {
  const std::vector<PageRef> blocks = fill(home_, *client_);
  constexpr uint64_t kPinned = 5;
  for (uint64_t i = 0; i < kPinned; ++i) client_->pin(blocks[i * 100]);
  make_looks(true);
  uint64_t rows = 0, cursor = 0;
  for (json next = 0; !next.is_null();) {
    const json reply = home_.pool->admin("blocks", {{"pinned", true}, {"cursor", next}}, home_.now_ms);
    rows += reply.at("blocks").size();
    next = reply.value("next", json());
    const uint64_t end = next.is_null() ? home_.region.pages() : next.get<uint64_t>();
    ASSERT_GT(end, cursor);
    ASSERT_LE(end - cursor, most());
    cursor = end;
  }
  EXPECT_EQ(rows, kPinned);
}

}  // namespace
}  // namespace maru::daemon
