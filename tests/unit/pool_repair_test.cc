// A pool that lost its power with damaged bookkeeping: what is damaged goes, the rest stays, and the log says what went.
#include "libmaru/shm/blocks/registry.h"
#include "tests/unit/pool_fixture.h"

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

namespace maru::daemon {
namespace {

class PoolRepair : public ::testing::Test {
 protected:
  PoolUnderTest pool_;
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
  std::vector<PageRef> chain_, roots_;

  PoolRepair() {
    for (int i = 0; i < 20; ++i)
      chain_.push_back(store("chain " + std::to_string(i), chain_.empty() ? PageRef::none() : chain_.back()));
    for (int i = 0; i < 20; ++i) roots_.push_back(store("root " + std::to_string(i), PageRef::none()));
  }
  PageRef store(const std::string& key, PageRef parent) {
    const PageRef ref = client_->store(key, parent);
    const std::vector<std::byte> zeros(100);
    pool_.region.detail(ref.page()).checksum.store_relaxed(shm::payload_checksum(zeros));
    return ref;
  }
  format::BlockLine& line(PageRef ref) const { return pool_.region.block(ref.page()); }
  bool is_there(PageRef ref) const {
    return pool_.word(ref.page()).is(PageState::kReady, ref.generation()) &&
           shm::is_registered(pool_.region, ref.page());
  }
  size_t there() const {
    size_t count = 0;
    for (const auto& refs : {chain_, roots_})
      for (const PageRef ref : refs) count += is_there(ref);
    return count;
  }
  // Damages the pool, verifies it as after a loss of power, and looks at what is left.
  void expect_left(size_t blocks, const std::function<void()>& damage) {
    damage();
    EXPECT_NE(pool_.audit(), std::set<std::string>{}) << "no damage";
    const auto verified = pool_.pool->verify({}, pool_.now_ms);
    ASSERT_TRUE(verified) << verified.error().text();
    EXPECT_EQ(there(), blocks);
    EXPECT_EQ(pool_.audit(), std::set<std::string>{});
    EXPECT_FALSE(client_->store("new", PageRef::none()).is_none());
  }
};

TEST_F(PoolRepair, AnOverflowBucketThatNoHomeLinksIsFreed) {
  expect_left(40, [&] { pool_.region.overflow(1).tags.header.store_relaxed(uint64_t{3} << 28); });
  EXPECT_EQ(pool_.region.overflow(1).tags.header.load_relaxed(), 0u);
}

TEST_F(PoolRepair, AClaimThatCameBackGoes) {
  expect_left(40, [&] { pool_.region.overflow(1).locations.location[3].store_relaxed(roots_[0].bits); });
}

TEST_F(PoolRepair, ABlockWithADamagedLineGoesAlone) {
  expect_left(39, [&] { line(roots_[3]).digest_lo.store_relaxed(7); });
  EXPECT_FALSE(is_there(roots_[3]));
}

TEST_F(PoolRepair, WhatIsBelowADamagedBlockGoesWithIt) {
  expect_left(25, [&] { line(chain_[5]).chain.store_relaxed(7); });
  EXPECT_TRUE(is_there(chain_[4]));
  EXPECT_EQ(pool_.word(chain_[4].page()).children(), 0u);
}

TEST_F(PoolRepair, PagesInNoStateBecomeFree) {
  expect_left(38, [&] {
    line(roots_[1]).word.store_relaxed(~uint64_t{0});
    line(roots_[2]).word.store_relaxed(PageWord::sealed(9, {7, 9}).bits);
  });
}

TEST_F(PoolRepair, AnEntryOfNoBlockGoes) {
  expect_left(40, [&] {
    format::Bucket& bucket = pool_.region.bucket(0);
    uint32_t slot = 0;
    while ((bucket.tags.header.load_relaxed() >> slot & 1) != 0) ++slot;
    bucket.locations.location[slot].store_relaxed(PageRef::of(5, 77).bits);
    bucket.tags.header.store_relaxed(bucket.tags.header.load_relaxed() | uint64_t{1} << slot);
  });
}

TEST_F(PoolRepair, CountsAreCountedAgain) {
  expect_left(40, [&] {
    line(chain_[2]).word.store_relaxed(PageWord::ready(chain_[2].generation(), 9).bits);
    line(chain_[9]).word.store_relaxed(PageWord::ready(chain_[9].generation(), 0).bits);
  });
  EXPECT_EQ(pool_.word(chain_[2].page()).children(), 1u);
  EXPECT_EQ(pool_.word(chain_[9].page()).children(), 1u);
}

// As many as several passes of marud's turns count.
TEST(PoolRepairOfManyCounts, AllAreCountedAgain) {
  constexpr uint32_t kParents = 24'000;
  PoolUnderTest pool(uint64_t{192} << 20, 1u << 10);
  const auto client = pool.attach();
  std::vector<PageRef> parents;
  for (uint32_t i = 0; i < kParents; ++i) {
    const PageRef parent = client->store("parent " + std::to_string(i));
    ASSERT_FALSE(parent.is_none());
    parents.push_back(parent);
    pool.region.block(parent.page()).word.store_relaxed(PageWord::ready(parent.generation(), 1).bits);  // no child
  }
  const std::vector<std::byte> zeros(100);
  for (const PageRef parent : parents)
    pool.region.detail(parent.page()).checksum.store_relaxed(shm::payload_checksum(zeros));
  EXPECT_NE(pool.audit(), std::set<std::string>{}) << "no damage";
  const auto verified = pool.pool->verify({}, pool.now_ms);
  ASSERT_TRUE(verified) << verified.error().text();
  uint32_t wrong = 0;
  for (const PageRef parent : parents) wrong += pool.word(parent.page()) != PageWord::ready(parent.generation(), 0);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(pool.audit(), std::set<std::string>{});
}

TEST_F(PoolRepair, PinsOfNobodyEnd) {
  expect_left(40, [&] { pool_.region.lane(5).pins[0].store_relaxed(roots_[0].bits); });
  EXPECT_TRUE(client_->remove(roots_[0]));
}

TEST_F(PoolRepair, ARegistryOfNonsenseLosesTheBlocksAndNothingElse) {
  expect_left(0, [&] {
    for (uint64_t i = 0; i < pool_.region.buckets(); ++i) {
      format::Bucket& bucket = pool_.region.bucket(i);
      for (AtomicU64& word : bucket.tags.tag) word.store_relaxed(0xa5a5a5a5a5a5a5a5);
      for (AtomicU64& word : bucket.locations.location) word.store_relaxed(0xa5a5a5a5a5a5a5a5);
      bucket.tags.header.store_relaxed(0xa5a5a5a5a5a5a5a5);
      bucket.locations.overflow.store_relaxed(0xa5a5a5a5a5a5a5a5);
    }
  });
}

}  // namespace
}  // namespace maru::daemon
