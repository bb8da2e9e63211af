// Followers of a pool among real processes that are killed: each ends with exactly the pool's blocks, and meets the order that
// maru/follow.h promises.
//
// A program of its own, which is also the workers that it kills. MARU_FOLLOW_ROUNDS says how often something is killed.
#include "maru/follow.h"
#include "tests/process/board.h"
#include "tests/process/churner.h"
#include "tests/process/roles.h"
#include "tests/process/shared_hosts.h"
#include "tests/support/child_process.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <thread>

namespace maru::test {
namespace {

// An index as a router's: it does what it is told, and fails the test where that cannot be.
class Index {
 public:
  explicit Index(const std::string& socket_path) {
    maru_follow_options options = {};
    options.size = sizeof(options);
    options.socket_path = socket_path.c_str();
    options.timeout_ms = far_too_long_ms();
    int result = -ECONNREFUSED;
    EXPECT_TRUE(wait_until([&] {
      result = maru_follow_open(&options, &follower_);
      return result != -ECONNREFUSED && result != -ENODEV;
    }));
    if (result != 0) throw std::runtime_error("follow: " + std::to_string(result));
  }
  ~Index() { maru_follow_close(follower_); }
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // Takes what is there; waits for a first event for so long. Returns how many came, or -errno.
  int take(int wait_ms) {
    std::array<maru_follow_event, 64> events;
    int all = 0;
    for (;;) {
      const int found = maru_follow_next(follower_, events.data(), events.size(), wait_ms);
      if (found < 0) return all > 0 ? all : found;
      for (int i = 0; i < found; ++i) take(events[size_t(i)]);
      all += found;
      if (found == 0) return all;
      wait_ms = 0;
    }
  }
  bool has_current() {
    return wait_until([&] { return take(10) >= 0 && is_current; });
  }

  std::set<uint64_t> refs() const {
    std::set<uint64_t> all;
    for (const auto& [ref, block] : blocks) all.insert(ref);
    return all;
  }
  maru_follow_status status() const {
    maru_follow_status status = {};
    status.size = sizeof(status);
    maru_follow_get_status(follower_, &status);
    return status;
  }

  struct Block {
    std::string key, metadata;
    uint64_t parent, length;
    uint32_t children = 0;
  };
  std::map<uint64_t, Block> blocks;
  std::map<uint32_t, uint64_t> resets, removals;  // by reason
  std::vector<std::string> told;                  // of the last events
  bool is_current = false;
  uint64_t incarnation = 0, last = 0;

 private:
  void take(const maru_follow_event& event) {
    const std::string key(static_cast<const char*>(event.key.data ? event.key.data : ""), event.key.size);
    switch (event.kind) {
      case MARU_FOLLOW_RESET:
        blocks.clear();
        ++resets[event.reason];
        is_current = false;
        incarnation = event.incarnation;
        break;
      case MARU_FOLLOW_STORED: {
        EXPECT_NE(incarnation, 0u) << "a block before RESET";
        EXPECT_EQ((event.flags & MARU_FOLLOW_IN_SNAPSHOT) != 0, !is_current);
        EXPECT_TRUE(blocks
                        .try_emplace(event.block, Block{key,
                                                        {static_cast<const char*>(event.metadata ? event.metadata : ""),
                                                         event.metadata_bytes},
                                                        event.parent,
                                                        event.length})
                        .second)
            << key << " twice";
        if (event.parent == 0) break;
        const auto parent = blocks.find(event.parent);
        EXPECT_TRUE(parent != blocks.end()) << key << " before its parent";
        if (parent == blocks.end()) break;
        ++parent->second.children;
        EXPECT_EQ(parent->second.key,
                  std::string(static_cast<const char*>(event.parent_key.data), event.parent_key.size));
        break;
      }
      case MARU_FOLLOW_REMOVED: {
        const auto found = blocks.find(event.block);
        EXPECT_TRUE(found != blocks.end()) << key << " goes and was not there";
        if (found == blocks.end()) break;
        EXPECT_EQ(found->second.key, key);
        EXPECT_EQ(found->second.children, 0u) << key << " before its children";
        if (const auto parent = blocks.find(found->second.parent); parent != blocks.end()) --parent->second.children;
        blocks.erase(found);
        ++removals[event.reason];
        break;
      }
      case MARU_FOLLOW_CURRENT: is_current = true; break;
      default: ADD_FAILURE() << "an event of kind " << event.kind;
    }
    if (event.kind == MARU_FOLLOW_STORED || event.kind == MARU_FOLLOW_REMOVED) {
      told.push_back((event.kind == MARU_FOLLOW_STORED ? "stored " : "removed ") + key);
      if (is_current) {
        EXPECT_EQ(event.incarnation, incarnation);
        EXPECT_GT(event.sequence, last);
      }
    }
    last = event.sequence;
  }

  maru_follower* follower_ = nullptr;
};

class Followed : public ::testing::Test {
 protected:
  static PoolWish small_pool() {
    PoolWish pool;
    pool.bytes = 4u << 20;
    pool.region_bytes = 256u << 10;
    pool.lanes = 12;
    return pool;
  }
  // The blocks that are there by the page words.
  static std::set<uint64_t> truth(const ControlMap& map) {
    std::set<uint64_t> all;
    const shm::ControlRegion& region = map.region();
    for (uint32_t page = 0; page < region.pages(); ++page) {
      const shm::PageWord word{region.block(page).word.load_acquire()};
      if (word.is(shm::PageState::kReady) || word.is(shm::PageState::kRetiring))
        all.insert(shm::PageRef::of(page, word.generation()).bits);
    }
    return all;
  }
  static void expect_to_converge(Index& index, const ControlMap& map) {
    std::set<uint64_t> there;
    const bool is_there = wait_until([&] {
      index.take(10);
      there = truth(map);
      return index.is_current && index.refs() == there;
    });
    EXPECT_TRUE(is_there) << index.blocks.size() << " blocks are told, " << there.size() << " are there";
  }
};

TEST_F(Followed, ASnapshotAndThenWhatHappens) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  const uint64_t tenant = maru_tenant(client, "salt", 4, nullptr);
  ASSERT_EQ(client.store("a", "text"), 0);
  ASSERT_EQ(client.store("b", "text", "a"), 0);
  ASSERT_EQ(client.store("c", "longer text", "b"), 0);
  Index index(marud.socket_path());
  ASSERT_TRUE(index.has_current());
  EXPECT_EQ(index.told, std::vector<std::string>({"stored a", "stored b", "stored c"}));
  EXPECT_EQ(index.resets[MARU_FOLLOW_BEGIN], 1u);
  index.told.clear();

  ASSERT_EQ(client.store("d", "text", "c"), 0);
  ASSERT_EQ(client.store(key_of("salted", tenant), "text"), 0);
  ASSERT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() == 2; }));
  ASSERT_EQ(client.remove("d"), 0);
  ASSERT_EQ(client.remove("c"), 0);
  ASSERT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() == 4; }));
  EXPECT_EQ(index.removals[MARU_FOLLOW_BY_CLIENT], 2u);
  uint64_t deleted = 0;
  ASSERT_EQ(client.remove_tree("a", &deleted), 0);
  ASSERT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() == 6; }));
  EXPECT_EQ(index.told.back(), "removed a");
  EXPECT_EQ(index.removals[MARU_FOLLOW_BY_ADMIN], 2u);
  EXPECT_EQ(index.blocks.size(), 1u);
  EXPECT_EQ(index.status().overruns, 0u);
}

TEST_F(Followed, MetadataComesWithTheBlock) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  const auto store = [&](std::string_view name, std::string_view says) {
    const maru_metadata metadata = {says.data(), uint32_t(says.size()), 0};
    maru_store_options options = {};
    options.size = sizeof(options);
    options.metadata = &metadata;
    const maru_key key = key_of(name);
    return maru_store_copy(client, &key, "payload", 7, &options, nullptr);
  };
  ASSERT_EQ(store("a", "layers 0 to 3"), 0);
  Index index(marud.socket_path());
  ASSERT_TRUE(index.has_current());
  ASSERT_EQ(store("b", "layers 4 to 7"), 0);
  ASSERT_EQ(client.store("c", "plain"), 0);
  ASSERT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.blocks.size() == 3; }));
  std::map<std::string, std::pair<std::string, uint64_t>> said;
  for (const auto& [ref, block] : index.blocks) said[block.key] = {block.metadata, block.length};
  EXPECT_EQ(said["a"], std::pair(std::string("layers 0 to 3"), uint64_t{7}));
  EXPECT_EQ(said["b"], std::pair(std::string("layers 4 to 7"), uint64_t{7}));
  EXPECT_EQ(said["c"], std::pair(std::string(), uint64_t{5}));
}

TEST_F(Followed, NothingIsThereWhileNobodyFollows) {
  MarudProcess marud({small_pool()});
  const auto has_feed = [&] {
    std::ifstream maps("/proc/" + std::to_string(marud.pid()) + "/maps");
    const std::string all((std::istreambuf_iterator<char>(maps)), {});
    return all.find("marud feed") != std::string::npos;
  };
  EXPECT_FALSE(has_feed());
  Index index(marud.socket_path());
  EXPECT_TRUE(has_feed());
}

TEST_F(Followed, WhoIsTooSlowGetsAnotherSnapshot) {
  MarudProcess marud({small_pool()});
  ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path());
  Index index(marud.socket_path());
  ASSERT_TRUE(index.has_current());
  const maru_follow_status before = index.status();
  // Each goes for another one, which marud tells: more than the ring has.
  for (int i = 0; index.status().unread_bytes <= before.ring_bytes && i < 100'000; ++i) {
    std::string key = "key " + std::to_string(i);
    ASSERT_GE(client.store_near(key, "x"), 0);
  }
  index.take(far_too_long_ms() > 0 ? 1000 : 0);
  ASSERT_TRUE(index.has_current());
  EXPECT_EQ(index.resets[MARU_FOLLOW_OVERRUN], 1u);
  EXPECT_EQ(index.status().overruns, 1u);
  expect_to_converge(index, map);
}

TEST_F(Followed, AnotherMarudIsAnotherIncarnation) {
  MarudProcess marud({small_pool()});
  ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("a", "text"), 0);
  Index index(marud.socket_path());
  ASSERT_TRUE(index.has_current());
  const uint64_t first = index.incarnation;
  marud.kill();
  ASSERT_TRUE(wait_until([&] { return index.take(10) < 0; })) << "nobody says that marud is away";
  ASSERT_EQ(client.store("b", "text", "a"), 0);
  ASSERT_EQ(client.store("c", "text", "b"), 0);
  marud.start();
  ASSERT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.resets[MARU_FOLLOW_RESTART] == 1; }));
  EXPECT_NE(index.incarnation, first);
  expect_to_converge(index, map);
}

TEST_F(Followed, AnyNumberOfThemIsIndependent) {
  MarudProcess marud({small_pool()});
  ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path());
  std::vector<std::unique_ptr<Index>> indexes;
  for (int i = 0; i < 6; ++i) {
    indexes.push_back(std::make_unique<Index>(marud.socket_path()));
    for (int k = 0; k < 200; ++k) {
      std::string key = std::to_string(i) + " " + std::to_string(k);
      ASSERT_GE(client.store_near(key, "x"), 0);
    }
    if (i == 3) indexes[1].reset();
  }
  for (const auto& index : indexes)
    if (index) expect_to_converge(*index, map);
}

TEST_F(Followed, WhatIsNoPoolIsRefused) {
  MarudProcess marud({small_pool()});
  maru_follow_options options = {};
  options.size = sizeof(options);
  options.socket_path = marud.socket_path().c_str();
  maru_follower* none = nullptr;
  for (const auto& [pool, code] : {std::pair("other", -ENOENT), {"../x", -EINVAL}, {"", -EINVAL}}) {
    options.pool = pool;
    EXPECT_EQ(maru_follow_open(&options, &none), code) << pool;
  }
  options.pool = nullptr;
  options.socket_path = "/nonexistent/socket";
  EXPECT_EQ(maru_follow_open(&options, &none), -ENOENT);
  options.flags = 1u << 30;
  EXPECT_EQ(maru_follow_open(&options, &none), -EINVAL);
  EXPECT_EQ(maru_follow_open(nullptr, nullptr), -EINVAL);
  EXPECT_EQ(maru_follow_next(nullptr, nullptr, 0, 0), -EINVAL);
  EXPECT_EQ(none, nullptr);
}

TEST_F(Followed, AWaitCanBeEnded) {
  MarudProcess marud({small_pool()});
  maru_follow_options options = {};
  options.size = sizeof(options);
  options.socket_path = marud.socket_path().c_str();
  maru_follower* follower = nullptr;
  ASSERT_EQ(maru_follow_open(&options, &follower), 0);
  maru_follow_event events[4];
  ASSERT_GT(maru_follow_next(follower, events, 4, -1), 0);
  std::thread waiting([&] {
    while (maru_follow_next(follower, events, 4, -1) > 0) {
    }
  });
  maru_follow_wake(follower);
  waiting.join();
  maru_follow_close(follower);
}

TEST_F(Followed, WhichKeysAreThere) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g"};
  for (const char* there : {"b", "c", "e", "g"}) ASSERT_EQ(client.store(there, "x"), 0);
  std::vector<maru_key> keys;
  for (const std::string& name : names) keys.push_back(key_of(name));
  maru_range ranges[4] = {};
  size_t present = 0;
  ASSERT_EQ(maru_which(client, keys.data(), keys.size(), ranges, 4, &present), 3);
  EXPECT_EQ(present, 4u);
  const uint64_t wanted[3][2] = {{1, 3}, {4, 5}, {6, 7}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ranges[i].start, wanted[i][0]);
    EXPECT_EQ(ranges[i].end, wanted[i][1]);
  }
  maru_range first = {};
  EXPECT_EQ(maru_which(client, keys.data(), keys.size(), &first, 1, nullptr), 3);
  EXPECT_EQ(first.end, 3u);
  EXPECT_EQ(maru_which(client, keys.data(), 0, nullptr, 0, nullptr), 0);
  EXPECT_EQ(maru_which(client, nullptr, 3, ranges, 4, nullptr), -EINVAL);
  EXPECT_EQ(maru_which(client, keys.data(), keys.size(), nullptr, 4, nullptr), -EINVAL);
}

TEST_F(Followed, BadMemoryEndsABlockAndWhatIsBelowItOnce) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("a", "text"), 0);
  ASSERT_EQ(client.store("b", "text", "a"), 0);
  ASSERT_EQ(client.store("c", "text", "b"), 0);
  ASSERT_EQ(client.store("other", "text"), 0);
  Index index(marud.socket_path());
  ASSERT_TRUE(index.has_current());
  index.told.clear();
  maru_view view = {};
  ASSERT_EQ(client.retrieve("a", &view), 0);
  const uint32_t page = shm::PageRef::from_bits(view.block).page();
  client.release(view);
  EXPECT_EQ(marud.ask({{"command", "memory.poison"}, {"page", page}}).value("result", ""), "poisoned");
  EXPECT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() >= 3; }));
  EXPECT_EQ(index.told, (std::vector<std::string>{"removed c", "removed b", "removed a"}));
  EXPECT_GE(index.removals[MARU_FOLLOW_BY_BAD_MEMORY], 1u);
  // Once more, and a marud that reads the poisoned page again: no news.
  EXPECT_EQ(marud.ask({{"command", "memory.poison"}, {"page", page}}).contains("result"), true);
  ASSERT_EQ(client.store("a", "again"), 0);
  EXPECT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() >= 4; }));
  EXPECT_EQ(index.told.size(), 4u);
  EXPECT_EQ(index.told.back(), "stored a");
  marud.kill();
  marud.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  ControlMap map(marud.socket_path());
  expect_to_converge(index, map);
  EXPECT_EQ(index.blocks.size(), 2u);
}

// Each marud of a shared pool tells of all blocks. The blocks of a dead host stay, and a block that was lost with it goes once.
TEST_F(Followed, ADeadHostIsNoEventAndWhatItLostIsOne) {
  TemporaryDirectory directory;
  const std::string watch = "suspect_after_ms = 1500\n", lost = "the bytes that host a took with it";
  Host a(directory, 0, watch), b(directory, 1, watch);
  {
    TestClient on_a(a.socket_path());
    ASSERT_EQ(on_a.store("kept", "text"), 0);
    ASSERT_EQ(on_a.store("lost", lost), 0);
  }
  Index index(b.socket_path());
  EXPECT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.is_current && index.blocks.size() == 2; }));
  index.told.clear();
  a.kill();
  {
    std::fstream pool(directory.file("pool"), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(pool)), {});
    ASSERT_NE(bytes.find(lost), std::string::npos);
    pool.clear();
    pool.seekp(std::streamoff(bytes.find(lost)));
    pool << std::string(lost.size(), '\0');
  }
  ASSERT_TRUE(b.sees(0, "suspect"));
  ASSERT_EQ(b.ask({{"command", "host.declare_dead"}, {"host", 0}}).value("state", ""), "dead");
  ASSERT_TRUE(b.sees(0, "free"));
  TestClient on_b(b.socket_path());
  EXPECT_TRUE(wait_until([&] {
    maru_view view = {};
    const int found = on_b.retrieve("lost", &view);
    if (found == 0) on_b.release(view);
    return index.take(10) >= 0 && found == -ENOENT && index.blocks.size() == 1;
  }));
  EXPECT_EQ(index.told, std::vector<std::string>{"removed lost"});
  ASSERT_EQ(on_b.store("lost", "stored anew"), 0);
  ASSERT_EQ(on_b.remove("kept"), 0);
  EXPECT_TRUE(wait_until([&] { return index.take(10) >= 0 && index.told.size() >= 3; }));
  std::sort(index.told.begin(), index.told.end());
  EXPECT_EQ(index.told, (std::vector<std::string>{"removed kept", "removed lost", "stored lost"}));
  EXPECT_EQ(index.resets.size(), 1u) << "one snapshot, at the beginning";
}

// Clients, followers and marud are killed at random instants.
TEST_F(Followed, ConvergesWhoeverIsKilled) {
  constexpr uint32_t kWorkers = 3;
  const uint64_t seed = fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  MarudProcess marud({small_pool()});
  ControlMap map(marud.socket_path());
  TestClient keeper(marud.socket_path());  // hands the pool's memory back
  Board board;
  std::array<std::unique_ptr<ChildProcess>, kWorkers> workers;
  const auto start_worker = [&](uint32_t i) {
    workers[i] = std::make_unique<ChildProcess>(
        std::vector<std::string>{own_program(), "--role", "churner", marud.socket_path(), std::to_string(random.next()),
                                 std::to_string(board.fd()), std::to_string(i), "1", "default"},
        "", std::vector<int>{board.fd()});
  };
  for (uint32_t i = 0; i < kWorkers; ++i) start_worker(i);
  auto index = std::make_unique<Index>(marud.socket_path());
  const uint64_t rounds = number_from_environment("MARU_FOLLOW_ROUNDS", 24);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const uint64_t until = board.total(&BoardWords::Worker::operations) + random.below(1500);
    EXPECT_TRUE(wait_until([&] {
      index->take(1);
      return board.total(&BoardWords::Worker::operations) >= until;
    })) << "the workers stand still";
    switch (random.below(4)) {
      case 0:
        marud.kill();
        marud.start();
        break;
      case 1:
        index.reset();
        index = std::make_unique<Index>(marud.socket_path());
        break;
      default:
        const auto victim = uint32_t(random.below(kWorkers));
        workers[victim]->kill();
        start_worker(victim);
    }
  }
  board->stop.store(1);
  for (auto& worker : workers) {
    const auto ended = worker->wait();
    EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "a worker hangs");
  }
  expect_to_converge(*index, map);
  EXPECT_GT(index->told.size(), 100u);
}

}  // namespace
}  // namespace maru::test

int main(int count, char** arguments) {
  if (count >= 3 && std::strcmp(arguments[1], "--role") == 0) return maru::test::run_churner(count - 3, arguments + 3);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
