// Every built-in policy against its reference: a table with some regions and tenants, random events, and at each eviction the
// block that the order chose, and every block that was spared on the way, must be one that no other eligible block had to
// precede. The reference looks at all blocks every time. A built-in policy without a reference is held to its own ranks.
#include "daemon/policy/policies.h"

#include "tests/unit/policy_reference.h"

#include <algorithm>
#include <cerrno>
#include <gtest/gtest.h>
#include <iostream>
#include <map>
#include <tuple>

namespace maru::test {
namespace {

using daemon::kTenantProtected;
using daemon::make_policy;
using daemon::PolicyOptions;

constexpr uint32_t kRegions = 3, kRegionPages = 16, kPages = kRegions * kRegionPages, kTenants = 4;
constexpr int kDecisions = 10'000;

std::unique_ptr<Policy> policy_of(const std::string& name, const PolicyOptions& options = {}) {
  auto made = make_policy(name, options, "");
  EXPECT_TRUE(made.has_value()) << made.error().text();
  return made ? std::move(*made) : nullptr;
}

class LockStep {
 public:
  LockStep(const std::string& policy, const PolicyOptions& options, std::unique_ptr<Reference> reference, uint64_t seed)
      : random_(seed),
        name_(policy),
        options_(options),
        has_reference_(reference != nullptr),
        reference_(has_reference_ ? std::move(reference) : reference_of("lru")),
        states_(kPages) {
    for (uint32_t page = 0; page < kPages; ++page) facts_.blocks[page].facts.digest = page + 1;
    open(false);
  }

  void run() {
    while (decisions_ < kDecisions && !::testing::Test::HasFailure()) {
      advance();
      switch (random_.below(16)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4:
        case 5:
        case 6:
        case 7: store(); break;
        case 8:
        case 9:
        case 10:
        case 11: use(); break;
        case 12: inherit(); break;
        case 13: hold_or_let_go(); break;
        case 14:
          if (random_.one_in(3)) forget();
          if (random_.one_in(20)) restart();
          break;
        default: request();
      }
    }
    EXPECT_TRUE(eligible_ >= decisions_ * 8u || !policy_->evicts()) << "too few to choose from";
    EXPECT_LE(ghosts_missed_ * 20, ghosts_met_) << "of the blocks that came back";
  }

 private:
  bool is(const char* name) const { return name_ == name; }
  TestBlock& block(uint32_t page) { return facts_.blocks[page]; }
  void advance() {
    now_ += 1 + random_.below(random_.one_in(10) ? 5'000'000 : 3000);
    order_.set_pool(pool());
  }
  PolicyPool pool() const { return test_pool(now_, kPages, kRegionPages); }
  uint32_t any_page(bool known) {
    for (int i = 0; i < 50; ++i)
      if (const uint32_t page = uint32_t(random_.below(kPages)); block(page).is_known == known) return page;
    return kPages;
  }

  // A marud: what it keeps privately is new, what is in the table is as it was.
  void open(bool keep_words) {
    policy_ = policy_of(name_, options_);
    watched_ = std::make_unique<WatchedPolicy>(*policy_);
    order_ = EvictionOrder(entries_, kRegionPages, facts_);
    order_.set_policy(*watched_, keep_words);
    order_.set_pool(pool());
    watched_->on_spare = [this](const PolicyBlock& asked, bool is_spared) { check_spare(asked, is_spared); };
  }
  void restart() {
    open(true);
    ghosts_.clear();
    for (uint32_t region = 0; region < kRegions; ++region) rebuild(region);
  }
  void rebuild(uint32_t region) {
    std::vector<uint32_t> listed;
    for (uint32_t page = region * kRegionPages; page < (region + 1) * kRegionPages; ++page)
      if (block(page).is_listed) listed.push_back(page);
    order_.rebuild(region, listed);
  }

  void store() {
    const uint32_t page = any_page(false);
    if (page == kPages) return;
    TestBlock& each = block(page);
    each.is_known = true;
    each.tenant = uint32_t(random_.below(kTenants));
    each.facts.digest = page + 1 + kPages * random_.below(3);  // some come back
    each.facts.last_use = each.facts.stored = now_;
    each.facts.expires = random_.one_in(3) ? 0 : now_ + random_.below(20'000);
    each.facts.pages = 1 + uint32_t(random_.below(kRegionPages));
    each.facts.priority = random_.one_in(2) ? 0 : uint32_t(random_.below(20));
    each.facts.content_type = uint32_t(random_.below(5));
    order_.learn(page, ++each.generation, now_);
    EXPECT_TRUE(order_.knows(page, each.generation));
    reference_->stored(each, states_[page], came_back(page));
    if (!random_.one_in(8)) insert(page);
  }
  // The ghosts are few and may forget some, so the policy is asked; it must not invent any.
  bool came_back(uint32_t page) {
    if (!is("s3fifo")) return false;
    const uint64_t digest = block(page).facts.digest;
    const auto found = ghosts_.find(digest);
    const bool is_remembered = found != ghosts_.end() && ghosts_put_ - found->second < ghosts_count_;
    PolicyBlock asked;
    asked.word = entries_[page].word.load_relaxed();
    const bool is_main = policy_->place(asked).queue == 1;
    EXPECT_TRUE(is_remembered || !is_main) << "never evicted from probation: " << digest;
    ghosts_met_ += is_remembered;
    ghosts_missed_ += is_remembered && !is_main;
    if (found != ghosts_.end()) ghosts_.erase(found);
    return is_main;
  }
  void insert(uint32_t page) {
    EXPECT_TRUE(order_.insert(page));
    block(page).is_listed = true;
  }
  void put_back(uint32_t page) {
    if (!block(page).is_listed || order_.contains(page)) return;
    EXPECT_FALSE(order_.is_at_an_end(page));
    insert(page);
  }
  void use() {
    const uint32_t page = any_page(true);
    if (page == kPages) return;
    const uint64_t tick = random_.one_in(4) ? now_ - random_.below(std::min<uint64_t>(now_, 4000)) : now_;
    EXPECT_TRUE(order_.use(page, tick));
    block(page).facts.last_use = std::max(block(page).facts.last_use, tick);
    reference_->used(states_[page]);
    put_back(page);
  }
  void inherit() {
    const uint32_t page = any_page(true);
    if (page == kPages) return;
    const uint64_t tick = now_ - random_.below(std::min<uint64_t>(now_, 4000));
    EXPECT_TRUE(order_.inherit(page, tick));
    block(page).facts.last_use = std::max(block(page).facts.last_use, tick);
    put_back(page);
  }
  void hold_or_let_go() {
    const uint32_t page = any_page(true);
    if (page == kPages) return;
    if (!block(page).is_listed) return insert(page);
    EXPECT_TRUE(order_.remove(page));
    block(page).is_listed = false;
  }
  void forget() {
    const uint32_t page = any_page(true);
    if (page == kPages) return;
    EXPECT_TRUE(order_.remove(page));
    block(page).is_known = block(page).is_listed = false;
  }

  // -- a request --------------------------------------------------------------------------------------------------------

  void request() {
    for (TestTenant& each : facts_.tenants) {
      static constexpr uint32_t kClasses[] = {0, 1, 1, 1, 2, kTenantProtected};
      each.tenant_class = kClasses[random_.below(std::size(kClasses))];
      each.usage.used_bytes = random_.below(kPages * 4096);
      each.usage.limit_bytes = random_.one_in(2) ? 0 : 1 + random_.below(kPages * 4096);
    }
    facts_.tenants[0] = {1, {}};
    regions_.clear();
    for (uint32_t region = 0; region < kRegions; ++region)
      if (!random_.one_in(4)) regions_.push_back(region);
    if (random_.one_in(10)) rebuild(uint32_t(random_.below(kRegions)));
    blocks_at_start_ = count_listed([](uint32_t) { return true; });
    spares_left_ = count_listed([this](uint32_t page) { return is_asked(page); });
    if (spares_left_ > 0) ghosts_count_ = blocks_at_start_;

    EvictionOrder::Coldest coldest(order_, regions_);
    for (uint64_t wanted = 1 + random_.below(4); wanted > 0; --wanted) {
      uint32_t page = kPages;
      EvictionOrder::Key key;
      ++decisions_;
      const bool is_found = coldest.peek(&page, &key);
      EXPECT_EQ(is_found, watched_->evicts() && count_listed([this](uint32_t p) { return is_eligible(p); }) > 0);
      if (!is_found) return;
      ASSERT_TRUE(page < kPages && is_eligible(page)) << page;
      check_is_next(page);
      eligible_ += count_listed([this](uint32_t p) { return is_eligible(p); });
      EXPECT_FALSE(has_reference_ && spares_left_ > 0 && reference_->spares(states_[page])) << page;
      evict(page);
      if (random_.one_in(3) && has_reference_ && !is("s3fifo")) enter_meanwhile(coldest);  // ranks may not fall
    }
  }
  template <typename Which>
  uint64_t count_listed(Which which) {
    uint64_t count = 0;
    for (uint32_t page = 0; page < kPages; ++page) count += block(page).is_listed && which(page);
    return count;
  }
  bool is_asked(uint32_t page) const {
    return std::find(regions_.begin(), regions_.end(), page / kRegionPages) != regions_.end();
  }
  bool is_eligible(uint32_t page) {
    return block(page).is_listed && is_asked(page) && facts_.tenant_class(block(page).tenant) != kTenantProtected;
  }
  // A policy that learns has no reference but its own word: of the cold ends of all queues, the lowest rank.
  void check_is_next_by_its_own_word(uint32_t page) {
    struct Counts final : PolicyQueues {
      uint64_t blocks(uint32_t queue) const override { return in_queue.contains(queue) ? in_queue.at(queue) : 0; }
      std::map<uint32_t, uint64_t> in_queue;
    } counts;
    using Place = std::pair<uint64_t, uint32_t>;  // order, page
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Place> cold_ends;
    const auto known = [this](uint32_t p) {
      PolicyBlock facts = block(p).facts;
      facts.word = entries_[p].word.load_relaxed();
      return facts;
    };
    for (uint32_t other = 0; other < kPages; ++other) {
      if (!block(other).is_listed) continue;
      const PolicyPlace place = watched_->place(known(other));
      ++counts.in_queue[place.queue];
      if (!is_eligible(other)) continue;
      const auto end = std::tuple(other / kRegionPages, block(other).tenant, place.queue);
      const auto found = cold_ends.try_emplace(end, place.order, other).first;
      if (place.order < found->second.first) found->second = {place.order, other};
    }
    const auto key = [&](const Place& at) {
      const uint32_t tenant = block(at.second).tenant;
      const uint64_t rank = watched_->rank(known(at.second), facts_.tenant_usage(tenant), counts, pool());
      return std::tuple(facts_.tenant_class(tenant), rank, at.first);
    };
    const PolicyPlace chosen = watched_->place(known(page));
    const Place& end = cold_ends.at(std::tuple(page / kRegionPages, block(page).tenant, chosen.queue));
    ASSERT_EQ(end.first, chosen.order) << "page " << end.second << " is colder than " << page;
    for (const auto& [queue, other] : cold_ends)
      ASSERT_FALSE(key(other) < key({chosen.order, page})) << "page " << other.second << " must go before " << page;
  }
  void check_is_next(uint32_t page) {
    if (!has_reference_) return check_is_next_by_its_own_word(page);
    const ReferenceRequest now = {.now = now_,
                                  .region_pages = kRegionPages,
                                  .pool_bytes = kPages * 4096,
                                  .blocks_at_start = blocks_at_start_,
                                  .in_probation = count_listed([this](uint32_t p) { return !states_[p].in_main; })};
    const uint32_t tenant_class = facts_.tenant_class(block(page).tenant);
    for (uint32_t other = 0; other < kPages; ++other) {
      if (!is_eligible(other)) continue;
      const uint32_t other_class = facts_.tenant_class(block(other).tenant);
      ASSERT_LE(tenant_class, other_class);
      if (tenant_class < other_class) continue;
      ASSERT_FALSE(reference_->goes_before(block(other), states_[other], block(page), states_[page], now, facts_))
          << "page " << other << " must go before " << page;
    }
  }
  void check_spare(const PolicyBlock& asked, bool is_spared) {
    const uint32_t page = uint32_t((asked.digest - 1) % kPages);
    ASSERT_TRUE(is_eligible(page));
    check_is_next(page);
    if (!has_reference_) return;
    ASSERT_EQ(is_spared, reference_->spares(states_[page]));
    if (!is_spared) return;
    reference_->spare(states_[page], now_);
    ASSERT_GT(spares_left_, 0u);
    --spares_left_;
  }
  void evict(uint32_t page) {
    EXPECT_TRUE(order_.remove(page));
    order_.was_evicted(page);
    block(page).is_known = block(page).is_listed = false;
    PolicyTenant& usage = facts_.tenants[block(page).tenant].usage;
    usage.used_bytes -= std::min<uint64_t>(usage.used_bytes, 4096 * block(page).facts.pages);
    if (!is("s3fifo") || states_[page].in_main) return;
    ghosts_[block(page).facts.digest] = ++ghosts_put_;
  }
  // A parent whose last child left: it may be colder than what was next.
  void enter_meanwhile(EvictionOrder::Coldest& coldest) {
    const uint32_t page = any_page(true);
    if (page == kPages || block(page).is_listed) return;
    insert(page);
    coldest.push(page);
  }

  Random random_;
  std::string name_;
  PolicyOptions options_;
  bool has_reference_;
  std::unique_ptr<Reference> reference_;
  std::vector<format::PolicyEntry> entries_ = std::vector<format::PolicyEntry>(kPages);
  TestFacts facts_{kPages, kTenants};
  std::vector<ReferenceBlock> states_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<WatchedPolicy> watched_;
  EvictionOrder order_;
  uint64_t now_ = 100'000;
  int decisions_ = 0;
  uint64_t eligible_ = 0;
  std::vector<uint32_t> regions_;
  uint64_t blocks_at_start_ = 0, spares_left_ = 0;
  std::map<uint64_t, uint64_t> ghosts_;         // digest -> number among those that were evicted from probation
  uint64_t ghosts_put_ = 0, ghosts_count_ = 0;  // so many of the last ones count
  uint64_t ghosts_met_ = 0, ghosts_missed_ = 0;
};

class EveryPolicy : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryPolicy, ChoosesWhatItsReferenceChooses) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  std::cout << "MARU_SEED=" << seed << "\n";
  const std::string name(GetParam());
  LockStep(name, {}, reference_of(name), seed).run();
}

TEST_P(EveryPolicy, MovesABlockThatWasUsedInConstantTime) {
  uint64_t most[2] = {};
  for (const uint32_t pages : {64u, 4096u}) {
    const std::unique_ptr<Policy> policy = policy_of(std::string(GetParam()));
    WatchedPolicy watched(*policy);
    std::vector<format::PolicyEntry> entries(pages);
    TestFacts facts(pages, 1);
    EvictionOrder order(entries, pages, facts);
    order.set_policy(watched, false);
    uint64_t now = 1000;
    for (uint32_t page = 0; page < pages; ++page) {
      facts.blocks[page].facts = {.expires = 5000, .digest = page + 1, .pages = 1, .stored = ++now};
      order.set_pool(test_pool(now, pages, pages));
      order.learn(page, 1, now);
      ASSERT_TRUE(order.insert(page));
    }
    Random random(1);
    for (uint32_t i = 0; i < pages; ++i) {
      const uint32_t page = uint32_t(random.below(pages));
      order.set_pool(test_pool(++now, pages, pages));
      const uint64_t before = watched.places;
      ASSERT_TRUE(order.use(page, now));
      EXPECT_TRUE(order.contains(page)) << "a use leads to the warm end";
      most[pages == 4096] = std::max(most[pages == 4096], watched.places - before);
    }
  }
  EXPECT_LE(most[0], 6u);
  EXPECT_LE(most[1], 6u);
}

TEST_P(EveryPolicy, IsMadeByItsName) {
  const std::unique_ptr<Policy> policy = policy_of(std::string(GetParam()));
  EXPECT_EQ(policy->name(), GetParam());
  EXPECT_TRUE(daemon::is_built_in_policy(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, EveryPolicy,
                         testing::ValuesIn(daemon::built_in_policies().begin(), daemon::built_in_policies().end()),
                         [](const auto& each) { return std::string(each.param); });

TEST(Policies, FollowTheirReferencesWithOptionsToo) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  LockStep("s3fifo", {{"probation", "0.1"}, {"threshold", "2"}}, std::make_unique<S3FifoReference>(0.1, 2), seed).run();
  LockStep("size_aware",
           {{"recency", "1"}, {"size", "2.5"}, {"priority", "0"}, {"half_life_s", "2"}, {"large_first", "true"}},
           std::make_unique<SizeAwareReference>(1.0L, 2.5L, 0.0L, 2000.0L, true), seed)
      .run();
}

TEST(Policies, TheFirstIsTheDefault) { EXPECT_EQ(daemon::built_in_policies().front(), "lru"); }

// -- the score --------------------------------------------------------------------------------------------------------

struct Scored {
  uint32_t content_type;
  uint64_t idle_ms;
  uint32_t pages;
  bool is_used;
};

bool goes_first(const Policy& policy, const Scored& a, const Scored& b) {
  struct NoQueues final : PolicyQueues {
    uint64_t blocks(uint32_t) const override { return 1; }
  } queues;
  constexpr uint64_t kNow = 1'000'000'000'000;
  const PolicyPool pool = test_pool(kNow, 4096, 4096);
  const auto rank = [&](const Scored& each) {
    return policy.rank(
        {.word = each.is_used, .last_use = kNow - each.idle_ms, .pages = each.pages, .content_type = each.content_type},
        {}, queues, pool);
  };
  return rank(a) < rank(b);
}

constexpr uint64_t kSecond = 1000, kDay = 86'400 * kSecond;
constexpr Scored kDayOldKv = {MARU_CONTENT_KV_CACHE, kDay, 1, false};

TEST(SizeAware, OrdersWhatTheOldFormulaMisorders) {
  const auto policy = policy_of("size_aware");
  // By 0.6/(idle seconds + 1) + 0.2 * pages/all + 0.2 * priority both of these went before KV that was idle for a day.
  EXPECT_TRUE(goes_first(*policy, kDayOldKv, {MARU_CONTENT_LORA_WEIGHT, 3 * kSecond, 1, true})) << "warm LoRA";
  EXPECT_TRUE(goes_first(*policy, kDayOldKv, {MARU_CONTENT_TEMPORARY, 0, 1, false})) << "just touched";
}

TEST(SizeAware, OrdersByEachTermWhereTheOthersAreEqual) {
  const auto policy = policy_of("size_aware");
  const Scored kv = {MARU_CONTENT_KV_CACHE, 60 * kSecond, 4, false};
  EXPECT_TRUE(goes_first(*policy, {MARU_CONTENT_KV_CACHE, 61 * kSecond, 4, false}, kv)) << "recency";
  EXPECT_TRUE(goes_first(*policy, {MARU_CONTENT_KV_CACHE, 60 * kSecond, 1, false}, kv)) << "size: what is dear stays";
  EXPECT_FALSE(goes_first(*policy, {MARU_CONTENT_KV_CACHE, 60 * kSecond, 5, false}, kv)) << "the same step of size";
  const uint32_t from_low[] = {MARU_CONTENT_TEMPORARY, MARU_CONTENT_ACTIVATION, MARU_CONTENT_LORA_WEIGHT,
                               MARU_CONTENT_KV_CACHE};
  for (size_t i = 0; i + 1 < std::size(from_low); ++i)
    EXPECT_TRUE(goes_first(*policy, {from_low[i], 0, 1, false}, {from_low[i + 1], 0, 1, false})) << i;
  EXPECT_FALSE(goes_first(*policy, {MARU_CONTENT_ACTIVATION, 0, 1, false}, {MARU_CONTENT_GRADIENT, 0, 1, false}));
  EXPECT_FALSE(goes_first(*policy, {MARU_CONTENT_GRADIENT, 0, 1, false}, {MARU_CONTENT_ACTIVATION, 0, 1, false}));
  EXPECT_TRUE(goes_first(*policy, {MARU_CONTENT_LORA_WEIGHT, 0, 1, false}, {MARU_CONTENT_LORA_WEIGHT, 0, 1, true}))
      << "cold";
}

TEST(SizeAware, TakesLargeBlocksFirstIfAsked) {
  const auto policy = policy_of("size_aware", {{"large_first", "true"}});
  const Scored large = {MARU_CONTENT_KV_CACHE, 0, 64, false}, small = {MARU_CONTENT_KV_CACHE, 0, 1, false};
  EXPECT_TRUE(goes_first(*policy, large, small));
}

// -- ghosts -----------------------------------------------------------------------------------------------------------

TEST(S3Fifo, LetsABlockThatComesBackSoonIntoTheMainQueue) {
  const auto policy = policy_of("s3fifo");
  struct TenQueues final : PolicyQueues {
    uint64_t blocks(uint32_t) const override { return 5; }
  } queues;
  const PolicyPool pool = test_pool(100, 64, 64);
  const auto queue_when_stored = [&](uint64_t digest) {
    PolicyBlock block = {.last_use = 100, .digest = digest, .pages = 1};
    policy->stored(block, pool);
    const uint32_t queue = policy->place(block).queue;
    return queue;
  };
  const auto evict = [&](uint64_t digest) {
    PolicyBlock block = {.last_use = 100, .digest = digest, .pages = 1};
    policy->stored(block, pool);
    policy->rank(block, {}, queues, pool);  // there were ten blocks
    policy->evicted(block);
  };
  EXPECT_EQ(queue_when_stored(1), 0u) << "never seen";
  evict(1);
  EXPECT_EQ(queue_when_stored(1), 1u) << "just evicted";
  EXPECT_EQ(queue_when_stored(1), 0u) << "the ghost was used up";
  evict(2);
  for (uint64_t other = 100; other < 109; ++other) evict(other);
  EXPECT_EQ(queue_when_stored(2), 1u) << "nine others since then";
  evict(2);
  for (uint64_t other = 200; other < 210; ++other) evict(other);
  EXPECT_EQ(queue_when_stored(2), 0u) << "as many as there are blocks went since then";
}

// -- names and options ------------------------------------------------------------------------------------------------

std::string problem_of(const std::string& name, const PolicyOptions& options, int code) {
  const auto made = make_policy(name, options, "");
  EXPECT_FALSE(made.has_value());
  if (made) return "";
  EXPECT_EQ(made.error().code, code);
  return made.error().doing;
}

TEST(PolicyOptions, SayWhatWasFoundAndWhatWasExpected) {
  EXPECT_EQ(problem_of("s3fifo", {{"threshold", "0"}}, EINVAL),
            "policy s3fifo: option threshold is '0', expected a whole number from 1 to 3; correct or remove it in "
            "policy_options");
  EXPECT_EQ(problem_of("s3fifo", {{"ghosts", "9"}}, EINVAL),
            "policy s3fifo: option 'ghosts' is not known, expected one of: probation, threshold; remove it from "
            "policy_options");
  EXPECT_EQ(problem_of("lru", {{"ghosts", "9"}}, EINVAL),
            "policy lru: option 'ghosts' is not known, expected none; remove it from policy_options");
  EXPECT_EQ(problem_of("s3fifo", {{"probation", "0.5"}, {"probation", "0.6"}}, EINVAL),
            "policy s3fifo: option 'probation' is given twice, expected once; remove one from policy_options");
  EXPECT_EQ(
      problem_of("size_aware", {{"large_first", "yes"}}, EINVAL),
      "policy size_aware: option large_first is 'yes', expected true or false; correct or remove it in policy_options");
  EXPECT_EQ(problem_of("size_aware", {{"recency", "0"}, {"size", "0"}, {"priority", "0.0"}}, EINVAL),
            "policy size_aware: the options recency, size and priority are all 0, expected one above; raise one in "
            "policy_options");
}

TEST(PolicyOptions, RefuseWhatIsNoNumber) {
  for (const char* bad : {"", " 1", "1 ", "1x", "nan", "inf", "-0.1", "1.1", "0x1", "1e400"})
    problem_of("s3fifo", {{"probation", bad}}, EINVAL);
  for (const char* bad : {"", "1.0", "-1", "4", "+1", "99999999999999999999999"})
    problem_of("s3fifo", {{"threshold", bad}}, EINVAL);
  EXPECT_TRUE(make_policy("s3fifo", {{"probation", "1"}, {"threshold", "3"}}, "").has_value());
}

TEST(Policies, RefuseNamesThatNobodyHas) {
  for (const char* name : {"", "LRU", "mru", "../lru", "lru/..", "lru.so", "\n"}) {
    const std::string problem = problem_of(name, {}, ENOENT);
    EXPECT_NE(problem.find("expected one of lru, clock, fifo, "), problem.npos) << problem;
  }
}

}  // namespace
}  // namespace maru::test
