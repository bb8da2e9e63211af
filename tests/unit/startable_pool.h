// A small pool named "far" that a test starts, ends and starts again, on whatever device the test gives it.
#pragma once

#include "daemon/hosting/hosted_pool.h"
#include "tests/support/temporary_directory.h"

#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>

namespace maru::daemon {

class StartablePool : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  StateDirectory state_{directory_.file("state")};
  PoolSpec spec_ = default_pool_spec();

  explicit StartablePool(Backend backend) {
    spec_.backend = backend;
    spec_.pool.name = "far";
    spec_.pool.page_bytes = 4096;
    spec_.pool.region_bytes = 1u << 20;
    spec_.pool.lanes = 4;
    spec_.pool.pins_max = 64;
    spec_.pool.policy = "lru";
  }
  Result<std::unique_ptr<HostedPool>> start() {
    std::map<std::string, FileDescriptor> stored;
    return HostedPool::start(spec_, state_, stored, 1000);
  }
  Error refusal() {
    auto started = start();
    EXPECT_FALSE(started);
    return started ? Error{0, ""} : started.error();
  }
  static std::string uuid_of(HostedPool& pool) { return uuid_text(pool.serving()->header().uuid); }
  // Formats, or adopts, and leaves the pool there; returns its uuid.
  std::string leave_pool() {
    auto pool = start();
    EXPECT_TRUE(pool) << pool.error().text();
    if (!pool) return "";
    const std::string uuid = uuid_of(**pool);
    (*pool)->stop(false);
    return uuid;
  }
  void expect_adoption(const std::string& uuid, uint64_t epoch) {
    auto pool = start();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_EQ(uuid_of(**pool), uuid);
    EXPECT_EQ((*pool)->serving()->epoch(), epoch);
  }
  // As if the machine had been switched off while marud worked (or, `in_order`, after it had ended).
  static void switch_off(format::HostRecord& host, bool in_order) {
    host.boot_id_lo.store_relaxed(1);
    host.clean.store_relaxed(in_order ? 1 : 0);
  }
};

}  // namespace maru::daemon
