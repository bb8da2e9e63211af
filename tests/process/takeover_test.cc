// A whole region changes hands while its owner goes on: it is told, or finds out, and nobody reads, loses or overwrites what
// it should not.
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/baseline.h"
#include "tests/process/puppet.h"
#include "tests/support/control_map.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>

namespace maru::test {
namespace {

using shm::PageState;
using shm::PageWord;

PoolWish small_pool() {
  PoolWish pool;
  pool.bytes = 3u << 20;
  pool.region_bytes = 256u << 10;
  pool.pins = 1024;
  pool.lanes = 8;
  return pool;
}

std::string name(uint64_t i) { return "k" + std::to_string(i); }

class Takeover : public ::testing::Test {
 protected:
  Takeover() : marud_({small_pool()}), map_(marud_.socket_path()) {}

  uint32_t region_of(maru_block block) const { return map_.region().region_of(shm::PageRef::from_bits(block).page()); }
  uint32_t owner_of(uint32_t index) const {
    return shm::RegionWord{map_.region().region(index).word.load_acquire()}.owner().lane;
  }
  std::set<uint32_t> regions_of(uint32_t lane) const {
    std::set<uint32_t> indices;
    for (uint32_t i = 0; i < map_.region().regions(); ++i)
      if (owner_of(i) == lane) indices.insert(i);
    return indices;
  }
  // One-page blocks, one for each page of the pool; their keys are in names_.
  std::vector<maru_block> fill(TestClient& client) {
    std::vector<maru_block> blocks(map_.region().pages());
    names_.clear();
    for (uint64_t i = 0; i < blocks.size(); ++i) {
      names_.push_back(name(i));
      EXPECT_EQ(client.store_near(names_[i], name(i), &blocks[i]), 0) << i;
    }
    EXPECT_EQ(regions_of(client.geometry().lane).size(), map_.region().regions());
    return blocks;
  }
  // Pages of these regions that this lane has RESERVED.
  uint64_t reserved_in(const std::set<uint32_t>& regions, uint32_t lane) const {
    uint64_t count = 0;
    for (uint32_t page = 0; page < map_.region().pages(); ++page) {
      const PageWord word{map_.region().block(page).word.load_acquire()};
      count +=
          regions.contains(map_.region().region_of(page)) && word.is(PageState::kReserved) && word.lane().lane == lane;
    }
    return count;
  }

  MarudProcess marud_;
  ControlMap map_;
  std::vector<std::string> names_;
};

TEST_F(Takeover, PoorClientGetsARegionAndTheRichOneIsTold) {
  TestClient rich(marud_.socket_path());
  const std::vector<maru_block> blocks = fill(rich);
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(rich, 100, &buffer), 0);  // evicts one block, whose page may lie anywhere
  TestClient poor(marud_.socket_path());
  maru_block stored = 0;
  ASSERT_EQ(poor.store("poor", "text", {}, 0, &stored), 0);
  const std::set<uint32_t> taken = regions_of(poor.geometry().lane);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_TRUE(taken.contains(region_of(stored)));
  EXPECT_EQ(poor.statistics().regions, 1u);
  EXPECT_TRUE(marud_.has_logged("is taken from lane"));
  EXPECT_EQ(marud_.pool_status().at("regions_taken"), 1);

  // Exactly the blocks of that region are gone, and the one who asked knows which.
  uint64_t gone = 0;
  maru_key_copy key;
  while (maru_next_evicted(poor, &key) == 0) {
    EXPECT_EQ(rich.exists(std::string_view(reinterpret_cast<const char*>(key.data), key.size)), 0);
    ++gone;
  }
  EXPECT_EQ(gone, poor.statistics().evicted);
  EXPECT_GE(gone, map_.region().region_pages() - 2);
  uint64_t evicted_before = 0;
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    const bool is_taken = taken.contains(region_of(blocks[i]));
    const auto text = rich.text(names_[i]);
    if (is_taken) {
      EXPECT_FALSE(text.has_value()) << i;
    } else if (!text) {
      ++evicted_before;
    } else {
      EXPECT_EQ(*text, name(i));
    }
    if (!is_taken) continue;
    // The old handles are clean errors.
    maru_view view;
    EXPECT_EQ(maru_pin_block(rich, blocks[i], &view), -ENOENT);
    maru_store_options options{};
    options.size = sizeof(options);
    options.parent = blocks[i];
    const maru_key child = key_of("child");
    EXPECT_EQ(maru_store_copy(rich, &child, "text", 4, &options, nullptr), -ENOLINK);
  }
  EXPECT_LE(evicted_before, rich.statistics().evicted);

  // The session thread reads the message, without any call of the program's.
  EXPECT_TRUE(wait_until(
      [&] { return rich.statistics().regions_taken == 1 && reserved_in(taken, rich.geometry().lane) <= 1; }));
  EXPECT_EQ(rich.statistics().regions, map_.region().regions() - 1);
  const maru_key late = key_of("late");
  EXPECT_EQ(maru_store(rich, &late, &buffer, nullptr, nullptr), 0) << "a buffer that was being filled";
  for (uint64_t i = 0; i < 200; ++i) {
    maru_block block = 0;
    std::string fresh_key = "after " + name(i);
    ASSERT_EQ(rich.store_near(fresh_key, "text", &block), 0);
    EXPECT_FALSE(taken.contains(region_of(block))) << "a page of the region that it lost";
  }
  EXPECT_EQ(poor.text("poor"), "text");
}

TEST_F(Takeover, AbortedBufferOfALostRegionIsItsNewOwners) {
  TestClient rich(marud_.socket_path());
  fill(rich);
  std::vector<maru_buffer> buffers(200);
  ASSERT_EQ(maru_alloc_batch(rich, 100, buffers.size(), buffers.data()), 0);
  TestClient poor(marud_.socket_path());
  ASSERT_EQ(poor.store("poor", "text"), 0);
  const std::set<uint32_t> taken = regions_of(poor.geometry().lane);
  ASSERT_EQ(taken.size(), 1u);
  ASSERT_TRUE(wait_until([&] { return rich.statistics().regions_taken == 1; }));
  ASSERT_EQ(maru_abort_batch(rich, buffers.data(), buffers.size()), 0);
  EXPECT_TRUE(wait_until([&] { return reserved_in(taken, rich.geometry().lane) == 0; }))
      << "pages kept from their owner";
}

TEST_F(Takeover, ClientWithoutASessionThreadFindsTheRegionsWord) {
  TestClient rich(marud_.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD, 4);
  fill(rich);
  ASSERT_EQ(rich.remove(names_[0]), 0);  // so that it has pages to take without asking marud
  TestClient poor(marud_.socket_path());
  ASSERT_EQ(poor.store("poor", "text"), 0);
  const std::set<uint32_t> taken = regions_of(poor.geometry().lane);
  EXPECT_EQ(rich.statistics().regions_taken, 1u);
  EXPECT_EQ(rich.statistics().regions, map_.region().regions() - 1);
  uint64_t used = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    maru_block block = 0;
    std::string key = "after " + name(i);
    ASSERT_EQ(rich.store_near(key, "text", &block), 0);
    used += taken.contains(region_of(block));
  }
  EXPECT_LE(used, 4u) << "more than it had reserved ahead";
  EXPECT_EQ(reserved_in(taken, rich.geometry().lane), 0u);
}

TEST_F(Takeover, PinnedRegionIsNeverTaken) {
  TestClient rich(marud_.socket_path());
  const std::vector<maru_block> blocks = fill(rich);
  constexpr uint32_t kSpared = 2;
  std::vector<maru_view> held;
  std::set<uint32_t> pinned;
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    if (region_of(blocks[i]) == kSpared || !pinned.insert(region_of(blocks[i])).second) continue;
    held.emplace_back();
    ASSERT_EQ(rich.retrieve(names_[i], &held.back()), 0);
  }
  TestClient poor(marud_.socket_path()), third(marud_.socket_path());
  ASSERT_EQ(poor.store("poor", "text"), 0);
  EXPECT_EQ(regions_of(poor.geometry().lane), std::set<uint32_t>{kSpared});
  maru_view view;
  ASSERT_EQ(poor.retrieve("poor", &view), 0);
  ASSERT_EQ(third.store("third", "text"), 0) << "single pages are there still";
  EXPECT_EQ(third.statistics().regions, 0u);
  for (const maru_view& one : held) EXPECT_EQ(static_cast<const char*>(one.data)[0], 'k');
  EXPECT_EQ(maru_release_batch(rich, held.data(), held.size()), 0);
  EXPECT_EQ(poor.release(view), 0);
}

TEST_F(Takeover, StoppedClientHoldsNobodyUpAndFindsOutLater) {
  Puppet rich(marud_.socket_path());
  const auto lane = rich.ask({{"do", "lane"}}).at("result").get<uint32_t>();
  const uint64_t pages = map_.region().pages();
  ASSERT_EQ(rich.ask({{"do", "store many"}, {"key", "k"}, {"count", pages}}).at("result"), pages);
  rich.process().signal(SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(rich.process().pid(), &status, WUNTRACED), rich.process().pid());
  ASSERT_TRUE(WIFSTOPPED(status));

  // Far more messages than marud keeps for somebody who does not read: the regions go back and forth.
  std::set<uint32_t> taken;
  TestClient poor(marud_.socket_path());
  std::vector<maru_buffer> buffers(2 * map_.region().region_pages());
  for (int i = 0; i < 20; ++i) {
    const int result = maru_alloc_batch(poor, 100, buffers.size(), buffers.data());
    if (result == 0) {
      EXPECT_EQ(maru_abort_batch(poor, buffers.data(), buffers.size()), 0);
    }
    taken = regions_of(poor.geometry().lane);
  }
  EXPECT_GE(taken.size(), 2u);
  EXPECT_EQ(marud_.ask({{"command", "status"}}).contains("refused"), false);

  rich.process().signal(SIGCONT);
  ASSERT_EQ(rich.store("again", "text"), 0);
  EXPECT_TRUE(wait_until([&] { return reserved_in(taken, lane) == 0; })) << "it sits on pages of another's region";
  ASSERT_GT(rich.ask({{"do", "store many"}, {"key", "more "}, {"count", 100}}).at("result"), 0);
  for (uint32_t page = 0; page < pages; ++page) {
    const PageWord word{map_.region().block(page).word.load_acquire()};
    if (!taken.contains(map_.region().region_of(page)) || !word.is(PageState::kReady)) continue;
    const auto publisher = shm::LaneId::from_low(uint32_t(map_.region().detail(page).owner.load_relaxed()));
    EXPECT_NE(publisher.lane, lane) << "page " << page << " was used by a client that had lost it";
  }
}

TEST_F(Takeover, LimitOfRegionsForcesEvictionInAnEmptyPool) {
  PoolWish wish = small_pool();
  wish.max_regions_per_instance = 2;
  MarudProcess limited({wish});
  TestClient client(limited.socket_path());
  const uint64_t room = 2 * client.geometry().region_pages;
  for (uint64_t i = 0; i < 3 * room; ++i) ASSERT_EQ(client.store(name(i), name(i)), 0) << i;
  EXPECT_EQ(client.statistics().regions, 2u);
  EXPECT_GE(client.statistics().evicted, 2 * room);
  EXPECT_EQ(client.text(name(3 * room - 1)), name(3 * room - 1));
  EXPECT_EQ(client.exists(name(0)), 0);
}

// Clients that write their own words, in a pool where it lasts to take a region over: each look for a pin reads much.
class LongTakeover : public ::testing::Test {
 protected:
  static PoolWish pool() {
    PoolWish pool;
    pool.bytes = 128u << 20;
    pool.region_bytes = 8u << 20;
    pool.pins = 1u << 15;
    return pool;
  }
  static void ask(const ControlMap& client, uint32_t id, uint64_t runs) {
    wire::RentRequest request{};
    request.runs = runs;
    request.run_pages = 1;
    const auto packet = wire::encode(wire::Type::kRent, id, 0, wire::bytes_of(request));
    ASSERT_TRUE(wire::send_packet(client.socket(), packet, -1, int(far_too_long_ms())));
  }
  uint32_t regions_that_are(format::RegionState state) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < rich_.region().regions(); ++i)
      count += shm::RegionWord{rich_.region().region(i).word.load_acquire()}.state() == state;
    return count;
  }
  void rent_all() {
    for (uint32_t id = 1; regions_that_are(format::RegionState::kRented) < rich_.region().regions(); ++id) {
      ask(rich_, id, rich_.region().pages());
      ASSERT_TRUE(wire::receive_packet(rich_.socket(), int(far_too_long_ms())));
    }
    for (uint32_t page = 0; page < rich_.region().pages(); ++page) {
      format::BlockLine& line = rich_.region().block(page);
      line.shape.store_relaxed(1);
      line.word.store_release(PageWord::ready(0, 0).bits);
    }
    for (uint32_t lane = 1; lane < rich_.region().lanes(); ++lane)
      rich_.region().lane_header(lane).pin_overflow.store_relaxed(1);
  }

  MarudProcess marud_{{pool()}};
  ControlMap rich_{marud_.socket_path()};
};

TEST_F(LongTakeover, AConnectionThatEndsInBetweenLeavesNoRegionClosed) {
  rent_all();
  // On a busy machine a takeover may be over before this process looks; then another poor client causes the next one.
  std::deque<ControlMap> poor;
  for (bool is_in_between = false; !is_in_between;) {
    ASSERT_LT(poor.size(), 5u) << "each one was over already";
    ControlMap& next = poor.emplace_back(marud_.socket_path());
    ask(next, 1, 1);
    const auto is_answered = [&] {
      pollfd entry = {next.socket(), POLLIN, 0};
      return ::poll(&entry, 1, 0) > 0;
    };
    const auto deadline = std::chrono::steady_clock::now() + far_too_long();
    while (regions_that_are(format::RegionState::kDraining) == 0 && !is_answered())
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    marud_.suspend();
    is_in_between = regions_that_are(format::RegionState::kDraining) == 1;
    if (is_in_between) ASSERT_EQ(::shutdown(next.socket(), SHUT_RDWR), 0);  // its process and its lane stay
    marud_.resume();
  }
  EXPECT_TRUE(wait_until([&] { return regions_that_are(format::RegionState::kDraining) == 0; }, far_too_long() / 4));
  EXPECT_EQ(marud_.pool_status().at("regions_taken"), poor.size() - 1) << "it was the poor client's already";
}

// MARU_TAKEOVERS says how often; MARU_SEED repeats the choices, not the instants.
TEST_F(Takeover, DeathsInTheMiddleLoseNothing) {
  const uint64_t seed = fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  const uint64_t rounds = number_from_environment("MARU_TAKEOVERS", 9);
  uint64_t taken = 0, read = 0;
  const uint64_t pages = map_.region().pages();
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    // Hands the memory back to a new marud, should the other two have ended before it asks.
    auto keeper = std::make_unique<TestClient>(marud_.socket_path());
    {
      Puppet rich(marud_.socket_path()), poor(marud_.socket_path());
      ASSERT_GT(rich.ask({{"do", "store many"}, {"key", "k"}, {"count", pages}}).at("result"), 0);
      const auto store = [](Puppet& who, const char* prefix) {
        try {
          (void)who.ask({{"do", "store many"}, {"key", prefix}, {"count", 300}});
        } catch (const std::exception&) {  // it was killed
        }
      };
      std::thread of_the_poor(store, std::ref(poor), "poor "), of_the_rich(store, std::ref(rich), "rich ");
      for (uint64_t spin = random.below(2'000'000); spin > 0; --spin) asm volatile("");
      const uint64_t victim = random.below(3);
      if (victim == 0) rich.process().kill();
      if (victim == 1) poor.process().kill();
      if (victim == 2) {
        marud_.kill();
        marud_.start();
      }
      of_the_poor.join();
      of_the_rich.join();
    }
    EXPECT_TRUE(wait_until([&] { return marud_.pool_status().at("condition") == "serving"; }));
    taken += marud_.pool_status().at("regions_taken").get<uint64_t>();
    keeper.reset();
    {
      TestClient reader(marud_.socket_path());
      for (const char* prefix : {"k", "poor ", "rich "})
        for (uint64_t i = 0; i < pages; ++i) {
          const std::string key = prefix + std::to_string(i);
          const auto text = reader.text(key);
          if (text) {
            EXPECT_EQ(*text, key);
            ++read;
          }
        }
    }
    expect_baseline(marud_, map_);
    EXPECT_FALSE(marud_.ask({{"command", "clear"}}).contains("refused"));
  }
  std::printf("%llu regions seen taken, %llu blocks read back\n", static_cast<unsigned long long>(taken),
              static_cast<unsigned long long>(read));
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace maru::test
