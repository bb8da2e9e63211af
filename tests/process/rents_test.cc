// Requests for memory that have to wait for turns of their pool, with a real marud: they are answered, as exactly as others.
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace maru::test {
namespace {

using nlohmann::json;

std::string name(size_t i) { return "block " + std::to_string(i); }

// Uses that marud has not read are more than a turn reads; the block that was not used meanwhile goes.
TEST(Rents, WaitUntilManyUsesAreRead) {
  constexpr uint64_t kUses = 100'000;
  PoolWish pool;
  pool.bytes = 64u << 20;
  pool.page_bytes = 64u << 10;
  pool.region_bytes = 4u << 20;
  pool.lanes = 4;
  pool.more = "touch_entries = 262144\n";
  MarudProcess marud({pool});
  TestClient client(marud.socket_path());
  size_t stored = 0;
  while (stored < 2 || client.exists(name(0)) == 1) ASSERT_EQ(client.store(name(stored++), "text"), 0);
  const ControlMap map(marud.socket_path());
  const auto uses = [&] {
    uint64_t most = 0;
    for (uint32_t lane = 1; lane < map.region().lanes(); ++lane)
      most = std::max(most, map.region().lane_header(lane).touch_count.load_relaxed());
    return most;
  };
  size_t cold = 0;
  while (client.exists(name(cold)) == 0) ++cold;
  marud.suspend();
  const uint64_t before = uses();
  ASSERT_TRUE(wait_until([&] {
    for (size_t i = cold + 1; i < stored; ++i) EXPECT_EQ(client.text(name(i)), "text");
    return uses() >= before + kUses;
  }));
  auto next = std::async(std::launch::async, [&] { return client.store("next", "text"); });
  marud.resume();
  EXPECT_EQ(next.get(), 0);
  EXPECT_EQ(client.exists(name(cold)), 0);
  EXPECT_EQ(client.exists(name(cold + 1)), 1);
  EXPECT_EQ(client.exists(name(stored - 1)), 1);
  EXPECT_EQ(marud.pool_status().at("lost_touches"), 0);
}

// Each request finds another owner's FREE pages by a search of all of the pool, which rests after one that was in vain alone.
TEST(Rents, FindEveryPageThatAnotherOwnerFreed) {
  PoolWish pool;
  pool.bytes = 128u << 20;
  pool.page_bytes = 4096;
  pool.more = "policy = \"none\"\n";
  MarudProcess marud({pool});
  TestClient client(marud.socket_path()), other(marud.socket_path());
  size_t stored = 0, others = 0;
  bool is_full = false, is_other_full = false;
  while (!is_full || !is_other_full) {
    if (!is_full) is_full = client.store("a" + std::to_string(stored++), "text") == -ENOSPC;
    if (!is_other_full) is_other_full = other.store("b" + std::to_string(others++), "text") == -ENOSPC;
  }
  for (size_t i = 0; i < others; ++i) other.remove("b" + std::to_string(i));
  size_t pauses = 0;
  bool was_refused = false;
  for (size_t i = 0; i < others / 2; ++i) {
    const int result = client.store("c" + std::to_string(i), "text");
    if (result == -EXFULL) continue;
    pauses += result != 0 && !was_refused;
    was_refused = result != 0;
  }
  EXPECT_LE(pauses, 1u);  // the one after those that were in vain
}

// More blocks were held than one request looks at, since lanes say that their pins overflow. They come back in the order of
// their uses, before anything that was used later goes.
TEST(Rents, WaitUntilBlocksWhosePinsHaveEndedAreBack) {
  constexpr size_t kHeld = 2500, kEachMs = 100;
  PoolWish pool;
  pool.bytes = 32u << 20;
  pool.lanes = 8;
  pool.pins = 16384;
  MarudProcess marud({pool});
  TestClient client(marud.socket_path()), reader(marud.socket_path());
  std::vector<maru_view> views(kHeld);
  for (size_t i = 0; i < kHeld; ++i) {
    ASSERT_EQ(client.store(name(i), "text"), 0);
    if (i % kEachMs == 0) {
      const auto before = std::chrono::system_clock::now();
      ASSERT_TRUE(
          wait_until([&] { return std::chrono::system_clock::now() >= before + std::chrono::milliseconds(5); }));
    }
    ASSERT_EQ(reader.retrieve(name(i), &views[i]), 0);
  }
  // They are the coldest ones in the end.
  size_t stored = kHeld;
  const auto store = [&] {
    const int result = client.store(name(stored++), "text");
    ASSERT_TRUE(result == 0 || result == -EXFULL) << result;  // rare: both of its buckets are full
  };
  while (marud.pool_status().at("held_blocks") < kHeld) {
    ASSERT_LT(stored, 1'000'000u);
    for (int i = 0; i < 500; ++i) store();
  }
  const ControlMap others[] = {ControlMap(marud.socket_path()), ControlMap(marud.socket_path()),
                               ControlMap(marud.socket_path()), ControlMap(marud.socket_path())};
  for (const ControlMap& other : others)
    other.region().lane_header(other.attached().lane).pin_overflow.store_relaxed(1);
  for (const maru_view& view : views) ASSERT_EQ(reader.release(view), 0);
  std::vector<size_t> newer;
  for (size_t i = kHeld; i < stored; ++i)
    if (client.exists(name(i)) == 1) newer.push_back(i);
  std::vector<size_t> gone;
  for (const size_t end = stored + 10'000; gone.empty() && stored < end;) {
    for (int i = 0; i < 10; ++i) store();
    for (size_t i = 0; i < kHeld; ++i)
      if (client.exists(name(i)) == 0) gone.push_back(i);
  }
  ASSERT_FALSE(gone.empty());
  EXPECT_LT(gone.back(), gone.size() + 2 * kEachMs) << "the coldest of them";
  for (const size_t i : newer) EXPECT_EQ(client.exists(name(i)), 1) << i;
  EXPECT_EQ(marud.pool_status().at("lost_touches"), 0);
}

// Nobody is refused meanwhile.
TEST(Rents, WaitWhileAPolicyIsToldOfTheBlocks) {
  PoolWish pool;
  pool.bytes = 320u << 20;  // more pages than it is told of in one turn
  pool.max_regions_per_instance = 1;
  MarudProcess marud({pool});
  TestClient client(marud.socket_path());
  std::atomic<bool> is_over{false};
  auto policies = std::async(std::launch::async, [&] {
    std::vector<json> replies;
    for (int i = 0; i < 10; ++i)
      replies.push_back(marud.ask({{"command", "policy.set"}, {"name", i % 2 == 0 ? "fifo" : "lru"}}));
    is_over = true;
    return replies;
  });
  size_t stored = 0;
  for (; !is_over || stored < 1000; ++stored) ASSERT_EQ(client.store(name(stored), "text"), 0);
  for (const json& reply : policies.get()) EXPECT_TRUE(reply.contains("is")) << reply.dump();
  EXPECT_EQ(marud.ask({{"command", "check"}}).at("found"), 0);
  EXPECT_EQ(marud.ask({{"command", "evict"}, {"pages", 10}}).at("evicted_pages"), 10);
}

}  // namespace
}  // namespace maru::test
