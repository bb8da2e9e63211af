// Keys that do not lie beside their block in pools of small pages.
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <chrono>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

namespace maru::test {
namespace {

// A pool of small pages, as small pools have them, takes as many blocks with long keys as with short ones.
TEST(LongKeys, APoolIsFilledWithLongKeys) {
  PoolWish wish;
  wish.bytes = 32u << 20;
  wish.page_bytes = 64u << 10;
  const MarudProcess marud({wish});
  TestClient client(marud.socket_path());
  const uint64_t pages = client.geometry().pages;
  const auto name = [](uint64_t i) { return std::string(1000, 'k') + std::to_string(i); };
  uint64_t refused = 0, stored = 0;
  for (uint64_t i = 0; i < 2 * pages; ++i) {
    const int result = client.store(name(i), "text");
    ASSERT_TRUE(result == 0 || result == -EXFULL) << i << ": " << result;
    refused += result == -EXFULL;  // rare: its bucket is full
  }
  EXPECT_LE(refused, 2u);
  for (uint64_t i = 0; i < 2 * pages; ++i) stored += uint64_t(client.exists(name(i)));
  EXPECT_GE(stored, pages - pages / 8) << "of " << pages << " pages";
}

// Keys that are so long that only some pages have a place for one: the cold blocks with such keys make room for new ones, as
// with short keys, though pages are free.
TEST(LongKeys, TheLongestKeysAreReplacedByNewOnes) {
  PoolWish wish;
  wish.bytes = 32u << 20;
  wish.page_bytes = 64u << 10;
  const MarudProcess marud({wish});
  TestClient client(marud.socket_path());
  const auto name = [](uint64_t i) { return std::string(4000, 'k') + std::to_string(i); };
  ASSERT_EQ(client.store("short", "text"), 0);
  uint64_t refused = 0;
  constexpr uint64_t kKeys = 600;  // more than there are pages
  for (uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(wait_until([&] {
      const int result = client.store(name(i), "text");
      refused += result == -EXFULL;
      return result == 0;
    })) << i;
    ASSERT_EQ(client.text(name(0)), "text") << "it is used all the time: " << i;
    if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // uses of one tick are in no order
  }
  EXPECT_GT(refused, 0u);
  for (uint64_t i = kKeys - 20; i < kKeys; ++i) EXPECT_EQ(client.exists(name(i)), 1) << i;
  EXPECT_EQ(client.exists(name(1)), 0);
  EXPECT_EQ(client.exists("short"), 1) << "it holds no cell";
}

// With pages of 256 KiB each has a cell of its own, whatever was there before.
TEST(LongKeys, FillAPoolOfLargePages) {
  PoolWish wish;
  wish.bytes = 64u << 20;
  wish.page_bytes = 256u << 10;
  const MarudProcess marud({wish});
  TestClient client(marud.socket_path());
  const uint64_t pages = client.geometry().pages;
  const auto name = [](uint64_t i) { return std::string(1000, 'k') + std::to_string(i); };
  uint64_t refused = 0;
  for (uint64_t i = 0; i < 4 * pages; ++i) {
    const int result = client.store(name(i), "text");
    ASSERT_TRUE(result == 0 || result == -EXFULL) << i << ": " << result;
    refused += result == -EXFULL;  // rare: its bucket is full
  }
  EXPECT_LE(refused, 2u);
}

// Cold blocks that somebody reads hold their cells, and those behind them in the order go.
TEST(LongKeys, PinnedOnesDoNotKeepOthersFromBeingReplaced) {
  PoolWish wish;
  wish.bytes = 32u << 20;
  wish.page_bytes = 64u << 10;
  const MarudProcess marud({wish});
  TestClient client(marud.socket_path());
  const auto name = [](uint64_t i) { return std::string(4000, 'k') + std::to_string(i); };
  constexpr uint64_t kPinned = 50;  // of some 110 cells
  std::vector<maru_view> views(kPinned);
  for (uint64_t i = 0; i < kPinned; ++i) {
    ASSERT_EQ(client.store(name(i), "text"), 0) << i;
    ASSERT_EQ(client.retrieve(name(i), &views[i]), 0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // uses of one tick are in no order
  for (uint64_t i = kPinned; i < 400; ++i)
    ASSERT_TRUE(wait_until([&] { return client.store(name(i), "text") == 0; })) << i;
  for (uint64_t i = 0; i < kPinned; ++i) {
    EXPECT_EQ(client.exists(name(i)), 1) << i;
    EXPECT_EQ(client.release(views[i]), 0);
  }
}

}  // namespace
}  // namespace maru::test
