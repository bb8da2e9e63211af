// Blocks that come and go, as somebody sees them who looks on.
#include "daemon/pool/inspect/block_watch.h"
#include "tests/unit/pool_fixture.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using nlohmann::json;

class Watch : public ::testing::Test {
 protected:
  // What is new since the last call: "stored KEY" and "removed KEY by REASON", in their order.
  std::vector<std::string> look() {
    std::vector<std::string> seen;
    while (true) {
      const json reply = home_.pool->admin("watch", request_, home_.now_ms);
      lost_ += reply.at("lost").get<uint64_t>();
      request_["watch"] = reply.at("watch");
      request_["cursor"] = reply.at("next");
      for (const json& event : reply.at("events")) {
        const std::string key = event.at("key").is_null() ? "?" : event.at("key").get<std::string>();
        seen.push_back(event.at("event").get<std::string>() + " " + key +
                       (event.contains("reason") ? " by " + event.at("reason").get<std::string>() : ""));
      }
      if (reply.at("events").empty()) return seen;
    }
  }
  void turn() {
    home_.now_ms += 50;
    home_.pool->turn(home_.now_ms);
  }
  void remove(InProcessClient& client, std::string_view key) {
    PageRef ref;
    ASSERT_EQ(shm::retire(client.lane, home_.digest(key), &ref), shm::RetireStatus::kRetired);
    shm::finish_retired(client.lane, ref, shm::LaneSet::in_use(home_.region), nullptr);
  }
  using Lines = std::vector<std::string>;

  PoolUnderTest home_{1u << 20};
  json request_ = json::object();
  uint64_t lost_ = 0;
};

TEST_F(Watch, WhatClientsStoreAndRemoveIsSeenInTheNextTurn) {
  const auto client = home_.attach();
  ASSERT_FALSE(client->store("old").is_none());
  turn();
  EXPECT_EQ(look(), Lines()) << "what was there before is not news";
  turn();
  const PageRef ref = client->store("new");
  EXPECT_EQ(look(), Lines());
  turn();
  EXPECT_EQ(look(), Lines({"stored new"}));
  client->touch(ref);
  turn();
  EXPECT_EQ(look(), Lines()) << "a use is no event";
  remove(*client, "old");
  remove(*client, "new");
  turn();
  Lines gone = look();
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(gone, Lines({"removed new by client", "removed old by client"}));
}

TEST_F(Watch, APageThatIsUsedAgainAtOnceShowsBothBlocks) {
  const auto client = home_.attach();
  look();
  PageRef ref = client->store("first");
  turn();
  remove(*client, "first");
  ASSERT_EQ(client->store("second").page(), ref.page());
  turn();
  EXPECT_EQ(look(), Lines({"stored first", "removed first by client", "stored second"}));
}

TEST_F(Watch, WhatMarudRemovesIsNamedWithItsReason) {
  const auto client = home_.attach();
  look();
  for (int i = 0; i < 3; ++i) client->store("block" + std::to_string(i));
  turn();
  look();
  home_.pool->admin("evict", {{"pages", 1}}, home_.now_ms);
  EXPECT_EQ(look(), Lines({"removed block0 by admin"})) << "at once, not when somebody comes by";
  const PageRef pinned = shm::find_unpinned(home_.region, home_.digest("block2"));
  const shm::Pin pin = client->pin(pinned);
  home_.pool->admin("clear", json::object(), home_.now_ms);
  Lines gone = look();
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(gone, Lines({"removed block1 by admin", "removed block2 by admin"})) << "also what is still pinned";
  client->pins.unpin(pin.slot, pinned);
  home_.settle();
  EXPECT_EQ(look(), Lines()) << "its memory is free now, which is no event";
}

TEST_F(Watch, ABlockThatNobodyHasSeenIsStoredBeforeItIsRemoved) {
  const auto client = home_.attach();
  look();
  turn();
  std::set<std::string> stored, removed;
  for (int i = 0; i < 400; ++i) client->store("many" + std::to_string(i));  // more than fit
  turn();
  for (const std::string& line : look()) {
    if (line.starts_with("stored ")) {
      EXPECT_TRUE(stored.insert(line.substr(7)).second) << line << " twice";
    } else {
      ASSERT_TRUE(line.ends_with(" by request")) << line;
      const std::string key = line.substr(8, line.size() - 8 - 11);
      EXPECT_TRUE(stored.contains(key)) << line << " was never stored";
      EXPECT_TRUE(removed.insert(key).second) << line << " twice";
    }
  }
  EXPECT_EQ(stored.size(), 400u);
  EXPECT_EQ(removed.size(), 400u - home_.count(PageState::kReady));
  EXPECT_GT(removed.size(), 0u);
}

TEST_F(Watch, ABlockThatIsRemovedUnseenWasStoredAllTheSame) {
  const auto client = home_.attach();
  look();
  turn();
  client->store("quiet");
  for (int i = 0; i < 300; ++i)
    client->touch(PageRef::of(uint32_t(home_.region.pages()) - 1, 0));  // its own touch is lost among these
  home_.pool->admin("clear", json::object(), home_.now_ms);
  EXPECT_EQ(look(), Lines({"stored quiet", "removed quiet by admin"}));
}

TEST_F(Watch, TouchesThatWereLostAreMadeUpForByLooking) {
  const auto client = home_.attach();
  look();
  turn();
  const PageRef ref = client->store("quiet");
  for (int i = 0; i < 300; ++i)
    client->touch(PageRef::of(uint32_t(home_.region.pages()) - 1, 0));  // more than a ring has
  turn();
  EXPECT_EQ(look(), Lines({"stored quiet"}));
  EXPECT_EQ(home_.word(ref.page()).state(), PageState::kReady);
}

TEST_F(Watch, WhoReadsTooSlowlyIsToldHowMuchIsLost) {
  const auto client = home_.attach();
  look();
  turn();
  constexpr size_t kBlocks = BlockWatch::kEventsMax;  // each comes, and nearly each goes
  // One name in a million meets a full bucket. Such a store is no event, and the next name may meet another one.
  const auto is_stored = [&](size_t i, int tries) {
    return !client->store("b" + std::to_string(i) + (tries ? " " + std::to_string(tries) : "")).is_none();
  };
  for (size_t i = 0; i < kBlocks; ++i) {
    int tries = 0;
    while (!is_stored(i, tries)) ASSERT_LT(++tries, 20);
  }
  turn();
  const size_t seen = look().size();
  EXPECT_EQ(seen, BlockWatch::kEventsMax);
  EXPECT_EQ(lost_, 2 * kBlocks - home_.count(PageState::kReady) - BlockWatch::kEventsMax);
}

TEST_F(Watch, EndsWhenNobodyAsksAndBeginsAnew) {
  const auto client = home_.attach();
  look();
  const json first = request_;
  home_.now_ms += 31'000;
  turn();
  client->store("unseen");
  turn();
  EXPECT_EQ(look(), Lines());
  EXPECT_NE(request_.at("watch"), first.at("watch")) << "the caller can tell that something was missed";
  client->store("seen");
  turn();
  EXPECT_EQ(look(), Lines({"stored seen"}));
}

TEST_F(Watch, AnyCursorIsAnswered) {
  const auto client = home_.attach();
  look();
  client->store("one");
  turn();
  const json watch = request_.at("watch");
  for (const json& cursor : {json(0), json(99), json(~0ull), json("x"), json(-1)})
    EXPECT_LE(home_.pool->admin("watch", {{"watch", watch}, {"cursor", cursor}}, home_.now_ms).at("events").size(), 1u);
  EXPECT_EQ(home_.pool->admin("watch", {{"watch", watch}, {"cursor", ~0ull}}, home_.now_ms).at("next"), 1);
}

TEST_F(Watch, LongKeysAreCut) {
  const auto client = home_.attach();
  look();
  const std::string key(1000, 'k');
  if (client->store(key).is_none()) GTEST_SKIP() << "keys are shorter in this pool";
  turn();
  const json reply = home_.pool->admin("watch", request_, home_.now_ms);
  ASSERT_EQ(reply.at("events").size(), 1u);
  EXPECT_EQ(reply.at("events")[0].at("key"), std::string(128, 'k'));
  EXPECT_EQ(reply.at("events")[0].at("key_bytes"), 1000);
}

}  // namespace
}  // namespace maru::daemon
