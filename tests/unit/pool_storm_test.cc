// A pool under clients that live, die and scribble at random. Seeded: the seed is printed, and $MARU_SEED repeats it.
#include "tests/support/random.h"
#include "tests/unit/pool_fixture.h"

#include <cstdio>
#include <cstdlib>
#include <map>

namespace maru::daemon {
namespace {

using test::Random;

struct Held {
  PageRef ref;
  uint32_t slot;
};

struct Actor {
  std::unique_ptr<InProcessClient> client;
  std::vector<Held> pins;
};

// One random step of one client. What it stored is remembered by key in `blocks`.
void act(PoolUnderTest& home, Actor& actor, Random& random, std::map<std::string, PageRef>& blocks,
         uint64_t& next_key) {
  InProcessClient& client = *actor.client;
  const auto any_block = [&] {
    auto block = blocks.begin();
    std::advance(block, long(random.below(blocks.size())));
    return block;
  };
  switch (random.below(12)) {
    case 0:
    case 1:
    case 2:
    case 3: {
      const PageRef parent = !blocks.empty() && !random.one_in(3) ? any_block()->second : PageRef::none();
      const std::string key = "k" + std::to_string(next_key++);
      const uint32_t pages = random.one_in(4) ? 1 + uint32_t(random.below(4)) : 1;
      const PageRef ref = client.store(key, parent, pages);
      if (!ref.is_none()) blocks[key] = ref;
      return;
    }
    case 4:
    case 5:
      if (!blocks.empty()) client.touch(any_block()->second);
      return;
    case 6:
    case 7: {
      if (blocks.empty() || actor.pins.size() >= 24) return;
      const PageRef ref = any_block()->second;
      const shm::Pin pin = client.pin(ref);
      if (pin.status == shm::PinStatus::kPinned) actor.pins.push_back({ref, pin.slot});
      return;
    }
    case 8:
    case 9: {
      if (actor.pins.empty()) return;
      const size_t which = random.below(actor.pins.size());
      EXPECT_TRUE(client.pins.unpin(actor.pins[which].slot, actor.pins[which].ref));
      actor.pins.erase(actor.pins.begin() + long(which));
      return;
    }
    case 10: {
      if (blocks.empty()) return;
      const auto block = any_block();
      if (shm::retire_ref(client.lane, block->second) == shm::RetireStatus::kRetired) {
        const shm::LaneSet lanes = shm::LaneSet::in_use(home.region);
        if (shm::finish_retired(client.lane, block->second, lanes, nullptr) == shm::FinishStatus::kPinned)
          shm::hand_over_retired(home.region, block->second, client.lane.id, shm::daemon_lane(home.region));
        blocks.erase(block);
      }
      return;
    }
    case 11: client.rent(1 + random.below(6), 1 + random.below(3)); return;
  }
}

TEST(PoolStorm, WhateverClientsAndMarudGoThroughThePoolComesToItsBaseline) {
  const uint64_t seed = test::fresh_seed();
  std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int life = 0; life < 12; ++life) {
    PoolUnderTest home(700 << 10, 16, 32);
    std::vector<Actor> actors(3);
    std::map<std::string, PageRef> blocks;
    uint64_t next_key = 0;
    for (Actor& actor : actors) actor.client = home.attach();
    for (int step = 0; step < 3000; ++step) {
      home.now_ms += random.below(3);
      Actor& actor = actors[random.below(actors.size())];
      act(home, actor, random, blocks, next_key);
      if (random.one_in(40)) home.pool->turn(home.now_ms);
      if (random.one_in(400)) {
        if (random.one_in(2))
          home.pool->client_died(actor.client->grant.lane);
        else
          home.pool->detach(actor.client->grant.lane);
        actor = {home.attach(), {}};
        ASSERT_NE(actor.client, nullptr);
      }
      if (random.one_in(700)) {
        ASSERT_TRUE(home.restart());
        for (const Pool::AdoptedLane& lane : home.pool->adopted_lanes()) {
          bool is_known = false;
          for (const Actor& other : actors) is_known |= other.client->grant.lane == lane.lane;
          EXPECT_TRUE(is_known);
        }
      }
      if (random.one_in(500)) {
        for (const auto& [key, ref] : blocks) {
          if (!home.word(ref.page()).is(PageState::kReady, ref.generation())) continue;
          ASSERT_TRUE(home.exists(key)) << key << " is READY and cannot be found";
        }
        home.settle();
        const auto found = home.pool->admin("check", nlohmann::json::object(), home.now_ms);
        ASSERT_EQ(found["found"], 0) << found.dump();
      }
    }
    // What is pinned was not evicted.
    for (const Actor& actor : actors)
      for (const Held& held : actor.pins) {
        const PageWord word = home.word(held.ref.page());
        EXPECT_EQ(word.generation(), held.ref.generation());
        EXPECT_TRUE(word.is(PageState::kReady) || word.is(PageState::kRetired) || word.is(PageState::kRetiring));
      }
    for (Actor& actor : actors) home.pool->client_died(actor.client->grant.lane);
    home.settle();
    home.settle();
    EXPECT_EQ(home.audit(), std::set<std::string>{});
    for (const PageState state : {PageState::kReserved, PageState::kSealed, PageState::kRetired, PageState::kRetiring})
      EXPECT_EQ(home.count(state), 0u);
    home.pool->admin("clear", nlohmann::json::object(), home.now_ms);
    home.settle();
    home.settle();
    EXPECT_EQ(home.count(PageState::kOut), home.region.pages()) << "life " << life;
    EXPECT_EQ(home.audit(), std::set<std::string>{});
    if (HasFailure()) return;
  }
}

TEST(PoolStorm, ScribblesNeitherCrashNorHangMarud) {
  const uint64_t seed = test::fresh_seed();
  std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int life = 0; life < 25; ++life) {
    PoolUnderTest home(700 << 10, 16, 32);
    std::vector<Actor> actors(2);
    std::map<std::string, PageRef> blocks;
    uint64_t next_key = 0;
    for (Actor& actor : actors) actor.client = home.attach();
    const auto* words = reinterpret_cast<AtomicU64*>(home.mapping.data());
    const format::Header& header = home.region.header();
    for (int step = 0; step < 600; ++step) {
      ++home.now_ms;
      if (step < 100) {
        act(home, actors[step % 2], random, blocks, next_key);
        continue;
      }
      for (uint64_t n = random.below(4); n > 0; --n) {
        const format::SectionRecord& section = header.sections[random.below(format::kSectionCount)];
        auto& word = const_cast<AtomicU64&>(words[section.offset / 8 + random.below(section.bytes / 8)]);
        uint64_t value = random.next();
        switch (random.below(5)) {
          case 0: value = word.load_relaxed() ^ 1ull << random.below(64); break;
          case 1: value = 0; break;
          case 2:
            value = random.below(2 * home.region.pages() + 1) << 32 | random.below(2 * home.region.pages() + 1);
            break;
          case 3: value = word.load_relaxed() + random.below(3) - 1; break;
          default: break;
        }
        word.store_relaxed(value);
      }
      const uint32_t lane = actors[random.below(2)].client->grant.lane;
      switch (random.below(14)) {
        case 0:
        case 1:
        case 2:
        case 3: home.pool->rent(lane, {1 + random.below(50), 1 + random.below(4), 0, 0, 0, 0}, home.now_ms); break;
        case 4:
        case 5:
        case 6: home.pool->turn(home.now_ms); break;
        case 7: home.pool->admin("blocks", nlohmann::json::object(), home.now_ms); break;
        case 8: home.pool->admin("pins", nlohmann::json::object(), home.now_ms); break;
        case 9: home.pool->admin("check", {{"quiesce", random.one_in(2)}}, home.now_ms); break;
        case 10: home.pool->admin("evict", {{"pages", 5}}, home.now_ms); break;
        case 11: {
          home.pool->status_json(home.now_ms);
          home.pool->lane_json(lane, home.now_ms);
          home.pool->admin("regions", nlohmann::json::object(), home.now_ms);
          const shm::Digest digest = shm::block_digest(home.region, uint32_t(random.below(home.region.pages())));
          home.delete_tree(digest);
          break;
        }
        case 12:
          if (random.one_in(4)) home.pool->admin("clear", nlohmann::json::object(), home.now_ms);
          break;
        case 13:
          if (random.one_in(3)) {
            ASSERT_TRUE(home.restart());
          } else if (random.one_in(3)) {
            home.pool->client_died(lane);
            for (Actor& actor : actors)
              if (actor.client->grant.lane == lane)
                if (auto next = home.attach()) actor = {std::move(next), {}};
          }
          break;
      }
    }
  }
}

}  // namespace
}  // namespace maru::daemon
