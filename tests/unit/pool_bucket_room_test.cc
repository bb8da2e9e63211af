// Room for a key whose buckets in the registry are full: the coldest block there that may go, and only when they are full.
#include "libmaru/shm/blocks/registry.h"
#include "tests/unit/pool_fixture.h"

#include <cerrno>
#include <string>
#include <vector>

namespace maru::daemon {
namespace {

class PoolBucketRoom : public ::testing::Test {
 protected:
  static constexpr size_t kSlots = 2 * limits::kBucketSlots;
  PoolUnderTest pool_;
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
  std::vector<std::string> keys_;  // of one home bucket, one more than it and its overflow bucket hold
  std::vector<PageRef> blocks_;    // of all but the last key

  PoolBucketRoom() {
    const uint64_t home = shm::home_bucket(pool_.region, pool_.digest("0"));
    for (int i = 0; keys_.size() <= kSlots; ++i)
      if (shm::home_bucket(pool_.region, pool_.digest(std::to_string(i))) == home) keys_.push_back(std::to_string(i));
  }
  void fill(PageRef parent = PageRef::none()) {
    for (size_t i = 0; i < kSlots; ++i) {
      ++pool_.now_ms;
      blocks_.push_back(client_->store(keys_[i], parent));
      ASSERT_FALSE(blocks_.back().is_none()) << i;
    }
    pool_.settle();
    ASSERT_TRUE(client_->store(keys_.back()).is_none()) << "a fifteenth key in fourteen slots";
  }
  int ask(PageRef parent = PageRef::none()) {
    const shm::Digest digest = pool_.digest(keys_.back());
    return pool_.pool->make_room(client_->grant.lane, {digest.lo, digest.hi, parent.bits, 0}, pool_.now_ms, &why_);
  }
  std::vector<size_t> gone() const {
    std::vector<size_t> gone;
    for (size_t i = 0; i < kSlots; ++i)
      if (!pool_.exists(keys_[i])) gone.push_back(i);
    return gone;
  }
  void touch(size_t i) {
    ++pool_.now_ms;
    client_->touch(blocks_[i]);
  }
  std::string why_;
};

TEST_F(PoolBucketRoom, TheColdestOfTheBucketsGoes) {
  const PageRef elsewhere = client_->store("colder than all of them");
  fill();
  touch(0);
  touch(1);
  EXPECT_EQ(ask(), 0) << why_;
  EXPECT_EQ(gone(), std::vector<size_t>{2});
  EXPECT_TRUE(pool_.word(elsewhere.page()).is(PageState::kReady, elsewhere.generation()));
  EXPECT_FALSE(client_->store(keys_.back()).is_none());
  EXPECT_EQ(pool_.audit(), std::set<std::string>{});
}

TEST_F(PoolBucketRoom, WhereThereIsRoomNothingGoes) {
  fill();
  ASSERT_TRUE(client_->remove(blocks_[5]));
  EXPECT_EQ(ask(), 0);
  EXPECT_EQ(gone(), std::vector<size_t>{5});
}

TEST_F(PoolBucketRoom, PinnedBlocksParentsAndTheAskersParentStay) {
  fill();
  ASSERT_EQ(client_->pin(blocks_[0]).status, shm::PinStatus::kPinned);
  const PageRef child = client_->store("a child", blocks_[1]);
  ASSERT_FALSE(child.is_none());
  pool_.settle();
  EXPECT_EQ(ask(blocks_[2]), 0) << why_;
  EXPECT_EQ(gone(), std::vector<size_t>{3});
  EXPECT_EQ(pool_.audit(), std::set<std::string>{});
}

TEST_F(PoolBucketRoom, WhereNoneMayGoItSaysWhy) {
  fill();
  for (const PageRef block : blocks_)
    ASSERT_FALSE(client_->store("below " + std::to_string(block.page()), block).is_none());
  pool_.settle();
  EXPECT_EQ(ask(), EXFULL);
  EXPECT_NE(why_.find("of the 14 blocks in both buckets of the key 14 have children"), std::string::npos) << why_;
  EXPECT_EQ(gone(), std::vector<size_t>{});
}

TEST_F(PoolBucketRoom, APolicyThatEvictsNothingMakesNone) {
  ASSERT_TRUE(pool_.pool->set_policy("none", {}, pool_.now_ms, false));
  fill();
  EXPECT_EQ(ask(), EXFULL);
  EXPECT_EQ(gone(), std::vector<size_t>{});
}

TEST_F(PoolBucketRoom, MarudSaysThatItKnowsTheMessage) {
  const format::HostRecord& host = pool_.region.host(0);
  EXPECT_EQ(host.serves.load_relaxed(), host.epoch.load_relaxed() << 16 | wire::kMinorVersion);
  ASSERT_TRUE(pool_.restart());
  EXPECT_EQ(host.serves.load_relaxed(), host.epoch.load_relaxed() << 16 | wire::kMinorVersion);
}

}  // namespace
}  // namespace maru::daemon
