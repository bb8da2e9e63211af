// What the label of a pool's pages says of the hosts that reach them, and of their size, which a device may have no longer.
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/hosted_pool.h"
#include "maru/format/data_label.h"
#include "tests/support/dax_stand_in.h"
#include "tests/unit/dax_pool_fixture.h"

#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

using test::DaxStandIn;

constexpr uint64_t kControlBytes = 4u << 20, kBytes = 16u << 20;

// The control region lies in memory that loses its content with the power.
class LabelledPages : public DaxPool {
 protected:
  LabelledPages() {
    devices_.add("dax0.0", kControlBytes, DaxStandIn::kVolatile);
    devices_.add("dax1.0", kBytes);
    spec_.dax.control_device = devices_.path("dax0.0");
    spec_.dax.device = devices_.path("dax1.0");
    spec_.pool.checksums = true;
  }
  void be_shared() {
    spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = true;
    spec_.pool.sharing.hosts = 2;
    spec_.pool.sharing.machine_id = "aaaa";
    spec_.pool.sharing.boot_id = "11111111-1111-4111-8111-111111111111";
  }
  // In the state file and on the device.
  void lose_power() {
    auto record = state_.load("far");
    ASSERT_TRUE(record && *record);
    (*record)->boot_id = "another boot";
    ASSERT_TRUE(state_.save(**record));
    devices_.put("dax0.0", 0, std::string(kControlBytes, '\xa5'));
  }
  format::DataLabel label() {
    format::DataLabel label;
    const std::string bytes = devices_.get("dax1.0", 0, sizeof(label));
    std::memcpy(&label, bytes.data(), sizeof(label));
    return label;
  }
  void put_hosts(uint64_t word) {
    devices_.put("dax1.0", offsetof(format::DataLabel, hosts),
                 std::string(reinterpret_cast<const char*>(&word), sizeof(word)));
  }
};

TEST_F(LabelledPages, SayWhetherSeveralHostsReachThem) {
  const std::string uuid = leave_pool();
  EXPECT_EQ(label().hosts, 0u);
  EXPECT_EQ(leave_pool(), uuid);
  be_shared();
  ASSERT_TRUE(format_on_command(spec_, state_, true, 1000));
  EXPECT_EQ(label().hosts, format::kDataLabelHosts);
  EXPECT_FALSE(leave_pool().empty());
}

// One of the hosts is made a host of its own, and lost its power: that says nothing of the others.
TEST_F(LabelledPages, OfSeveralHostsAreNotGivenUpByOneThatKnowsOfNone) {
  be_shared();
  leave_pool();
  devices_.put("dax1.0", kBytes - 7, "secret");
  lose_power();
  spec_.pool.sharing = {};
  const Error error = refusal();
  EXPECT_EQ(error.code, EEXIST);
  EXPECT_NE(error.doing.find("which several hosts share, expected a blank device"), std::string::npos) << error.doing;
  EXPECT_EQ(devices_.get("dax1.0", kBytes - 7, 6), "secret");
  EXPECT_EQ(label().hosts, format::kDataLabelHosts);
  // Without the word they are those of a pool of this host.
  put_hosts(0);
  const auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(devices_.get("dax1.0", kBytes - 7, 6), std::string(6, 0));
}

TEST_F(LabelledPages, OfSeveralHostsAreTakenByForce) {
  be_shared();
  leave_pool();
  lose_power();
  spec_.pool.sharing = {};
  EXPECT_EQ(refusal().code, EEXIST);
  ASSERT_TRUE(format_on_command(spec_, state_, true, 1000));
  EXPECT_EQ(label().hosts, 0u);
  EXPECT_FALSE(leave_pool().empty());
}

// As an older marud left it, and one that nobody can have written.
TEST_F(LabelledPages, AreThoseOfASharedPoolWithoutTheWordAndWithNoOther) {
  be_shared();
  const std::string uuid = leave_pool();
  put_hosts(0);
  EXPECT_EQ(leave_pool(), uuid);
  put_hosts(1);
  EXPECT_NE(refusal().doing.find("with a damaged label"), std::string::npos) << refusal().doing;
  put_hosts(format::kDataLabelHosts);
  EXPECT_EQ(leave_pool(), uuid);
}

// A device was made smaller while no marud had it. What is left of the pool is neither served nor given up, whatever its state.
class CutDevices : public LabelledPages {
 protected:
  void expect_refused(const std::string& part, const std::string& what_to_do) {
    for (const bool is_of_this_boot : {true, false})
      for (const auto after : {AfterPowerLoss::kFormat, AfterPowerLoss::kVerify}) {
        spec_.after_power_loss = after;
        if (!is_of_this_boot) pretend_other_boot("dax0.0", false);
        const std::string before = devices_.get("dax0.0", 0, 4096);
        const Error error = refusal();
        EXPECT_EQ(error.code, EEXIST);
        EXPECT_NE(error.doing.find(part), std::string::npos) << error.doing;
        EXPECT_NE(error.doing.find(what_to_do), std::string::npos) << error.doing;
        EXPECT_EQ(devices_.get("dax0.0", 0, 4096), before);
      }
  }
};

TEST_F(CutDevices, OneWithAllOfAPoolIsRefused) {
  devices_.remove("dax0.0", DaxStandIn::kVolatile);
  devices_.add("dax0.0", kBytes);
  spec_.dax.control_device.clear();
  spec_.dax.device = devices_.path("dax0.0");
  const std::string uuid = leave_pool();
  for (const uint64_t mib : {14, 2}) {
    devices_.resize("dax0.0", mib << 20);
    spec_.dax.device = devices_.path("dax0.0");
    expect_refused(
        "16 MiB in pages of 4 KiB, more than there is (" + std::to_string(mib) + " MiB), expected a whole pool",
        "a device that was made smaller its size back");
    spec_.dax.device = "uuid:" + uuid;
    expect_refused("more than there is (" + std::to_string(mib) + " MiB)", "its size back");
  }
}

TEST_F(CutDevices, OneWithPagesIsRefused) {
  leave_pool();
  devices_.resize("dax1.0", kBytes - (2u << 20));
  expect_refused(
      "use " + devices_.path("dax1.0") + ": found the pages of a pool of marud",
      "on a device of 14680064 bytes, expected one of 16777216, as when it was formatted; give the device its "
      "size back");
}

TEST_F(CutDevices, OneWithAControlRegionIsRefused) {
  leave_pool();
  devices_.resize("dax0.0", kControlBytes / 2, DaxStandIn::kVolatile);
  expect_refused("use " + devices_.path("dax0.0") + ": found a pool of marud",
                 "on a device of 2097152 bytes, expected one of 4194304, as when it was formatted");
  // Nor by as much more on the other device.
  devices_.resize("dax1.0", kBytes + kControlBytes / 2);
  expect_refused("use " + devices_.path("dax1.0"), "on a device of 18874368 bytes, expected one of 16777216");
}

}  // namespace
}  // namespace maru::daemon
