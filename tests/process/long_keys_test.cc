// Keys that do not lie beside their block in pools of small pages.
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <chrono>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace maru::test {
namespace {

// A pool of its own for each test, filled with keys that are alike up to their ends.
class LongKeys : public ::testing::Test {
 protected:
  void start(uint64_t bytes, uint64_t page_bytes) {
    PoolWish wish;
    wish.bytes = bytes;
    wish.page_bytes = page_bytes;
    marud_.emplace(std::vector{wish});
    client_.emplace(marud_->socket_path());
  }
  static std::string name(uint64_t i, size_t bytes) { return std::string(bytes, 'k') + std::to_string(i); }
  // How many of so many stores were refused for want of room for the key; a few meet a full bucket.
  uint64_t refused_of(uint64_t stores, size_t bytes) {
    uint64_t refused = 0;
    for (uint64_t i = 0; i < stores; ++i) {
      const int result = client_->store(name(i, bytes), "text");
      EXPECT_TRUE(result == 0 || result == -EXFULL) << i << ": " << result;
      refused += result == -EXFULL;
    }
    return refused;
  }

  std::optional<MarudProcess> marud_;
  std::optional<TestClient> client_;
};

// A pool of small pages, as small pools have them, takes as many blocks with long keys as with short ones.
TEST_F(LongKeys, APoolIsFilledWithLongKeys) {
  start(32u << 20, 64u << 10);
  TestClient& client = *client_;
  const uint64_t pages = client.geometry().pages;
  EXPECT_LE(refused_of(2 * pages, 1000), 2u);
  uint64_t stored = 0;
  for (uint64_t i = 0; i < 2 * pages; ++i) stored += uint64_t(client.exists(name(i, 1000)));
  EXPECT_GE(stored, pages - pages / 8) << "of " << pages << " pages";
}

// Keys that are so long that only some pages have a place for one: the cold blocks with such keys make room for new ones, as
// with short keys, though pages are free.
TEST_F(LongKeys, TheLongestKeysAreReplacedByNewOnes) {
  start(32u << 20, 64u << 10);
  TestClient& client = *client_;
  ASSERT_EQ(client.store("short", "text"), 0);
  uint64_t refused = 0;
  constexpr uint64_t kKeys = 600;  // more than there are pages
  for (uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(wait_until([&] {
      const int result = client.store(name(i, 4000), "text");
      refused += result == -EXFULL;
      return result == 0;
    })) << i;
    ASSERT_EQ(client.text(name(0, 4000)), "text") << "it is used all the time: " << i;
    if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // uses of one tick are in no order
  }
  EXPECT_GT(refused, 0u);
  for (uint64_t i = kKeys - 20; i < kKeys; ++i) EXPECT_EQ(client.exists(name(i, 4000)), 1) << i;
  EXPECT_EQ(client.exists(name(1, 4000)), 0);
  EXPECT_EQ(client.exists("short"), 1) << "it holds no cell";
}

// With pages of 256 KiB each has a cell of its own, whatever was there before.
TEST_F(LongKeys, FillAPoolOfLargePages) {
  start(64u << 20, 256u << 10);
  EXPECT_LE(refused_of(4 * client_->geometry().pages, 1000), 2u);
}

// Cold blocks that somebody reads hold their cells, and those behind them in the order go.
TEST_F(LongKeys, PinnedOnesDoNotKeepOthersFromBeingReplaced) {
  start(32u << 20, 64u << 10);
  TestClient& client = *client_;
  constexpr uint64_t kPinned = 50;  // of some 110 cells
  std::vector<maru_view> views(kPinned);
  for (uint64_t i = 0; i < kPinned; ++i) {
    ASSERT_EQ(client.store(name(i, 4000), "text"), 0) << i;
    ASSERT_EQ(client.retrieve(name(i, 4000), &views[i]), 0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // uses of one tick are in no order
  for (uint64_t i = kPinned; i < 400; ++i)
    ASSERT_TRUE(wait_until([&] { return client.store(name(i, 4000), "text") == 0; })) << i;
  for (uint64_t i = 0; i < kPinned; ++i) {
    EXPECT_EQ(client.exists(name(i, 4000)), 1) << i;
    EXPECT_EQ(client.release(views[i]), 0);
  }
}

}  // namespace
}  // namespace maru::test
