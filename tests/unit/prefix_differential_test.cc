// Whatever happens to a pool, the search of match_prefix and a walk from the first key give the same answer: blocks are
// evicted under every policy, deleted, expired, taken away with their region, and left behind by clients that die. The chains
// share their beginnings, as prompts do.
#include "libmaru/shm/blocks/prefix.h"
#include "pool_fixture.h"

#include <cstdlib>
#include <random>

namespace maru::daemon {
namespace {

uint64_t seed_of_this_run() {
  if (const char* given = std::getenv("MARU_SEED")) return std::strtoull(given, nullptr, 10);
  return std::random_device{}() | uint64_t{std::random_device{}()} << 32;
}

class Churn {
 public:
  Churn(uint64_t seed, const char* policy) : random_(seed) {
    EXPECT_TRUE(home_.pool->set_policy(policy, {}, home_.now_ms));
    for (auto& client : clients_) client = home_.attach();
  }

  void step() {
    home_.now_ms += 1 + random_() % 3;
    InProcessClient& client = *clients_[random_() % std::size(clients_)];
    switch (random_() % 16) {
      default: return serve(client);
      case 0: return remove(client);
      case 1: return remove_tree();
      case 2: return die();
      case 3: home_.pool->turn(home_.now_ms); return;
      case 4:
        if (random_() % 4 == 0) client.rent(1 + random_() % 3, 1 + random_() % 8);
        return;
    }
  }

  // Nobody changes anything now: both ways must see the same blocks.
  void compare() {
    for (int i = 0; i < 12; ++i) {
      const std::vector<std::string> keys = some_chain(1 + random_() % 40);
      std::vector<shm::PlainDigest> digests;
      for (const std::string& key : keys) digests.push_back(home_.plain(key));
      size_t walked = 0;
      bool has_expired = false;
      for (; walked < keys.size(); ++walked) {
        const PageRef ref = shm::find_unpinned(home_.region, home_.digest(keys[walked]));
        if (ref.is_none()) break;
        const uint64_t expires_ms = home_.region.block(ref.page()).expires_ms.load_relaxed();
        has_expired |= expires_ms != 0 && home_.now_ms >= expires_ms;
      }
      if (has_expired) continue;  // the walk above does not look at the time
      InProcessClient& client = *clients_[random_() % std::size(clients_)];
      std::vector<shm::HeldBlock> held(keys.size());
      const shm::PrefixResult found =
          shm::match_prefix(client.lane, shm::prefix_keys(home_.region, digests), home_.now_ms, held.data());
      ASSERT_FALSE(found.pins_full);
      EXPECT_EQ(found.blocks, walked) << "for a chain of " << keys.size() << " from " << keys.front();
      // No block behind a missing one.
      for (size_t k = walked; k < keys.size(); ++k) EXPECT_FALSE(home_.exists(keys[k])) << keys[k];
      shm::release_prefix(client.lane, held.data(), found.held);
      matched_ += found.blocks;
    }
  }

  void end() {
    home_.settle();
    EXPECT_EQ(home_.audit(), std::set<std::string>{});
    compare();
  }
  uint64_t matched() const { return matched_; }
  uint64_t regions_taken() const { return home_.pool->status_json(home_.now_ms)["regions_taken"]; }
  uint64_t evicted() const {
    uint64_t sum = evicted_before_;
    for (const auto& client : clients_) sum += client->evicted.size();
    return sum;
  }

 private:
  // One of a few beginnings, one of a few ways to go on, and an end of its own.
  std::vector<std::string> some_chain(size_t length) {
    std::vector<std::string> keys;
    std::string path;
    for (size_t i = 0; i < length; ++i) {
      const uint64_t branches = i == 0 ? 3 : i % 8 == 0 ? 4 : 1;
      path += std::to_string(random_() % branches) + ".";
      keys.push_back(path);
    }
    return keys;
  }

  // What an engine does for a request.
  void serve(InProcessClient& client) {
    const std::vector<std::string> keys = some_chain(1 + random_() % 40);
    std::vector<shm::PlainDigest> digests;
    for (const std::string& key : keys) digests.push_back(home_.plain(key));
    std::vector<shm::HeldBlock> held(keys.size());
    const shm::PrefixResult found =
        shm::match_prefix(client.lane, shm::prefix_keys(home_.region, digests), home_.now_ms, held.data());
    if (!found.deepest.is_none()) client.touch(found.deepest);
    PageRef parent = found.deepest;
    for (size_t i = found.blocks; i < keys.size(); ++i) {
      parent = client.store(keys[i], parent);
      if (parent.is_none()) break;  // nothing can be evicted, or an expired block is in the way
    }
    shm::release_prefix(client.lane, held.data(), found.held);
  }

  void remove(InProcessClient& client) {
    const std::vector<std::string> keys = some_chain(1 + random_() % 40);
    for (size_t i = keys.size(); i-- > 0;) {
      PageRef ref;
      if (shm::retire(client.lane, home_.digest(keys[i]), &ref) != shm::RetireStatus::kRetired) continue;
      if (shm::finish_retired(client.lane, ref, shm::LaneSet::in_use(home_.region), nullptr) ==
          shm::FinishStatus::kPinned)
        shm::hand_over_retired(home_.region, ref, client.lane.id, shm::daemon_lane(home_.region));
      if (random_() % 4 == 0) return;
    }
  }

  void remove_tree() {
    const std::vector<std::string> keys = some_chain(1 + random_() % 12);
    const shm::Digest digest = home_.digest(keys.back());
    home_.delete_tree(digest);
  }

  // With whatever it holds: a pin, a page that it was filling, a block that it had retired.
  void die() {
    auto& client = clients_[random_() % std::size(clients_)];
    const std::vector<std::string> keys = some_chain(1 + random_() % 20);
    PageRef retired;
    (void)shm::find_and_pin(client->lane, home_.digest(keys.front()), home_.now_ms);
    (void)client->take();
    (void)shm::retire(client->lane, home_.digest(keys.back()), &retired);
    evicted_before_ += client->evicted.size();
    home_.pool->client_died(client->grant.lane);
    home_.settle();
    client = home_.attach();
  }

  std::mt19937_64 random_;
  PoolUnderTest home_{1u << 20, 16, 256};
  std::unique_ptr<InProcessClient> clients_[3];
  uint64_t matched_ = 0, evicted_before_ = 0;
};

TEST(PrefixDifferential, SearchAndWalkAgreeUnderEveryPolicy) {
  const uint64_t seed = seed_of_this_run();
  std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed));
  uint64_t regions_taken = 0;
  for (const char* policy :
       {"lru", "clock", "fifo", "lfu", "ttl", "s3fifo", "size_aware", "priority", "isolated_lru", "odds"}) {
    SCOPED_TRACE(policy);
    Churn churn(seed, policy);
    for (int i = 0; i < 600; ++i) {
      churn.step();
      if (i % 20 == 0) churn.compare();
      if (testing::Test::HasFailure()) return;
    }
    churn.end();
    EXPECT_GT(churn.matched(), 500u);
    EXPECT_GT(churn.evicted(), 50u);
    regions_taken += churn.regions_taken();
  }
  EXPECT_GT(regions_taken, 0u);
}

}  // namespace
}  // namespace maru::daemon
