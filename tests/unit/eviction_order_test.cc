// The queues themselves, under a policy that puts blocks anywhere: what stands where after random operations, and after
// somebody scribbled over the table.
#include "daemon/policy/eviction_order.h"

#include "tests/unit/eviction_fixture.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

namespace maru::test {
namespace {

using daemon::kTenantProtected;

constexpr uint32_t kRegions = 4, kRegionPages = 32, kPages = kRegions * kRegionPages, kTenants = 3;

// Queue and order are bits of the word and of the tick; every use moves the block to some other place.
class AnyPlace final : public Policy {
 public:
  explicit AnyPlace(Ranking ranking) : ranking_(ranking) {}
  const char* name() const override { return "any_place"; }
  Ranking ranking() const override { return ranking_; }
  void stored(PolicyBlock& block, const PolicyPool&) override { block.word = mixed(block.last_use); }
  void used(PolicyBlock& block, const PolicyPool&) override { block.word = mixed(block.word); }
  PolicyPlace place(const PolicyBlock& block) const override {
    ++places;
    return {uint32_t(block.word % 5), (block.word >> 8) % 8 + block.last_use};
  }
  bool spare(PolicyBlock& block, const PolicyPool&) override {
    block.word = mixed(block.word);
    return block.word % 3 == 0;
  }
  uint64_t rank(const PolicyBlock& block, const PolicyTenant&, const PolicyQueues& all,
                const PolicyPool&) const override {
    for (uint32_t queue = 0; queue < 5; ++queue) counted[queue] = all.blocks(queue);
    return place(block).queue ^ 3;
  }

  mutable uint64_t places = 0;
  mutable uint64_t counted[5] = {};

 private:
  static uint64_t mixed(uint64_t word) { return (word ^ word >> 29) * 0xbf58476d1ce4e5b9 + 1; }
  Ranking ranking_;
};

class EvictionOrders : public testing::TestWithParam<Ranking> {
 protected:
  EvictionOrders() : policy_(GetParam()), order_(entries_, kRegionPages, facts_), seed_(fresh_seed()), random_(seed_) {
    std::cout << "MARU_SEED=" << seed_ << "\n";
    for (uint32_t page = 0; page < kPages; ++page) facts_.blocks[page].tenant = uint32_t(random_.below(kTenants));
    order_.set_policy(policy_, false);
  }

  // Something random; true unless a queue was damaged, which `region` then names.
  bool step(uint32_t* region) {
    order_.set_pool(test_pool(++now_, kPages, kRegionPages));
    const uint32_t page = uint32_t(random_.below(kPages));
    TestBlock& block = facts_.blocks[page];
    *region = page / kRegionPages;
    switch (random_.below(9)) {
      case 0: return order_.remove(page);
      case 1: return !block.is_known || order_.inherit(page, now_ - random_.below(3));
      case 2: return !block.is_known || order_.child_left(page, uint32_t(random_.below(kPages)));
      case 3:
      case 4: return !block.is_known || order_.use(page, now_ - random_.below(3));
      case 5:
        if (block.is_known) order_.note_copy(page);
        return true;
      default:
        if (order_.contains(page)) return true;
        if (!block.is_known || random_.one_in(4)) order_.learn(page, ++block.generation, now_ - random_.below(3));
        block.is_known = true;
        return order_.insert(page);
    }
  }
  // What marud does about damage: all known blocks, whatever the table says about them.
  void heal(uint32_t region) {
    std::vector<uint32_t> pages;
    for (uint32_t page = region * kRegionPages; page < (region + 1) * kRegionPages; ++page)
      if (facts_.blocks[page].is_known) pages.push_back(page);
    order_.rebuild(region, pages);
    EXPECT_FALSE(order_.is_damaged(region));
    EXPECT_EQ(order_.count(region), pages.size());
  }
  PolicyPlace place_of(uint32_t page) const {
    return policy_.place({.word = entries_[page].word.load_relaxed(), .last_use = order_.last_use(page)});
  }

  void check() {
    std::map<uint32_t, uint64_t> in_queue;
    for (uint32_t region = 0; region < kRegions; ++region) {
      const std::vector<uint32_t> listed = order_.listed(region);
      EXPECT_EQ(listed.size(), order_.count(region));
      EXPECT_EQ(std::set<uint32_t>(listed.begin(), listed.end()).size(), listed.size()) << "twice";
      std::set<std::pair<uint32_t, uint32_t>> seen;
      for (size_t i = 0; i < listed.size(); ++i) {
        const uint32_t page = listed[i];
        ASSERT_EQ(page / kRegionPages, region);
        EXPECT_TRUE(order_.contains(page));
        const PolicyPlace place = place_of(page);
        ++in_queue[place.queue];
        const std::pair<uint32_t, uint32_t> queue = {facts_.tenant(page), place.queue};
        const bool is_first = seen.insert(queue).second;
        EXPECT_EQ(entries_[page].older.load_relaxed(), is_first ? 0 : listed[i - 1] + 1) << "queues are apart";
        if (is_first) continue;
        EXPECT_EQ(entries_[listed[i - 1]].newer.load_relaxed(), page + 1);
        EXPECT_LE(place_of(listed[i - 1]).order, place.order);
      }
      for (uint32_t page = region * kRegionPages; page < (region + 1) * kRegionPages; ++page)
        EXPECT_EQ(order_.contains(page), std::find(listed.begin(), listed.end(), page) != listed.end());
    }
    for (uint32_t page = 0; page < kPages && GetParam() == Ranking::kByRank; ++page) {
      order_.key(page);  // asks for the counts
      for (uint32_t queue = 0; queue < 5; ++queue) EXPECT_EQ(policy_.counted[queue], in_queue[queue]);
    }
  }
  // Everything that may be evicted, in the order in which it goes.
  std::vector<uint32_t> evict_all(const std::vector<uint32_t>& regions) {
    std::vector<uint32_t> gone;
    EvictionOrder::Coldest coldest(order_, regions);
    uint32_t page;
    EvictionOrder::Key key;
    while (coldest.peek(&page, &key) && gone.size() <= kPages) {
      EXPECT_EQ(key.page, page);
      EXPECT_TRUE(order_.remove(page));
      gone.push_back(page);
    }
    return gone;
  }

  void scribble() {
    format::PolicyEntry& entry = entries_[random_.below(kPages)];
    // A link or a list that could be, or anything.
    const uint32_t value = random_.one_in(4) ? uint32_t(random_.next()) : uint32_t(random_.below(kPages + 2));
    switch (random_.below(5)) {
      case 0: return entry.newer.store_relaxed(value);
      case 1: return entry.older.store_relaxed(value);
      case 2: return entry.list.store_relaxed(random_.one_in(2) ? value % 8 : value);
      case 3: return entry.word.store_relaxed(random_.next());
      default: return entry.last_use_ms.store_relaxed(random_.one_in(2) ? random_.next() : value);
    }
  }
  // A request of a pool whose table somebody writes to meanwhile.
  void evict_some(int* damaged) {
    const std::vector<uint32_t> regions = {0, 1, 3};
    EvictionOrder::Coldest coldest(order_, regions);
    uint32_t page;
    EvictionOrder::Key key;
    for (int i = 0; i < 8 && coldest.peek(&page, &key); ++i) {
      ASSERT_LT(page, kPages);
      ASSERT_TRUE(order_.contains(page)) << "it would come again and again";
      if (!order_.remove(page)) {
        ++*damaged;
        heal(page / kRegionPages);
        coldest.push_shelf(order_.shelf_of(page));
      }
      if (random_.one_in(3)) scribble();
    }
    for (const uint32_t region : regions) {
      if (!order_.is_damaged(region)) continue;
      ++*damaged;
      heal(region);
    }
  }

  std::vector<format::PolicyEntry> entries_ = std::vector<format::PolicyEntry>(kPages);
  TestFacts facts_{kPages, kTenants};
  AnyPlace policy_;
  EvictionOrder order_;
  uint64_t now_ = 1000;
  uint64_t seed_;
  Random random_;
};

TEST_P(EvictionOrders, KeepTheirInvariantsUnderRandomOperations) {
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed_));
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    uint32_t region = 0;
    EXPECT_TRUE(step(&region)) << "nobody damaged region " << region;
    if (i % 100 == 0) check();
    if (i % 1000 == 0) heal(uint32_t(random_.below(kRegions)));
  }
  check();
}

// An entry of no life says 0, and so would the entry of the last life before generations wrap around.
TEST_P(EvictionOrders, KnowTheLastGenerationOnlyWhileItIsInAQueue) {
  constexpr uint32_t kLast = ~uint32_t{0};
  EXPECT_FALSE(order_.knows(3, kLast));
  order_.learn(3, kLast, 1);
  ASSERT_TRUE(order_.insert(3));
  EXPECT_TRUE(order_.knows(3, kLast));
  EXPECT_FALSE(order_.knows(3, 0));
}

TEST_P(EvictionOrders, FindThePlaceOfABlockWhereItsNeighboursSay) {
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    uint32_t region = 0;
    step(&region);
    const uint32_t page = uint32_t(random_.below(kPages));
    if (!facts_.blocks[page].is_known || order_.contains(page)) continue;
    const PolicyPlace place = place_of(page);
    bool some_colder = false, some_warmer = false;
    for (const uint32_t other : order_.listed(page / kRegionPages)) {
      if (facts_.tenant(other) != facts_.tenant(page) || place_of(other).queue != place.queue) continue;
      some_colder |= place_of(other).order < place.order;
      some_warmer |= place_of(other).order > place.order;
    }
    EXPECT_EQ(order_.is_at_an_end(page), !(some_colder && some_warmer));
  }
}

TEST_P(EvictionOrders, GiveEveryBlockOnceAndNoneThatIsProtected) {
  for (uint32_t region = 0; region < kRegions; ++region) {
    for (uint32_t page = region * kRegionPages; page < (region + 1) * kRegionPages; ++page) {
      facts_.blocks[page].is_known = true;
      order_.learn(page, 1, now_ + random_.below(100));
    }
    heal(region);
  }
  facts_.tenants[0].tenant_class = 1;
  facts_.tenants[1].tenant_class = 0;
  facts_.tenants[2].tenant_class = kTenantProtected;
  const std::vector<uint32_t> gone = evict_all({0, 2});
  EXPECT_EQ(std::set<uint32_t>(gone.begin(), gone.end()).size(), gone.size());
  size_t expected = 0;
  for (uint32_t page = 0; page < kPages; ++page) expected += facts_.tenant(page) != 2 && (page / kRegionPages) % 2 == 0;
  EXPECT_EQ(gone.size(), expected);
  EXPECT_TRUE(std::is_sorted(gone.begin(), gone.end(), [this](uint32_t a, uint32_t b) {
    return facts_.tenant_class(facts_.tenant(a)) < facts_.tenant_class(facts_.tenant(b));
  }));
  EXPECT_EQ(order_.count(1) + order_.count(3), 2 * kRegionPages) << "regions that nobody asked for";
  check();
}

TEST_P(EvictionOrders, IgnoreABlockOfAnotherRegionThatEntersMeanwhile) {
  for (const uint32_t page : {uint32_t{0}, kRegionPages}) order_.learn(page, 1, now_);
  ASSERT_TRUE(order_.insert(0));
  EvictionOrder::Coldest coldest(order_, std::vector<uint32_t>{0});
  ASSERT_TRUE(order_.remove(0));
  ASSERT_TRUE(order_.insert(kRegionPages));
  coldest.push(kRegionPages);
  uint32_t page;
  EvictionOrder::Key key;
  EXPECT_FALSE(coldest.peek(&page, &key));
}

// A client scribbles over the table at any time. Whatever is in it, nothing crashes, every call ends after a bounded number of
// steps, and after rebuild() all is well.
TEST_P(EvictionOrders, SurviveAnythingThatIsWrittenIntoTheTable) {
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed_));
  int damaged = 0;
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    if (random_.one_in(10)) scribble();
    uint32_t region = 0;
    const uint64_t before = policy_.places;
    if (!step(&region)) {
      ++damaged;
      heal(region);
    }
    ASSERT_LE(policy_.places - before, 2 * kRegionPages + 10) << "a walk without an end, or a rebuild";
    if (i % 50 == 0) evict_some(&damaged);
    if (i % 500 != 0) continue;
    for (uint32_t each = 0; each < kRegions; ++each) heal(each);
    check();
  }
  EXPECT_GE(damaged, 100) << "or nothing was tested";
}

// Links that leave a block out, so that the list would lose both its ends before it loses its last block.
TEST(EvictionOrder, AListWithBlocksHasEnds) {
  ByTick policy;
  std::vector<format::PolicyEntry> entries(8);
  TestFacts facts(8, 1);
  EvictionOrder order(entries, 8, facts);
  order.set_policy(policy, false);
  for (uint32_t page = 0; page < 3; ++page) {
    order.learn(page, 1, 10 * (page + 1));
    ASSERT_TRUE(order.insert(page));
  }
  entries[0].newer.store_relaxed(3);  // 0 -> 2, past 1
  entries[2].older.store_relaxed(1);
  EXPECT_TRUE(order.remove(0));
  EXPECT_FALSE(order.remove(2)) << "1 is still in the list";
  order.learn(5, 1, 45);
  EXPECT_TRUE(order.is_at_an_end(5));
  order.rebuild(0, std::vector<uint32_t>{0, 1, 2, 5});
  EXPECT_EQ(order.listed(0), (std::vector<uint32_t>{0, 1, 2, 5}));
}

// Each block that comes back to the middle of a queue would be a walk over half of it.
TEST(EvictionOrder, FindsAPlaceInALongQueueWithoutAWalkOverIt) {
  constexpr uint32_t kMany = EvictionOrder::kShelfPages;
  constexpr uint64_t kPlacesEach = 1024;
  class Counted final : public Policy {
   public:
    const char* name() const override { return "counted"; }
    PolicyPlace place(const PolicyBlock& block) const override { return ++places, PolicyPlace{0, block.last_use}; }
    mutable uint64_t places = 0;
  } policy;
  std::vector<format::PolicyEntry> entries(kMany);
  TestFacts facts(kMany, 1);
  EvictionOrder order(entries, kMany, facts);
  daemon::LineMeter meter;
  order.set_policy(policy, false);
  order.count_lines(&meter);
  Random random(7);
  std::vector<uint32_t> all(kMany), first;
  std::iota(all.begin(), all.end(), 0u);
  for (const uint32_t page : all) order.learn(page, 1, random.below(1u << 30));
  for (const uint32_t page : all)
    if (page % 2 == 0) first.push_back(page);
  order.rebuild(0, first);
  policy.places = 0;
  for (const uint32_t page : all) ASSERT_TRUE(order.insert(page)) << page;
  EXPECT_LE(policy.places, kMany / 2 * kPlacesEach);
  EXPECT_GT(meter.read(), kMany / 2) << "what a search reads is counted";
  EXPECT_LE(meter.read(), kMany / 2 * kPlacesEach);
  const std::vector<uint32_t> listed = order.listed(0);
  EXPECT_EQ(listed.size(), kMany);
  EXPECT_TRUE(std::ranges::is_sorted(listed, {}, [&](uint32_t page) { return order.last_use(page); }));
}

// Links and ticks that lead a search on and on.
TEST(EvictionOrder, TakesALongSearchForDamage) {
  constexpr uint32_t kMany = EvictionOrder::kShelfPages, kStepsMax = 1u << 12;
  ByTick policy;
  std::vector<format::PolicyEntry> entries(kMany);
  TestFacts facts(kMany, 1);
  EvictionOrder order(entries, kMany, facts);
  daemon::LineMeter meter;
  order.set_policy(policy, false);
  order.count_lines(&meter);
  std::vector<uint32_t> all(kMany);
  std::iota(all.begin(), all.end(), 0u);
  for (const uint32_t page : all) order.learn(page, 1, 1'000'000);
  order.rebuild(0, std::span(all).first(kMany / 2));
  for (uint32_t page = 0; page < kMany / 2 - 1; ++page) entries[page].last_use_ms.store_relaxed(10);
  uint32_t refused = 0;
  for (uint32_t page = kMany / 2; page < kMany / 2 + 100; ++page) {
    const uint64_t before = meter.read();
    order.learn(page, 1, 500);
    refused += !order.insert(page);
    ASSERT_LE(meter.read() - before, kStepsMax);
  }
  EXPECT_GT(refused, 0u);
  order.rebuild(0, std::span(all).first(kMany / 2 + 100));
  EXPECT_EQ(order.count(0), kMany / 2 + 100);
}

// The number of its list in an entry changes while it is used.
TEST(EvictionOrder, ReadsTheListOfABlockOnce) {
  constexpr uint32_t kFew = 8, kScribbled = 3;
  ByTick policy;
  std::vector<format::PolicyEntry> entries(kFew);
  TestFacts facts(kFew, 1);
  EvictionOrder order(entries, kFew, facts);
  order.set_policy(policy, false);
  std::vector<uint32_t> all(kFew);
  std::iota(all.begin(), all.end(), 0u);
  for (const uint32_t page : all) order.learn(page, 1, 10);
  order.rebuild(0, all);
  std::atomic<bool> is_over = false;
  std::thread scribbler([&] {
    while (!is_over) {
      entries[kScribbled].list.store_relaxed(0x4000'0000);
      entries[kScribbled].list.store_relaxed(1);
    }
  });
  for (uint32_t i = 0; i < 500'000; ++i)  // without a crash
    if (!order.remove(i % kFew) || !order.insert(i % kFew)) order.rebuild(0, all);
  is_over = true;
  scribbler.join();
  order.rebuild(0, all);
  EXPECT_EQ(order.count(0), kFew);
}

// A policy that never says the same twice, or a client that writes to the words all the time.
TEST(EvictionOrder, AnOrderThatChangesAllTheTimeCostsNoMorePerBlock) {
  constexpr uint32_t kMany = 4096, kEvicted = 64;
  class Fickle final : public Policy {
   public:
    const char* name() const override { return "fickle"; }
    PolicyPlace place(const PolicyBlock&) const override { return {0, ++places}; }
    mutable uint64_t places = 0;
  } policy;
  std::vector<format::PolicyEntry> entries(kMany);
  TestFacts facts(kMany, 1);
  EvictionOrder order(entries, kMany, facts);
  order.set_policy(policy, false);
  std::vector<uint32_t> all(kMany);
  std::iota(all.begin(), all.end(), 0u);
  for (const uint32_t page : all) order.learn(page, 1, 10);
  order.rebuild(0, all);
  const uint64_t before = policy.places;
  EvictionOrder::Coldest coldest(order, std::vector<uint32_t>{0});
  uint32_t page;
  EvictionOrder::Key key;
  for (uint32_t i = 0; i < kEvicted; ++i) {
    ASSERT_TRUE(coldest.peek(&page, &key));
    ASSERT_TRUE(order.remove(page));
  }
  EXPECT_LE(policy.places - before, 10 * kMany + 100 * kEvicted);
}

// Each block once, to the other end.
TEST(EvictionOrder, WhatThePolicySparesCostsLinesAndTheNextChoiceGoesOnThere) {
  constexpr uint32_t kFew = 16, kSpared = 5;
  class SecondChance final : public Policy {
   public:
    const char* name() const override { return "second_chance"; }
    PolicyPlace place(const PolicyBlock& block) const override { return {0, block.last_use + 1000 * block.word}; }
    bool spare(PolicyBlock& block, const PolicyPool&) override { return std::exchange(block.word, 1) == 0; }
  } policy;
  std::vector<format::PolicyEntry> entries(kFew);
  TestFacts facts(kFew, 1);
  EvictionOrder order(entries, kFew, facts);
  order.set_policy(policy, false);
  for (uint32_t page = 0; page < kFew; ++page) {
    order.learn(page, 1, 10 + page);
    ASSERT_TRUE(order.insert(page));
  }
  const auto spared = [&] {
    const auto was_spared = [](const format::PolicyEntry& each) { return each.word.load_relaxed() == 1; };
    return std::count_if(entries.begin(), entries.end(), was_spared);
  };
  uint32_t page = kFew;
  EvictionOrder::Key key;
  uint64_t lines = 4 * kSpared;
  EXPECT_FALSE(EvictionOrder::Coldest(order, std::vector<uint32_t>{0}, &lines).peek(&page, &key));
  EXPECT_EQ(lines, 0u);
  EXPECT_EQ(spared(), kSpared);
  lines = 1000;
  ASSERT_TRUE(EvictionOrder::Coldest(order, std::vector<uint32_t>{0}, &lines).peek(&page, &key));
  EXPECT_EQ(page, 0u);
  EXPECT_EQ(lines, 1000 - 4 * (kFew - kSpared));
  EXPECT_EQ(spared(), kFew);
}

// A place behind a cycle of links that each look right.
TEST(EvictionOrder, EndsAWalkThroughACycle) {
  ByTick policy;
  std::vector<format::PolicyEntry> entries(8);
  TestFacts facts(8, 1);
  EvictionOrder order(entries, 8, facts);
  order.set_policy(policy, false);
  for (uint32_t page = 0; page < 5; ++page) {
    order.learn(page, 1, 10 * (page + 1));
    ASSERT_TRUE(order.insert(page));
  }
  entries[2].newer.store_relaxed(1);  // 0 -> 1 -> 2 -> 0
  order.learn(5, 1, 45);
  EXPECT_FALSE(order.insert(5));
  order.rebuild(0, std::vector<uint32_t>{0, 1, 2, 3, 4, 5});
  EXPECT_EQ(order.listed(0), (std::vector<uint32_t>{0, 1, 2, 3, 5, 4}));
}

// A region whose pages do not divide evenly among its shelves.
TEST(EvictionOrder, TheOrderIsThatOfAllShelves) {
  constexpr uint32_t kLong = 2 * EvictionOrder::kShelfPages + 1000, kAll = 2 * kLong;
  ByTick policy;
  std::vector<format::PolicyEntry> entries(kAll);
  TestFacts facts(kAll, 1);
  EvictionOrder order(entries, kLong, facts);
  order.set_policy(policy, false);
  ASSERT_EQ(order.shelves(), 6u);
  uint32_t in_shelves = 0;
  for (uint32_t shelf = 0; shelf < order.shelves(); ++shelf) {
    EXPECT_EQ(order.first_page(shelf), in_shelves);
    EXPECT_LE(order.end_page(shelf) - order.first_page(shelf), EvictionOrder::kShelfPages);
    for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page)
      ASSERT_EQ(order.shelf_of(page), shelf) << page;
    in_shelves = order.end_page(shelf);
  }
  EXPECT_EQ(in_shelves, kAll);
  std::vector<std::pair<uint64_t, uint32_t>> expected;  // tick, page
  std::vector<std::vector<uint32_t>> on_shelf(order.shelves());
  for (uint32_t page = 0; page < kAll; ++page) {
    const uint64_t tick = page * 7919ull % 100'003;
    order.learn(page, 1, tick);
    expected.emplace_back(tick, page);
    on_shelf[order.shelf_of(page)].push_back(page);
  }
  for (uint32_t shelf = 0; shelf < order.shelves(); ++shelf) order.rebuild(shelf, on_shelf[shelf]);
  std::sort(expected.begin(), expected.end());
  EvictionOrder::Coldest coldest(order, std::vector<uint32_t>{0, 1});
  uint32_t page;
  EvictionOrder::Key key;
  for (const auto& [tick, wanted] : expected) {
    ASSERT_TRUE(coldest.peek(&page, &key));
    ASSERT_EQ(page, wanted);
    ASSERT_TRUE(order.remove(page));
  }
  EXPECT_FALSE(coldest.peek(&page, &key));
}

INSTANTIATE_TEST_SUITE_P(Both, EvictionOrders, testing::Values(Ranking::kByPlace, Ranking::kByRank),
                         [](const auto& each) { return each.param == Ranking::kByPlace ? "ByPlace" : "ByRank"; });

}  // namespace
}  // namespace maru::test
