// Checks that an administrator asks for, of a pool whose queues of eviction are built anew meanwhile.
#include "tests/unit/pool_fixture.h"

namespace maru::daemon {
namespace {

using nlohmann::json;

// Queues of three blocks in each region of a pool that takes several turns to put in order.
class CheckedPool : public ::testing::Test {
 protected:
  static constexpr uint64_t kPages = 1u << 17;

  CheckedPool() {
    while (client_->rent(pool_.region.region_pages()) && client_->regions.size() < pool_.region.regions()) {
    }
    EXPECT_EQ(client_->regions.size(), pool_.region.regions());
    for (uint32_t i = 0; i < pool_.region.regions(); ++i)
      for (uint32_t k = 0; k < 3; ++k, ++pool_.now_ms) {
        const PageRef stored = store_at(i * pool_.region.region_pages() + k);
        if (k == 1) middle_.push_back(stored);
        if (i % 32 == 0) pool_.pool->turn(pool_.now_ms);
      }
    pool_.settle();
  }
  PageRef store_at(uint32_t page) {
    EXPECT_FALSE(shm::take_run(pool_.region, client_->lane.id, page, 1, nullptr).is_none());
    client_->runs.push_back({page, 1});
    const PageRef stored = client_->store("page " + std::to_string(page));
    EXPECT_FALSE(stored.is_none());
    return stored;
  }
  // A new life of pages in the middle of queues: those whose region is not in order yet leave a gap in the links of the old.
  void store_again() {
    for (PageRef& ref : middle_) {
      EXPECT_TRUE(client_->remove(ref));
      ref = store_at(ref.page());
    }
  }
  json check(bool is_quiesced, uint64_t* ticket) {
    return pool_.pool->admin("check", {{"quiesce", is_quiesced}}, pool_.now_ms, ticket);
  }
  json turn_until_checked(bool is_quiesced, uint64_t* ticket, int* ret_turns) {
    json reply;
    for (*ret_turns = 0; reply.is_null() && *ret_turns < 100'000; ++*ret_turns) {
      pool_.pool->turn(++pool_.now_ms);
      reply = check(is_quiesced, ticket);
    }
    return reply;
  }
  void expect_new_start(bool is_quiesced) {
    uint64_t ticket = 0;
    int alone = 0, turns = 0;
    EXPECT_TRUE(check(is_quiesced, &ticket).is_null());
    EXPECT_EQ(turn_until_checked(is_quiesced, &ticket, &alone).value("found", -1), 0);
    EXPECT_TRUE(check(is_quiesced, &ticket).is_null());
    // As long as it takes, the queues are hardly ever in order.
    for (int i = 0; i < alone && !pool_.pool->is_quiesced(); ++i) {
      if (i % kReorderTurns == 0) {
        ASSERT_TRUE(pool_.pool->set_policy(i / kReorderTurns % 2 == 0 ? "fifo" : "lru", {}, pool_.now_ms, true));
      }
      store_again();
      pool_.pool->turn(++pool_.now_ms);
    }
    EXPECT_FALSE(pool_.pool->is_quiesced());
    EXPECT_TRUE(check(is_quiesced, &ticket).is_null()) << "it is under way still";
    const json reply = turn_until_checked(is_quiesced, &ticket, &turns);
    EXPECT_EQ(reply.value("found", -1), 0) << reply.dump();
    EXPECT_GE(turns, alone - kReorderTurns);
  }
  static constexpr int kReorderTurns = int(kPages >> 15) + 1;

  PoolUnderTest pool_{kPages * 4096, 1024, 64, {}, 0, 1u << 12};
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
  std::vector<PageRef> middle_;  // of the blocks of each region the one that was stored second
};

// What it would see of queues that are no order is no damage.
TEST_F(CheckedPool, AnAuditBeginsAgainWhenTheQueuesAreBuiltAnew) { expect_new_start(false); }

TEST_F(CheckedPool, SoDoesAnAuditAtRestThatIsBeingPrepared) { expect_new_start(true); }

}  // namespace
}  // namespace maru::daemon
