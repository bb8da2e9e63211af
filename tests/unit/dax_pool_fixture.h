// A pool on a device that a file stands in for, and what befalls it between two starts.
#pragma once

#include "daemon/hosted_pool.h"
#include "tests/support/dax_stand_in.h"

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>

namespace maru::daemon {

class DaxPool : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  test::DaxStandIn devices_{directory_.file("dax")};
  StateDirectory state_{directory_.file("state")};
  PoolSpec spec_ = default_pool_spec();

  DaxPool() {
    spec_.backend = Backend::kDax;
    spec_.pool.name = "far";
    spec_.pool.page_bytes = 4096;
    spec_.pool.region_bytes = 1u << 20;
    spec_.pool.lanes = 4;
    spec_.pool.pins_max = 64;
    spec_.pool.policy = "lru";
    spec_.dax.rules = devices_.rules();
    spec_.dax.device = devices_.path("dax0.0");
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
  std::string uuid_of(HostedPool& pool) { return uuid_text(pool.serving()->header().uuid); }
  // Formats and leaves a pool there; returns its uuid.
  std::string leave_pool() {
    auto pool = start();
    EXPECT_TRUE(pool) << pool.error().text();
    if (!pool) return "";
    const std::string uuid = uuid_of(**pool);
    (*pool)->stop(false);
    return uuid;
  }
  format::Header header(const std::string& name) {
    format::Header header;
    const std::string bytes = devices_.get(name, 0, sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }
  // As if the machine had been switched off while marud worked (or, `in_order`, after it had ended).
  void pretend_other_boot(const std::string& name, bool in_order) {
    const uint64_t at = header(name).sections[format::kSectionHosts].offset;
    format::HostRecord host;
    std::string bytes = devices_.get(name, at, sizeof(host));
    std::memcpy(&host, bytes.data(), sizeof(host));
    host.boot_id_lo.store_relaxed(1);
    host.clean.store_relaxed(in_order ? 1 : 0);
    std::memcpy(bytes.data(), &host, sizeof(host));
    devices_.put(name, at, bytes);
    if (auto record = state_.load("far"); record && *record) {
      (*record)->boot_id = "another boot";
      EXPECT_TRUE(state_.save(**record));
    }
  }
};

}  // namespace maru::daemon
