// Devices that nothing but the name in the state file speaks for: which of them are taken, and cleared.
#include "tests/unit/dax_pool_fixture.h"

#include "libmaru/shm/data_label.h"
#include "libmaru/shm/format_claim.h"

#include <cerrno>

namespace maru::daemon {
namespace {

using test::DaxStandIn;

constexpr uint64_t kBytes = 16u << 20;

// The machine was switched off, and the pool's device holds `content` now.
class LostDaxPool : public DaxPool {
 protected:
  void lose(const std::string& content) {
    devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile, 1);
    uuid_ = leave_pool();
    pretend_other_boot("dax0.0", false);
    put(content);
  }
  void put(const std::string& content) {
    content_ = content;
    devices_.put("dax0.0", 0, content_ + std::string(4096 - content_.size(), '\0'));
  }
  void expect_untouched(const std::string& part) {
    const Error error = refusal();
    EXPECT_NE(error.text().find(part), std::string::npos) << error.text();
    EXPECT_EQ(devices_.get("dax0.0", 0, content_.size()), content_);
  }
  std::string uuid_, content_;
};

const std::string kGarbage(4096, '\xa5');

std::string label_of_other_pages() {
  const uint8_t uuid[16] = {1, 2, 3};
  const format::DataLabel label = shm::make_data_label(uuid, kBytes, format::kDataLabelRoom);
  return {reinterpret_cast<const char*>(&label), sizeof(label)};
}

TEST_F(LostDaxPool, ADeviceThatTheWishCannotMeanIsNotTaken) {
  lose(kGarbage);
  spec_.dax.device = devices_.path("dax9.0");
  expect_untouched("dax9.0");
  spec_.dax.device = "node:0";
  expect_untouched("found no DAX device");
  spec_.dax.device = "cxl:free";
  expect_untouched("found no DAX device");
  spec_.dax.device = "uuid:11111111-1111-4111-8111-111111111111";
  expect_untouched("expected one that holds it");
  spec_.dax.device = "node:1";
  EXPECT_TRUE(start());
}

TEST_F(LostDaxPool, WhatAnotherPoolHasIsNoGarbage) {
  lose(label_of_other_pages());
  for (const std::string& wish : {std::string("node:1"), "uuid:" + uuid_, devices_.path("dax0.0")}) {
    spec_.dax.device = wish;
    expect_untouched("found the pages of a pool of marud");
  }
  const uint64_t claim = shm::FormatClaim::of(0).bits;
  put(std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
  spec_.dax.device = "uuid:" + uuid_;
  expect_untouched("expected what memory holds after a loss of power");
}

TEST_F(LostDaxPool, ADeviceOfSeveralHostsIsNotTakenByItsName) {
  lose(kGarbage);
  spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
  spec_.pool.sharing.machine_id = "aaaa";
  spec_.dax.device = "uuid:" + uuid_;
  expect_untouched("expected one that holds it");
}

// Names change from boot to boot, and so another device may have this one's.
TEST_F(DaxPool, ClearingGoesOnInAnotherBootOnlyOnWhatLooksLikeIt) {
  devices_.add("dax0.0", kBytes);
  leave_pool();
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->is_being_cleared = true;
  (*record)->boot_id = "another boot";
  ASSERT_TRUE(state_.save(**record));
  devices_.put("dax0.0", 0, "XFSB" + std::string((128u << 10) - 4, '\0'));
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_EQ(devices_.get("dax0.0", 0, 4), "XFSB");
  devices_.put("dax0.0", 0, std::string(4, '\0'));
  devices_.put("dax0.0", kBytes - 7, "secret");
  EXPECT_TRUE(start());
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
}

}  // namespace
}  // namespace maru::daemon
