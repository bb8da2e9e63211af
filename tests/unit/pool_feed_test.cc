// Blocks that come and go, as a follower is told of them.
#include "libmaru/shm/feed/ring.h"
#include "maru/follow.h"
#include "tests/unit/pool_fixture.h"

#include <algorithm>
#include <map>
#include <random>

namespace maru::daemon {
namespace {

using format::FeedKind;
using format::FeedState;

// A follower that keeps what it is told, and fails where the order is wrong.
class TestFollower {
 public:
  explicit TestFollower(PoolUnderTest& home) : home_(home) {
    auto grant = home.pool->follow(home.now_ms);
    if (!grant) throw std::runtime_error(grant.error().text());
    incarnation = grant->reply.incarnation;
    auto mapped = Mapping::map_shared(grant->feed.get(), 0, grant->reply.feed_bytes, PROT_READ);
    if (!mapped) throw std::runtime_error(mapped.error().text());
    mapping_ = std::move(*mapped);
    const char* wrong = shm::FeedView::attach(mapping_.bytes(), home.region.pages(), home.pool->header().uuid, &view_);
    if (wrong) throw std::runtime_error(wrong);
    fd = std::move(grant->feed);
    control = std::move(grant->control);
    pages = std::move(grant->pages);
  }

  // The blocks that the table has.
  void take_snapshot() {
    while (view_.header().state.load_acquire() == uint32_t(FeedState::kFilling)) home_.pool->turn(home_.now_ms);
    reader_ = shm::FeedReader(view_);
    ASSERT_TRUE(reader_.go_to_end());
    known.clear();
    for (uint32_t page = 0; page < home_.region.pages(); ++page)
      if (view_.table(page).load_acquire() != 0) known[page] = {};
  }

  // What is new: "stored KEY" and "removed KEY by REASON", in their order.
  std::vector<std::string> look() {
    std::vector<std::string> seen;
    shm::FeedRecord record;
    while (true) {
      const shm::FeedStatus status = reader_.read(&record);
      if (status == shm::FeedStatus::kOverrun) is_overrun = true;
      if (status == shm::FeedStatus::kDamaged) ADD_FAILURE() << "a damaged record";
      if (status != shm::FeedStatus::kRecord) return seen;
      const uint32_t page = record.block.page();
      const auto found = known.find(page);
      if (record.kind == FeedKind::kStored) {
        EXPECT_TRUE(found == known.end()) << "page " << page << " has a block already";
        if (!record.parent.is_none()) EXPECT_TRUE(known.contains(record.parent.page())) << "a child before its parent";
        known[page] = {std::string(reinterpret_cast<const char*>(record.key), record.key_bytes), record.block,
                       record.parent};
        seen.push_back("stored " + known[page].key);
        continue;
      }
      const bool is_known = found != known.end();
      EXPECT_TRUE(is_known) << "page " << page << " has no block";
      if (!is_known) continue;
      for (const auto& [other, block] : known)
        EXPECT_FALSE(!block.parent.is_none() && block.parent == record.block) << "a parent before its child";
      seen.push_back("removed " + found->second.key + " by " + maru_follow_reason_name(record.reason));
      known.erase(found);
    }
  }

  // Whether what it knows is what the pool has.
  void expect_the_truth() const {
    for (uint32_t page = 0; page < home_.region.pages(); ++page) {
      const PageWord word = home_.word(page);
      const bool is_block = word.is(PageState::kReady) || word.is(PageState::kRetiring);
      EXPECT_EQ(known.contains(page), is_block) << "page " << page;
      const uint32_t mark = view_.table(page).load_acquire();
      EXPECT_EQ(mark, is_block ? format::feed_mark(word.generation()) : 0) << "page " << page;
    }
  }

  struct Known {
    std::string key;
    PageRef ref, parent;
  };
  std::map<uint32_t, Known> known;
  FileDescriptor fd, control, pages;
  uint64_t incarnation = 0;
  bool is_overrun = false;
  const shm::FeedView& view() const { return view_; }

 private:
  PoolUnderTest& home_;
  Mapping mapping_;
  shm::FeedView view_;
  shm::FeedReader reader_;
};

class PoolFeed : public ::testing::Test {
 protected:
  void begin() {
    follower_ = std::make_unique<TestFollower>(home_);
    follower_->take_snapshot();
  }
  std::vector<std::string> look() { return follower_->look(); }
  std::vector<std::string> look_sorted() {
    std::vector<std::string> seen = look();
    std::sort(seen.begin(), seen.end());
    return seen;
  }
  void turn(int turns = 1) {
    for (; turns > 0; --turns) {
      home_.now_ms += 50;
      home_.pool->turn(home_.now_ms);
    }
  }
  // As maru_delete does, which counts it.
  void remove(InProcessClient& client, std::string_view key) {
    PageRef ref;
    ASSERT_EQ(shm::retire(client.lane, home_.digest(key), &ref), shm::RetireStatus::kRetired);
    shm::finish_retired(client.lane, ref, shm::LaneSet::in_use(home_.region), nullptr);
    home_.region.lane_header(client.grant.lane).counters[format::kCounterDeletes].fetch_add_relaxed(1);
  }
  using Lines = std::vector<std::string>;

  PoolUnderTest home_{1u << 20};
  std::unique_ptr<TestFollower> follower_;
};

TEST_F(PoolFeed, WhatClientsStoreAndRemoveIsToldInTheNextTurn) {
  const auto client = home_.attach();
  ASSERT_FALSE(client->store("old").is_none());
  turn();
  begin();
  EXPECT_EQ(follower_->known.size(), 1u) << "what was there before is in the snapshot";
  const PageRef ref = client->store("new");
  EXPECT_EQ(look(), Lines());
  turn();
  EXPECT_EQ(look(), Lines({"stored new"}));
  client->touch(ref);
  turn();
  EXPECT_EQ(look(), Lines()) << "a use is no event";
  remove(*client, "new");
  turn();
  EXPECT_EQ(look(), Lines({"removed new by client"}));
  follower_->expect_the_truth();
}

TEST_F(PoolFeed, APageThatIsUsedAgainAtOnceShowsBothBlocks) {
  const auto client = home_.attach();
  begin();
  const PageRef ref = client->store("first");
  turn();
  remove(*client, "first");
  ASSERT_EQ(client->store("second").page(), ref.page());
  turn();
  EXPECT_EQ(look(), Lines({"stored first", "removed first by client", "stored second"}));
}

TEST_F(PoolFeed, WhatMarudRemovesIsNamedWithItsReason) {
  const auto client = home_.attach();
  begin();
  for (int i = 0; i < 3; ++i) client->store("block" + std::to_string(i));
  turn();
  look();
  home_.pool->admin("evict", {{"pages", 1}}, home_.now_ms);
  turn();
  EXPECT_EQ(look(), Lines({"removed block0 by admin"}));
  const PageRef pinned = shm::find_unpinned(home_.region, home_.digest("block2"));
  const shm::Pin pin = client->pin(pinned);
  home_.pool->admin("clear", nlohmann::json::object(), home_.now_ms);
  turn();
  EXPECT_EQ(look_sorted(), Lines({"removed block1 by admin", "removed block2 by admin"}))
      << "also what is still pinned";
  client->pins.unpin(pin.slot, pinned);
  home_.settle();
  EXPECT_EQ(look(), Lines()) << "its memory is free now, which is no event";
}

TEST_F(PoolFeed, ABlockThatNobodyHasSeenIsStoredBeforeItIsRemoved) {
  const auto client = home_.attach();
  begin();
  std::set<std::string> stored, removed;
  for (int i = 0; i < 400; ++i) client->store("many" + std::to_string(i));  // more than fit
  turn();
  for (const std::string& line : look()) {
    if (line.starts_with("stored "))
      EXPECT_TRUE(stored.insert(line.substr(7)).second) << line << " twice";
    else
      removed.insert(line);
  }
  EXPECT_EQ(stored.size(), 400u);
  EXPECT_EQ(removed.size(), 400u - home_.count(PageState::kReady));
  EXPECT_GT(removed.size(), 0u);
  follower_->expect_the_truth();
}

TEST_F(PoolFeed, TouchesThatWereLostAreMadeUpForByLooking) {
  const auto client = home_.attach();
  begin();
  const PageRef ref = client->store("quiet");
  for (int i = 0; i < 300; ++i)
    client->touch(PageRef::of(uint32_t(home_.region.pages()) - 1, 0));  // more than a ring has
  turn();
  EXPECT_EQ(look(), Lines({"stored quiet"}));
  EXPECT_EQ(home_.word(ref.page()).state(), PageState::kReady);
}

TEST_F(PoolFeed, ParentsComeFirstAndGoLast) {
  const auto client = home_.attach();
  begin();
  // The touches of the ancestors are lost: the deepest is what marud meets first.
  PageRef parent = PageRef::none(), deepest;
  for (int i = 0; i < 5; ++i) deepest = parent = client->store("depth" + std::to_string(i), parent);
  for (int i = 0; i < 300; ++i) client->touch(deepest);
  turn();
  EXPECT_EQ(look(), Lines({"stored depth0", "stored depth1", "stored depth2", "stored depth3", "stored depth4"}));
  for (int i = 4; i >= 0; --i) remove(*client, "depth" + std::to_string(i));
  turn();
  EXPECT_EQ(look(), Lines({"removed depth4 by client", "removed depth3 by client", "removed depth2 by client",
                           "removed depth1 by client", "removed depth0 by client"}));
  follower_->expect_the_truth();
}

TEST_F(PoolFeed, ABlockThatIsNotPublishedYetIsNoNews) {
  const auto client = home_.attach();
  begin();
  const PageRef ref = client->store("there");
  shm::registry_remove(home_.region, client->lane.id, home_.digest("there"), ref);  // as before step 6 of a store
  turn(3);
  EXPECT_EQ(look(), Lines());
  const shm::Pin pin = client->pin(ref);
  shm::registry_insert(home_.region, client->lane.id, client->pins, home_.digest("there"), ref, 0);
  client->pins.unpin(pin.slot, ref);
  turn(2);
  EXPECT_EQ(look(), Lines({"stored there"}));
}

TEST_F(PoolFeed, WhoReadsTooSlowlyIsOverrunAndLosesNothingButTime) {
  const auto client = home_.attach();
  begin();
  // A MiB of records with keys of 64 bytes.
  for (int i = 0; i < 8000; ++i) {
    client->store(std::string(50, 'k') + std::to_string(i));
    if (i % 100 == 0) turn();
  }
  turn();
  look();
  EXPECT_TRUE(follower_->is_overrun);
  follower_->take_snapshot();
  follower_->expect_the_truth();
}

TEST_F(PoolFeed, NobodyFollowsAndThereIsNoFeed) {
  EXPECT_FALSE(home_.pool->feed_turn_ms());
  begin();
  EXPECT_TRUE(home_.pool->feed_turn_ms());
  const uint64_t first = follower_->incarnation;
  home_.pool->unfollow(first);
  turn();
  EXPECT_TRUE(home_.pool->feed_turn_ms()) << "the follower may come back";
  home_.now_ms += 31'000;
  turn();
  EXPECT_FALSE(home_.pool->feed_turn_ms());
  EXPECT_EQ(follower_->view().header().state.load_acquire(), uint32_t(FeedState::kEnded));
  begin();
  EXPECT_NE(follower_->incarnation, first);
}

TEST_F(PoolFeed, AFollowerCanWriteNothing) {
  begin();
  for (const FileDescriptor* one : {&follower_->fd, &follower_->control, &follower_->pages}) {
    EXPECT_FALSE(Mapping::map_shared(one->get(), 0, 4096, PROT_READ | PROT_WRITE));
    EXPECT_TRUE(Mapping::map_shared(one->get(), 0, 4096, PROT_READ));
    EXPECT_LT(::pwrite(one->get(), "x", 1, 0), 0);
  }
}

// Whatever clients do, a follower ends with what the pool has, and meets the order (TestFollower checks it).
TEST_F(PoolFeed, EndsWithTheTruthAfterAnything) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return uint32_t(random() % n); };
  std::vector<std::unique_ptr<InProcessClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(home_.attach());
  begin();
  for (int step = 0; step < 3000; ++step) {
    InProcessClient& client = *clients[below(3)];
    const std::string key = "key" + std::to_string(below(300));
    const PageRef there = shm::find_unpinned(home_.region, home_.digest(key));
    if (there.is_none()) {
      const PageRef parent = shm::find_unpinned(home_.region, home_.digest("key" + std::to_string(below(300))));
      client.store(key, below(2) ? parent : PageRef::none());
    } else if (below(3) == 0) {
      PageRef ref;
      if (shm::retire(client.lane, home_.digest(key), &ref) == shm::RetireStatus::kRetired) {
        shm::finish_retired(client.lane, ref, shm::LaneSet::in_use(home_.region), nullptr);
        home_.region.lane_header(client.grant.lane).counters[format::kCounterDeletes].fetch_add_relaxed(1);
      }
    } else {
      client.touch(there);
    }
    if (below(40) == 0) home_.pool->admin("evict", {{"pages", 1 + below(8)}}, home_.now_ms);
    if (below(10) == 0) turn();
    if (below(30) == 0) look();
    if (below(500) == 0) {
      home_.pool->client_died(client.grant.lane);
      for (auto& one : clients)
        if (one.get() == &client) one = home_.attach();
    }
  }
  home_.settle();
  turn(8);
  look();
  follower_->expect_the_truth();
}

}  // namespace
}  // namespace maru::daemon
