// What takes long and is no reason for marud to let others wait: a pool that begins anew, and the look at every page of one
// that shall be removed.
#include "libmaru/shm/region/page_word.h"
#include "tests/support/marud_process.h"
#include "tests/support/slow_file.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <atomic>
#include <cerrno>
#include <future>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

namespace maru::test {
namespace {

using nlohmann::json;

// Pool "default" in memory, which nobody hands back to the second marud in time, and another one in a file.
class BeginsAnew : public ::testing::Test {
 protected:
  BeginsAnew() : marud_({PoolWish{}, other_pool()}, 0) {
    if (client_.store("k", "text") != 0) throw std::runtime_error("cannot store");
    marud_.kill();
    // The new pool looks for limits that were set at run time, and finds a pipe.
    slow_ = std::make_unique<SlowFile>(marud_.directory().file("state/pool-default.tenants"));
    marud_.start();
    another_ = std::async(std::launch::async,
                          [this] { return TestClient(marud_.socket_path()).exists("k"); });  // and waits no grace out
  }
  static PoolWish other_pool() {
    PoolWish pool;
    pool.name = "other";
    pool.in_file = true;
    return pool;
  }
  json row() const { return marud_.ask({{"command", "device.list"}}).at("devices").at(0); }

  MarudProcess marud_;
  TestClient client_{marud_.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD};
  std::unique_ptr<SlowFile> slow_;
  std::future<int> another_;
};

TEST_F(BeginsAnew, OthersAreServedMeanwhile) {
  ASSERT_TRUE(slow_->is_reached());
  EXPECT_EQ(row().at("condition"), "waiting");
  EXPECT_EQ(row().value("note", ""), "nobody handed its memory back: it begins anew");
  EXPECT_EQ(marud_.ask({{"command", "device.list"}}).at("devices").size(), 2u);
  EXPECT_EQ(marud_.ask({{"command", "device.remove"}, {"name", "default"}}).value("refused", 0), EBUSY);
  TestClient other(marud_.socket_path(), "other");
  EXPECT_EQ(other.store("k", "text"), 0);
  EXPECT_EQ(other.text("k"), "text");
  slow_->go_on();
  EXPECT_EQ(another_.get(), 0);
  EXPECT_EQ(row().at("condition"), "serving");
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client_) == -ESTALE; }));
  EXPECT_EQ(client_.text("k"), "text") << "what it has mapped stays readable";
}

TEST_F(BeginsAnew, WhatIsHandedBackMeanwhileIsTooLate) {
  ASSERT_TRUE(slow_->is_reached());
  auto late = std::async(std::launch::async, [&] { return maru_reattach(client_); });
  EXPECT_TRUE(marud_.has_logged("handed back the memory of pool \"default\" too late"));
  slow_->go_on();
  EXPECT_EQ(another_.get(), 0);
  (void)late.get();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client_) == -ESTALE; }));
  EXPECT_EQ(TestClient(marud_.socket_path()).store("k", "anew"), 0);
}

// The state file names the memory before until there is other memory.
TEST_F(BeginsAnew, AMarudThatIsKilledMeanwhileLeavesTheOldMemoryToTheNextOne) {
  ASSERT_TRUE(slow_->is_reached());
  marud_.kill();
  EXPECT_THROW(another_.get(), std::runtime_error) << "its connection ended";
  slow_->end();
  marud_.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client_) == 0; }));
  EXPECT_EQ(client_.text("k"), "text");
}

// Of more pages than marud looks at in one turn.
PoolWish wide_pool() {
  PoolWish pool;
  pool.name = "wide";
  pool.bytes = 512u << 20;
  return pool;
}

TEST(RemovesInTurns, AnEmptyPoolIsLeftAndOneWithABlockStays) {
  MarudProcess marud({PoolWish{}, wide_pool()});
  TestClient client(marud.socket_path(), "wide");
  ASSERT_EQ(client.store("k", "text"), 0);
  const json request = {{"command", "device.remove"}, {"name", "wide"}, {"deadline_ms", far_too_long_ms()}};
  EXPECT_EQ(marud.ask(request).value("refused", 0), ENOTEMPTY);
  ASSERT_EQ(client.remove("k"), 0);
  const json asked = marud.ask(request);
  EXPECT_EQ(asked.value("clients", 0), 1) << asked.dump();
  EXPECT_TRUE(wait_until([&] { return client.exists("k") == -ESHUTDOWN; })) << "it was asked to leave";
  EXPECT_TRUE(wait_until([&] { return marud.ask({{"command", "device.list"}}).at("devices").size() == 1; }));
}

TEST(RemovesInTurns, ABlockBehindWhatTheFirstTurnSeesIsFound) {
  constexpr uint32_t kPagesOfATurn = 1u << 15;
  MarudProcess marud({PoolWish{}, wide_pool()});
  TestClient client(marud.socket_path(), "wide");
  const maru_geometry geometry = client.geometry();
  // Regions are given out in their order: the block lies behind those that are all taken.
  std::vector<maru_buffer> taken(kPagesOfATurn + geometry.region_pages);
  ASSERT_EQ(maru_alloc_batch(client, geometry.page_bytes, taken.size(), taken.data()), 0);
  maru_block block = 0;
  ASSERT_EQ(client.store("k", "text", {}, 0, &block), 0);
  ASSERT_GE(shm::PageRef::from_bits(block).page(), kPagesOfATurn) << "the test would prove nothing";
  const json request = {{"command", "device.remove"}, {"name", "wide"}, {"deadline_ms", far_too_long_ms()}};
  EXPECT_EQ(marud.ask(request).value("refused", 0), ENOTEMPTY);
  EXPECT_EQ(client.text("k"), "text");
  EXPECT_EQ(maru_abort_batch(client, taken.data(), taken.size()), 0);
}

// Who uses the pool waits, and nobody is refused.
TEST(ChecksInTurns, ClientsOfAPoolThatIsQuiescedComeAndGo) {
  MarudProcess marud({PoolWish{}, wide_pool()});
  std::atomic<bool> is_over{false};
  auto checks = std::async(std::launch::async, [&] {
    std::vector<json> replies;
    for (int i = 0; i < 3; ++i)
      replies.push_back(marud.ask({{"command", "check"}, {"pool", "wide"}, {"quiesce", true}}));
    is_over = true;
    return replies;
  });
  const auto come_and_go = [&](const char* pool) {
    int times = 0;
    for (; !is_over || times == 0; ++times) {
      TestClient client(marud.socket_path(), pool);
      maru_block root = 0;
      const std::string key = std::to_string(times);
      EXPECT_EQ(client.store("root" + key, "text", {}, 0, &root), 0);
      EXPECT_EQ(client.text("root" + key), "text");
      EXPECT_EQ(client.remove("root" + key), 0);
    }
    return times;
  };
  auto wide = std::async(std::launch::async, come_and_go, "wide");
  const int times = come_and_go("default");
  EXPECT_GT(wide.get(), 0);
  EXPECT_GT(times, 0);
  for (const json& reply : checks.get()) EXPECT_EQ(reply.value("found", -1), 0) << reply.dump();
}

TEST(FirstTouch, TakesAllMemoryAndSaysHowFastThatWas) {
  PoolWish pool;
  pool.more = "first_touch = true\n";
  MarudProcess marud({pool});
  EXPECT_TRUE(marud.has_logged(" seconds per GiB")) << marud.log();
}

}  // namespace
}  // namespace maru::test
