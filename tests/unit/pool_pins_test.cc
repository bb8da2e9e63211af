// Pins that have lasted long: seen, named once, and never ended; and what was deleted under a pin.
#include "tests/unit/pool_fixture.h"

#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kOverdueMs = 30'000;  // the default

class LongPins : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = home_.attach();
    ASSERT_TRUE(client_);
    ref_ = client_->store("held", PageRef::none());
    ASSERT_FALSE(ref_.is_none());
    home_.pool->turn(home_.now_ms);
  }
  // Turns of marud as often as it really has them while clients are attached, ages of pins being looked at now and then.
  void pass(uint64_t ms) {
    for (const uint64_t until_ms = home_.now_ms + ms; home_.now_ms < until_ms;) {
      home_.now_ms += 50;
      home_.pool->turn(home_.now_ms);
    }
  }
  nlohmann::json status() const { return home_.pool->status_json(home_.now_ms); }
  nlohmann::json pins(bool only_overdue) {
    return home_.pool->admin("pins", {{"overdue", only_overdue}}, home_.now_ms).at("pins");
  }

  PoolUnderTest home_;
  std::unique_ptr<InProcessClient> client_;
  PageRef ref_;
};

TEST_F(LongPins, APinThatLastsIsNamedOnce) {
  const shm::Pin pin = client_->pin(ref_);
  ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
  pass(kOverdueMs / 2);
  EXPECT_TRUE(home_.pool->take_overdue_pins().pins.empty());
  EXPECT_EQ(status().at("pins_overdue"), 0);
  EXPECT_EQ(pins(true).size(), 0u);
  ASSERT_EQ(pins(false).size(), 1u);
  EXPECT_EQ(pins(false)[0].at("overdue"), false);
  pass(kOverdueMs);
  const OverduePins news = home_.pool->take_overdue_pins();
  ASSERT_EQ(news.pins.size(), 1u);
  EXPECT_EQ(news.unnamed, 0u);
  EXPECT_EQ(news.pins[0].lane, client_->grant.lane);
  EXPECT_EQ(news.pins[0].key, "held");
  EXPECT_GE(news.pins[0].age_ms, kOverdueMs);
  ASSERT_EQ(pins(true).size(), 1u);
  EXPECT_EQ(pins(true)[0].at("key"), "held");
  EXPECT_EQ(pins(true)[0].at("overdue"), true);
  pass(3 * kOverdueMs);
  EXPECT_TRUE(home_.pool->take_overdue_pins().pins.empty()) << "it was named already";
  EXPECT_EQ(status().at("pins_overdue"), 1);
  EXPECT_EQ(status().at("pins_overdue_total"), 1);
  const auto lane = home_.pool->lane_json(client_->grant.lane, home_.now_ms);
  EXPECT_EQ(lane.at("pins"), 1);
  EXPECT_EQ(lane.at("pins_overdue"), 1);
  EXPECT_GE(lane.at("oldest_pin_ms"), 4 * kOverdueMs);
  ASSERT_TRUE(client_->pins.unpin(pin.slot, ref_)) << "nobody has taken it away";
  EXPECT_EQ(status().at("pins_overdue"), 0);
  EXPECT_EQ(status().at("pins_overdue_total"), 1);
}

TEST_F(LongPins, NothingIsUnpinnedBecauseOfItsAge) {
  const shm::Pin pin = client_->pin(ref_);
  ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
  pass(4 * kOverdueMs);
  home_.pool->admin("evict", {{"pages", 1000}}, home_.now_ms);
  EXPECT_TRUE(home_.exists("held"));
  EXPECT_TRUE(home_.word(ref_.page()).is(PageState::kReady));
  EXPECT_TRUE(client_->pins.unpin(pin.slot, ref_));
}

// The slot of a block in steady use holds the block whenever marud looks.
TEST_F(LongPins, AUseAnewMeansThatItIsNotForgotten) {
  for (uint64_t passed_ms = 0; passed_ms < 4 * kOverdueMs; passed_ms += kOverdueMs / 2) {
    ASSERT_EQ(client_->pin(ref_).status, shm::PinStatus::kPinned);
    client_->touch(ref_);
    pass(kOverdueMs / 2);
  }
  EXPECT_TRUE(home_.pool->take_overdue_pins().pins.empty());
  EXPECT_EQ(status().at("pins_overdue"), 0);
  pass(kOverdueMs);
  EXPECT_EQ(home_.pool->take_overdue_pins().pins.size(), 1u) << "now nobody uses it any more";
}

TEST_F(LongPins, AnotherBlockInTheSameSlotIsAnotherPin) {
  for (int round = 0; round < 3; ++round) {
    const shm::Pin pin = client_->pin(ref_);
    ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
    pass(kOverdueMs - 1000);
    ASSERT_TRUE(client_->pins.unpin(pin.slot, ref_));
    pass(1000);  // long enough to be seen
  }
  EXPECT_EQ(status().at("pins_overdue_total"), 0);
}

TEST_F(LongPins, ThePinsOfALaneThatIsGoneAreGone) {
  ASSERT_EQ(client_->pin(ref_).status, shm::PinStatus::kPinned);
  pass(2 * kOverdueMs);
  EXPECT_EQ(status().at("pins_overdue"), 1);
  home_.pool->client_died(client_->grant.lane);
  home_.settle();
  EXPECT_EQ(status().at("pins_overdue"), 0);
  EXPECT_TRUE(pins(false).empty());
  EXPECT_TRUE(home_.exists("held"));
}

// -- deleted meanwhile ------------------------------------------------------------------------------------------------

// What was deleted while somebody held it is there until marud frees it, and until then its parent has a child.
TEST(DeletedWhileHeld, ParentGoesAsSoonAsNobodyHoldsIt) {
  for (const char* how : {"by a client", "by an administrator", "everything"}) {
    PoolUnderTest pool;
    const auto client = pool.attach();
    const PageRef a = client->store("a"), b = client->store("b", a), c = client->store("c", b);
    pool.settle();
    const shm::Pin pin = client->pin(c);
    ASSERT_FALSE(client->remove(c)) << "held";
    ASSERT_TRUE(shm::hand_over_retired(pool.region, c, client->lane.id, shm::daemon_lane(pool.region, 0)));
    client->touch(c);
    client->pins.unpin(pin.slot, c);
    // marud has no turn in between.
    if (how == std::string("by a client")) {
      const DeleteTreeResult result = pool.delete_tree(pool.digest("a"));
      EXPECT_EQ(result.status, 0);
      EXPECT_EQ(result.deleted, 2u);
      EXPECT_EQ(result.left, 0u);
    } else {
      const bool is_whole = how == std::string("everything");
      const nlohmann::json reply =
          pool.pool->admin(is_whole ? "clear" : "delete_tree",
                           is_whole ? nlohmann::json::object() : nlohmann::json{{"key", "a"}}, pool.now_ms, nullptr);
      EXPECT_EQ(reply["deleted_blocks"], 2) << how << ": " << reply;
      EXPECT_EQ(reply["left_blocks"], 0) << how << ": " << reply;
    }
    EXPECT_FALSE(pool.exists("a")) << how;
    EXPECT_EQ(pool.count(PageState::kReady) + pool.count(PageState::kRetired), 0u) << how;
    pool.settle();
    EXPECT_EQ(pool.audit(), std::set<std::string>()) << how;
  }
}

// -- listings ---------------------------------------------------------------------------------------------------------

// As many rows as there are pinners would be more than a reply has room for.
TEST(Pinners, OfManyTwoHundredAreNamedAndAllAreCounted) {
  PoolUnderTest home(4u << 20, 16, 64, {}, 0, 256, 256);
  std::vector<std::unique_ptr<InProcessClient>> clients;
  while (clients.size() < 230) clients.push_back(home.attach());
  const PageRef ref = clients[0]->store("popular");
  const auto block = [&] { return home.pool->admin("block", {{"key", "popular"}}, home.now_ms); };
  EXPECT_EQ(block().at("pinned_by_count"), 0);
  for (const auto& client : clients) ASSERT_EQ(client->pin(ref).status, shm::PinStatus::kPinned);
  EXPECT_EQ(block().at("pinned_by").size(), 200u);
  EXPECT_EQ(block().at("pinned_by_count"), clients.size());
}

TEST_F(LongPins, ListingsOfBlocksCanAskForPinnedOnes) {
  ASSERT_FALSE(client_->store("free", PageRef::none()).is_none());
  ASSERT_EQ(client_->pin(ref_).status, shm::PinStatus::kPinned);
  const auto keys = [&](const nlohmann::json& request) {
    std::set<std::string> found;
    const nlohmann::json reply = home_.pool->admin("blocks", request, home_.now_ms);
    for (const auto& row : reply.at("blocks")) found.insert(row.at("key"));
    return found;
  };
  using Keys = std::set<std::string>;
  EXPECT_EQ(keys(nlohmann::json::object()), (Keys{"held", "free"}));
  EXPECT_EQ(keys({{"pinned", true}}), Keys{"held"});
  EXPECT_EQ(keys({{"prefix", "fr"}}), Keys{"free"});
  EXPECT_EQ(keys({{"tenant", 7u}}), Keys{});
  EXPECT_EQ(keys({{"min_priority", 1}}), Keys{});
  EXPECT_EQ(keys({{"type", "kv_cache"}}), (Keys{"held", "free"}));
  EXPECT_EQ(keys({{"type", "gradient"}}), Keys{});
  const auto refused = home_.pool->admin("blocks", {{"type", "bread"}}, home_.now_ms);
  EXPECT_NE(refused.at("error").get<std::string>().find("lora_weight"), std::string::npos) << refused;
}

}  // namespace
}  // namespace maru::daemon
