#include "libmaru/shm/lru.h"
#include "small_pool.h"

#include <algorithm>
#include <list>
#include <random>

namespace maru::shm {
namespace {

class LruTest : public testing::Test {
 protected:
  std::vector<uint32_t> cold_to_warm(uint32_t region) {
    std::vector<uint32_t> pages;
    for (uint32_t link = lists_.coldest(region); link != 0 && pages.size() <= 64; link = lists_.warmer(link - 1))
      pages.push_back(link - 1);
    return pages;
  }
  void expect_list(const std::vector<uint32_t>& pages) {
    EXPECT_EQ(cold_to_warm(0), pages);
    EXPECT_EQ(lists_.count(0), pages.size());
    for (uint32_t page = 0; page < 16; ++page)
      EXPECT_EQ(lists_.contains(page), std::ranges::find(pages, page) != pages.end());
    const Names found = pool_.audit(AuditMode::kLiveOwner);
    EXPECT_EQ(found, Names{});
  }

  SmallPool pool_;
  LruLists lists_{pool_.region};
};

TEST_F(LruTest, ColdestIsTheOneUsedLongestAgo) {
  EXPECT_TRUE(lists_.insert(3, 0, 30));
  EXPECT_TRUE(lists_.insert(4, 0, 40));
  EXPECT_TRUE(lists_.insert(5, 0, 50));
  expect_list({3, 4, 5});
  EXPECT_TRUE(lists_.touch(3, 60));
  expect_list({4, 5, 3});
  EXPECT_TRUE(lists_.touch(3, 70));
  EXPECT_EQ(lists_.last_use_ms(3), 70u);
  EXPECT_TRUE(lists_.remove(5));
  expect_list({4, 3});
  EXPECT_TRUE(lists_.remove(5)) << "removing what is not in is no damage";
  EXPECT_TRUE(lists_.remove(4));
  EXPECT_TRUE(lists_.remove(3));
  expect_list({});
}

TEST_F(LruTest, AnOldBlockComesBackInItsPlace) {
  for (const uint32_t page : {1u, 2u, 3u}) lists_.insert(page, 0, page * 10);
  lists_.insert(7, 0, 15);
  expect_list({1, 7, 2, 3});
  lists_.insert(8, 0, 5);
  expect_list({8, 1, 7, 2, 3});
}

TEST_F(LruTest, AnOlderTouchChangesNothing) {
  lists_.insert(1, 0, 10);
  lists_.insert(2, 0, 20);
  EXPECT_TRUE(lists_.touch(1, 10));
  EXPECT_TRUE(lists_.touch(2, 5));
  EXPECT_EQ(lists_.last_use_ms(2), 20u);
  expect_list({1, 2});
}

TEST_F(LruTest, RegionsHaveListsOfTheirOwn) {
  lists_.insert(15, 0, 10);
  lists_.insert(16, 0, 5);
  EXPECT_EQ(cold_to_warm(0), std::vector<uint32_t>{15});
  EXPECT_EQ(cold_to_warm(1), std::vector<uint32_t>{16});
  lists_.clear(0);
  EXPECT_EQ(cold_to_warm(0), std::vector<uint32_t>{});
  EXPECT_EQ(cold_to_warm(1), std::vector<uint32_t>{16});
}

TEST_F(LruTest, AgreesWithAReferenceList) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::pair<uint64_t, uint32_t>> reference;  // {tick, page}, ticks are all different
  uint64_t now = 1000;
  for (int step = 0; step < 5000; ++step) {
    const uint32_t page = uint32_t(random() % 16);
    const auto at = std::ranges::find(reference, page, &std::pair<uint64_t, uint32_t>::second);
    now += 2;
    if (at == reference.end()) {
      const uint64_t tick = random() % 2 ? now : (random() % now) | 1;
      if (std::ranges::find(reference, tick, &std::pair<uint64_t, uint32_t>::first) != reference.end()) continue;
      EXPECT_TRUE(lists_.insert(page, 0, tick));
      reference.push_back({tick, page});
    } else if (random() % 3 == 0) {
      EXPECT_TRUE(lists_.remove(page));
      reference.erase(at);
    } else {
      EXPECT_TRUE(lists_.touch(page, now));
      at->first = now;
    }
    std::ranges::sort(reference);
    std::vector<uint32_t> pages;
    for (const auto& entry : reference) pages.push_back(entry.second);
    ASSERT_EQ(cold_to_warm(0), pages) << "step " << step;
  }
  EXPECT_EQ(pool_.audit(AuditMode::kLiveOwner), Names{});
}

TEST_F(LruTest, LinksThatDoNotAgreeAreDamage) {
  for (const uint32_t page : {1u, 2u, 3u}) lists_.insert(page, 0, page * 10);
  pool_.region.policy(1).newer.store_relaxed(4);
  EXPECT_FALSE(lists_.remove(2));
}

TEST_F(LruTest, ScribbledLinksEndInBoundedTimeAndInside) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    for (uint32_t i = 0; i < 4; ++i) lists_.clear(i);
    for (uint32_t page = 0; page < 16; ++page) lists_.insert(page, 0, page);
    for (int k = 0; k < 10; ++k) {
      format::PolicyEntry& entry = pool_.region.policy(uint32_t(random() % 64));
      const uint32_t link = uint32_t(random() % 3 ? random() % 70 : random());
      (random() % 2 ? entry.newer : entry.older).store_relaxed(link);
      if (random() % 4 == 0) entry.list.store_relaxed(uint32_t(random() % 3));
      if (random() % 4 == 0) pool_.region.region(0).lru_head.store_relaxed(link);
      if (random() % 4 == 0) pool_.region.region(0).lru_tail.store_relaxed(link);
    }
    for (int k = 0; k < 30; ++k) {
      const uint32_t page = uint32_t(random() % 64);
      switch (random() % 3) {
        case 0: lists_.remove(page); break;
        case 1: lists_.touch(page, random() % 1000); break;
        default:
          if (!lists_.contains(page)) lists_.insert(page, 0, random() % 1000);
      }
    }
  }
}

}  // namespace
}  // namespace maru::shm
