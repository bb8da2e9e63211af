// What becomes of a pool on a device: formatted, adopted, verified, cleared or refused. Files stand in for devices.
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/hosted_pool.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/data_label.h"
#include "libmaru/shm/region/format_claim.h"
#include "tests/support/dax_stand_in.h"
#include "tests/unit/dax_pool_fixture.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

using test::DaxStandIn;

constexpr uint64_t kBytes = 16u << 20;

TEST_F(DaxPool, ABlankDeviceIsFormattedAndThenAdopted) {
  devices_.add("dax0.0", kBytes);
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  const std::string uuid = uuid_of(**pool);
  EXPECT_EQ((*pool)->serving()->epoch(), 1u);
  EXPECT_EQ(refusal().code, EBUSY);
  (*pool)->stop(false);
  pool->reset();
  expect_adoption(uuid, 2);
}

TEST_F(DaxPool, FormatNeverFormatsNothing) {
  devices_.add("dax0.0", kBytes);
  spec_.dax.formats_blank = false;
  EXPECT_EQ(refusal().code, ENODATA);
  EXPECT_EQ(devices_.get("dax0.0", 0, 4096), std::string(4096, 0));
  ASSERT_TRUE(format_on_command(spec_, state_, false, 1000));
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->epoch(), 2u);
}

TEST_F(DaxPool, WhatIsNotMarudsIsRefusedAndUntouched) {
  devices_.add("dax0.0", kBytes);
  devices_.put("dax0.0", 0, "XFSB");
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_NE(refusal().doing.find("found an XFS file system, expected a blank device or this pool"), std::string::npos)
      << refusal().doing;
  EXPECT_EQ(devices_.get("dax0.0", 0, 4), "XFSB");
  // One byte near the end is enough.
  devices_.put("dax0.0", 0, std::string(4, 0));
  devices_.put("dax0.0", kBytes - 1, "x");
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_NE(refusal().doing.find("content at byte 16777215"), std::string::npos) << refusal().doing;
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 1, 1), "x");
  EXPECT_EQ(devices_.get("dax0.0", 0, 4096), std::string(4096, 0));
}

TEST_F(DaxPool, AnotherPoolUnderTheNameOfThisOneIsRefused) {
  devices_.add("dax0.0", kBytes);
  devices_.add("dax1.0", kBytes);
  const std::string uuid = leave_pool();
  // Another pool, made by another marud.
  StateDirectory elsewhere(directory_.file("elsewhere"));
  std::swap(elsewhere, state_);
  spec_.dax.device = devices_.path("dax1.0");
  const std::string other = leave_pool();
  std::swap(elsewhere, state_);
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_NE(refusal().doing.find("found a pool of marud, uuid " + other), std::string::npos) << refusal().doing;
  EXPECT_NE(refusal().doing.find("expected the pool that it was, " + uuid), std::string::npos) << refusal().doing;
  spec_.dax.device = "uuid:" + uuid;
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(uuid_of(**pool), uuid);
}

TEST_F(DaxPool, APoolIsFoundUnderAnotherName) {
  devices_.add("dax0.0", kBytes);
  const std::string uuid = leave_pool();
  devices_.rename("dax0.0", "dax7.0");
  EXPECT_EQ(refusal().code, ENOENT);
  for (const std::string& wish : {"uuid:" + uuid, std::string("node:0")}) {
    spec_.dax.device = wish;
    auto pool = start();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_EQ(uuid_of(**pool), uuid);
    (*pool)->stop(false);
  }
}

TEST_F(DaxPool, ANodeTakesTheFirstDeviceThatIsBlankAllOver) {
  devices_.add("dax0.0", kBytes);
  devices_.add("dax1.0", kBytes);
  devices_.put("dax0.0", kBytes / 2, "x");
  spec_.dax.device = "node:0";
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->device().name(), devices_.path("dax1.0"));
  EXPECT_EQ(devices_.get("dax0.0", kBytes / 2, 1), "x");
}

TEST_F(DaxPool, ACommandFormatsAndForceClearsFirst) {
  devices_.add("dax0.0", kBytes);
  devices_.put("dax0.0", 0, "XFSB");
  devices_.put("dax0.0", kBytes - 7, "secret");
  const auto refused = format_on_command(spec_, state_, false, 1000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EEXIST);
  EXPECT_NE(refused.error().doing.find("found an XFS file system"), std::string::npos) << refused.error().doing;
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), "secret");
  const auto forced = format_on_command(spec_, state_, true, 1000);
  ASSERT_TRUE(forced) << forced.error().text();
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->epoch(), 2u);
  pool->reset();
  spec_.dax.device = "node:0";
  const auto vague = format_on_command(spec_, state_, true, 1000);
  ASSERT_FALSE(vague);
  EXPECT_EQ(vague.error().code, EINVAL);
}

TEST_F(DaxPool, AnOrderlyEndOutlivesPowerOnPersistentMemory) {
  devices_.add("dax0.0", kBytes);
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", true);
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(uuid_of(**pool), uuid);
}

TEST_F(DaxPool, ALossOfPowerWithoutChecksumsFormatsAnewAndClears) {
  devices_.add("dax0.0", kBytes);
  const std::string uuid = leave_pool();
  devices_.put("dax0.0", kBytes - 7, "secret");
  pretend_other_boot("dax0.0", false);
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_NE(uuid_of(**pool), uuid);
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
}

// A client that marud left behind goes on storing, and may be cut off.
TEST_F(DaxPool, AnEndThatLeavesAClientIsNoOrderlyOne) {
  devices_.add("dax0.0", kBytes);
  const auto is_clean = [&] {
    format::HostRecord host;
    const std::string bytes =
        devices_.get("dax0.0", header("dax0.0").sections[format::kSectionHosts].offset, sizeof(host));
    std::memcpy(&host, bytes.data(), sizeof(host));
    return host.clean.load_relaxed();
  };
  for (const bool leaves_client : {false, true}) {
    auto pool = start();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_EQ(is_clean(), 0u);
    if (leaves_client) {
      ASSERT_TRUE((*pool)->serving()->attach({::getpid(), 1}, 0, 0, 1000));
    }
    (*pool)->stop(false);
    EXPECT_EQ(is_clean(), leaves_client ? 0u : 1u);
  }
}

class SplitDaxPool : public DaxPool {
 protected:
  SplitDaxPool() {
    devices_.add("dax0.0", kBytes);
    devices_.add("dax1.0", kBytes, DaxStandIn::kVolatile);
    spec_.dax.control_device = devices_.path("dax0.0");
    spec_.dax.device = devices_.path("dax1.0");
    spec_.pool.checksums = true;
  }
};

// The control region outlives power and says that all was in order; the pages do not.
TEST_F(SplitDaxPool, PagesInVolatileMemoryAreVerifiedAfterAnOrderlyEndToo) {
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", true);
  spec_.after_power_loss = AfterPowerLoss::kFormat;
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_NE(uuid_of(**pool), uuid);
}

TEST_F(SplitDaxPool, PagesThatLostTheirLabelWithThePowerAreFormattedAnew) {
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", true);
  devices_.put("dax1.0", 0, std::string(kBytes, '\xa5'));
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_NE(uuid_of(**pool), uuid);
  EXPECT_EQ(devices_.get("dax1.0", kBytes - 7, 6), std::string(6, 0));
}

TEST_F(SplitDaxPool, PagesThatSomebodyWroteOverAreRefused) {
  leave_pool();
  devices_.put("dax1.0", 0, std::string(4096, '\xa5'));
  EXPECT_EQ(refusal().code, EEXIST);  // of this boot
}

// Otherwise a marud that is killed while it verifies would leave a pool that the next one believes.
TEST_F(DaxPool, APoolThatIsNotVerifiedYetStaysOneOfAnotherBoot) {
  devices_.add("dax0.0", kBytes);
  spec_.pool.checksums = true;
  leave_pool();
  pretend_other_boot("dax0.0", false);
  const auto boot = [&] {
    format::HostRecord host;
    const std::string bytes =
        devices_.get("dax0.0", header("dax0.0").sections[format::kSectionHosts].offset, sizeof(host));
    std::memcpy(&host, bytes.data(), sizeof(host));
    return host.boot_id_lo.load_relaxed();
  };
  const auto adopt = [&] {
    auto found = describe_dax_device(devices_.path("dax0.0"), devices_.rules());
    auto device = DaxDevice::open(*found, 0, devices_.rules());
    EXPECT_TRUE(device);
    return Pool::adopt(spec_.pool, std::move(*device), 1000, true);
  };
  {
    auto pool = adopt();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_EQ((*pool)->verify([](uint64_t, uint64_t) { return false; }, 1000).error().code, ECANCELED);
  }
  EXPECT_EQ(boot(), 1u);
  {
    auto pool = adopt();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_TRUE((*pool)->verify({}, 1000));
  }
  EXPECT_NE(boot(), 1u);
}

TEST_F(DaxPool, GarbageOfVolatileMemoryThatHeldThisPoolIsCleared) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", false);
  devices_.put("dax0.0", 0, std::string(kBytes, '\xa5'));
  spec_.dax.device = "uuid:" + uuid;  // which nothing on the device says any more
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(uuid_of(**pool), uuid) << "or the configuration would not find it again";
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
  (*pool)->stop(false);
  pool->reset();
  expect_adoption(uuid, 2);
}

TEST_F(DaxPool, GarbageThatNothingIsKnownOfStays) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  leave_pool();
  devices_.put("dax0.0", 0, std::string(4096, '\xa5'));
  EXPECT_EQ(refusal().code, EEXIST);  // of this boot: somebody wrote over it
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->boot_id = "another boot";
  ASSERT_TRUE(state_.save(**record));
  devices_.remove("dax0.0", DaxStandIn::kVolatile);
  devices_.add("dax0.0", kBytes, DaxStandIn::kPersistent);
  devices_.put("dax0.0", 0, std::string(4096, '\xa5'));
  EXPECT_EQ(refusal().code, EEXIST);  // persistent memory does not become garbage
}

TEST_F(DaxPool, ClearingThatWasCutOffGoesOn) {
  devices_.add("dax0.0", kBytes);
  leave_pool();
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->is_being_cleared = true;
  ASSERT_TRUE(state_.save(**record));
  devices_.put("dax0.0", 0, "MRKC" + std::string(4092, 0));  // the mark: libmaru/shm/region/format_claim.h
  devices_.put("dax0.0", kBytes - 7, "secret");
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
  record = state_.load("far");
  ASSERT_TRUE(record && *record);
  EXPECT_FALSE((*record)->is_being_cleared);
}

TEST_F(DaxPool, PublishersFlushOnPersistentMemoryAlone) {
  devices_.add("dax0.0", kBytes);
  leave_pool();
  EXPECT_EQ(header("dax0.0").incompat_flags, format::kIncompatDurable | format::kIncompatMetadata);
  devices_.add("dax1.0", kBytes, DaxStandIn::kVolatile);
  spec_.pool.name = "near";
  spec_.dax.device = devices_.path("dax1.0");
  leave_pool();
  EXPECT_EQ(header("dax1.0").incompat_flags, format::kIncompatMetadata);
}

TEST_F(DaxPool, FormattingThatWasCutOffBeginsAnew) {
  devices_.add("dax0.0", kBytes);
  const uint64_t cut_off[4] = {shm::FormatClaim::of(0).bits, 0, 7, 9};  // and a part of a header
  devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(cut_off), sizeof(cut_off)));
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(header("dax0.0").magic, format::kMagic);
  EXPECT_EQ(header("dax0.0").checksum, shm::header_checksum(header("dax0.0")));
}

// The control region on one device, the pages on another one.
class DaxPairPool : public DaxPool {
 protected:
  static constexpr uint64_t kControlBytes = 4u << 20;
  DaxPairPool() {
    devices_.add("dax0.0", kControlBytes);
    devices_.add("dax1.0", kBytes);
    spec_.dax.control_device = devices_.path("dax0.0");
    spec_.dax.device = devices_.path("dax1.0");
  }
  void be_shared() {
    spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
    spec_.pool.sharing.hosts = 2;
    spec_.pool.sharing.machine_id = "aaaa";
    spec_.pool.sharing.boot_id = "11111111-1111-4111-8111-111111111111";
  }
  // As if marud had died before the header was written: the claim, and the uuid beside it.
  void cut_off(uint32_t machine) {
    constexpr size_t kUuid = offsetof(format::Header, uuid), kUuidEnd = kUuid + 16;
    const uint64_t claim = shm::FormatClaim::of(machine).bits;
    devices_.put("dax0.0", 0,
                 std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)) + std::string(kUuid - 8, 0));
    devices_.put("dax0.0", kUuidEnd, std::string(sizeof(format::Header) - kUuidEnd, 0));
  }
  std::string label() { return devices_.get("dax1.0", 0, 4096); }
  // Another pool on dax2.0 and dax3.0, made by another marud; returns its uuid.
  std::string leave_another() {
    devices_.add("dax2.0", kControlBytes);
    devices_.add("dax3.0", kBytes);
    StateDirectory elsewhere(directory_.file("elsewhere"));
    std::swap(elsewhere, state_);
    spec_.dax.control_device = devices_.path("dax2.0");
    spec_.dax.device = devices_.path("dax3.0");
    const std::string other = leave_pool();
    std::swap(elsewhere, state_);
    spec_.dax.control_device = devices_.path("dax0.0");
    spec_.dax.device = devices_.path("dax1.0");
    return other;
  }
  void begin_to_clear() {
    auto record = state_.load("far");
    ASSERT_TRUE(record && *record);
    (*record)->is_being_cleared = true;
    ASSERT_TRUE(state_.save(**record));
  }
};

TEST_F(DaxPairPool, FormattingThatWasCutOffBeginsAnew) {
  for (const bool is_shared : {false, true}) {
    if (is_shared) be_shared();
    devices_.put("dax0.0", 0, std::string(kControlBytes, 0));
    devices_.put("dax1.0", 0, std::string(4096, 0));
    state_.remove("far");
    const std::string uuid = leave_pool();
    // With what the state file says, and without it.
    for (const bool is_known : {true, false}) {
      cut_off(is_shared ? machine_number(spec_.pool.sharing) : 0);
      if (!is_known) state_.remove("far");
      auto pool = start();
      ASSERT_TRUE(pool) << pool.error().text();
      EXPECT_EQ(uuid_of(**pool), uuid);
      EXPECT_EQ((*pool)->serving()->epoch(), 1u);
      (*pool)->stop(false);
    }
  }
}

TEST_F(DaxPairPool, FormattingThatWasCutOffIsFoundAgainWhereDevicesAreChosen) {
  devices_.remove("dax1.0");
  devices_.add("dax1.0", kBytes, DaxStandIn::kPersistent, 1);
  const std::string uuid = leave_pool();
  // On the same node, and not to be taken for them.
  devices_.add("dax3.0", kBytes, DaxStandIn::kPersistent, 1);
  const uint8_t another[16] = {1, 2, 3};
  const format::DataLabel others = shm::make_data_label(another, kBytes, format::kDataLabelRoom);
  devices_.put("dax3.0", 0, std::string(reinterpret_cast<const char*>(&others), sizeof(others)));
  // With the pages labelled and not yet, with the state file of that moment and without one.
  for (const bool is_labelled : {true, false})
    for (const bool is_known : {true, false}) {
      SCOPED_TRACE(is_labelled ? "labelled" : "not labelled");
      SCOPED_TRACE(is_known ? "known" : "not known");
      cut_off(0);
      if (!is_labelled) devices_.put("dax1.0", 0, std::string(4096, 0));
      if (is_known) {
        begin_to_clear();
        auto record = state_.load("far");
        (*record)->uuid = {};
        ASSERT_TRUE(state_.save(**record));
      } else {
        state_.remove("far");
      }
      spec_.dax.control_device = "node:0";
      spec_.dax.device = "node:1";
      auto pool = start();
      ASSERT_TRUE(pool) << pool.error().text();
      EXPECT_EQ(uuid_of(**pool), uuid);
      (*pool)->stop(false);
    }
}

// Its first line holds all of the label, word for word from the uuid on.
TEST_F(DaxPairPool, PagesThatAreLabelledInPartAreFoundAgainWhereDevicesAreChosen) {
  devices_.remove("dax1.0");
  devices_.add("dax1.0", kBytes, DaxStandIn::kPersistent, 1);
  const std::string uuid = leave_pool(), whole = label().substr(0, sizeof(format::DataLabel));
  spec_.dax.control_device = "node:0";
  spec_.dax.device = "node:1";
  for (size_t bytes = 16; bytes <= whole.size(); bytes += 8)
    for (const bool is_known : {true, false}) {
      SCOPED_TRACE(std::to_string(bytes) + (is_known ? ", known" : ", not known"));
      cut_off(0);
      devices_.put("dax1.0", 0, std::string(8, 0) + whole.substr(8, bytes - 8) + std::string(whole.size() - bytes, 0));
      PoolRecord record = **state_.load("far");
      record.is_being_formatted = true;
      EXPECT_TRUE(state_.save(record));
      if (!is_known) state_.remove("far");
      auto pool = start();
      ASSERT_TRUE(pool) << pool.error().text();
      EXPECT_EQ(uuid_of(**pool), uuid);
      (*pool)->stop(false);
    }
}

TEST_F(DaxPairPool, AClaimFormatsNoPagesButItsOwn) {
  leave_pool();
  const std::string other = leave_another();
  cut_off(0);
  devices_.rename("dax1.0", "dax4.0");
  devices_.rename("dax3.0", "dax1.0");
  const std::string before = label();
  for (const bool is_being_cleared : {false, true}) {
    if (is_being_cleared) begin_to_clear();
    const Error error = refusal();
    EXPECT_EQ(error.code, EEXIST);
    EXPECT_NE(error.doing.find("found the pages of a pool of marud, uuid " + other), std::string::npos) << error.doing;
    EXPECT_EQ(label(), before);
  }
}

// The kernel gave another device the name of the one with the control region.
TEST_F(DaxPairPool, ABlankControlDeviceGivesNoPagesUp) {
  const std::string uuid = leave_pool(), before = label();
  devices_.rename("dax0.0", "dax7.0");
  devices_.add("dax0.0", kControlBytes);
  const Error error = refusal();
  EXPECT_EQ(error.code, EEXIST);
  EXPECT_NE(error.doing.find("expected the pool that it was, " + uuid + ", which is on " + devices_.path("dax7.0")),
            std::string::npos)
      << error.doing;
  EXPECT_EQ(label(), before);
  spec_.dax.control_device = devices_.path("dax7.0");
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(DaxPairPool, SwappedDevicesAreRefusedAndUntouched) {
  const std::string uuid = leave_pool(), pages = label(), control = devices_.get("dax0.0", 0, 4096);
  std::swap(spec_.dax.control_device, spec_.dax.device);
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_EQ(label(), pages);
  EXPECT_EQ(devices_.get("dax0.0", 0, 4096), control);
  std::swap(spec_.dax.control_device, spec_.dax.device);
  EXPECT_EQ(leave_pool(), uuid);
}

// marud died after the header and before its state file said so.
TEST_F(DaxPairPool, APoolThatTheRecordOfItsFormattingDoesNotNameIsAdopted) {
  const std::string uuid = leave_pool();
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->uuid = {};
  (*record)->is_being_cleared = true;
  ASSERT_TRUE(state_.save(**record));
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(DaxPairPool, ClearingThatWasCutOffGoesOn) {
  leave_pool();
  begin_to_clear();
  devices_.put("dax0.0", 0, "MRKC" + std::string(4092, 0));  // the mark: libmaru/shm/region/format_claim.h
  devices_.put("dax1.0", kBytes - 7, "secret");
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->epoch(), 1u);
  EXPECT_EQ(devices_.get("dax1.0", kBytes - 7, 6), std::string(6, 0));
}

// Its control region says whose the pages are, also when the state file is lost.
TEST_F(DaxPairPool, APoolThatIsFormattedAnewTakesItsPagesAlong) {
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", false);
  state_.remove("far");
  devices_.put("dax1.0", kBytes - 7, "secret");
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_NE(uuid_of(**pool), uuid);
  EXPECT_EQ(devices_.get("dax1.0", kBytes - 7, 6), std::string(6, 0));
}

class SharedDaxPool : public DaxPool {
 protected:
  SharedDaxPool() {
    spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
    spec_.pool.sharing.hosts = 2;
    be_host("aaaa", "11111111-1111-4111-8111-111111111111");
  }
  void be_host(const std::string& machine_id, const std::string& boot_id) {
    spec_.pool.sharing.machine_id = machine_id;
    spec_.pool.sharing.boot_id = boot_id;
  }
  void be_the_other_host() { be_host("bbbb", "22222222-2222-4222-8222-222222222222"); }
  void put_claim(uint32_t machine) {
    const uint64_t claim = shm::FormatClaim::of(machine).bits;
    devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
  }
};

// To this host every other one looks like a marud of another boot that was cut off.
TEST_F(SharedDaxPool, TheNextHostJoinsAndNeitherVerifiesNorFormats) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  auto first = start();
  ASSERT_TRUE(first) << first.error().text();
  const std::string uuid = uuid_of(**first);
  first->reset();  // its lock goes, its slot stays: it may be alive
  be_the_other_host();
  const StateDirectory elsewhere(directory_.file("elsewhere"));
  for (const auto after : {AfterPowerLoss::kFormat, AfterPowerLoss::kVerify}) {
    spec_.after_power_loss = after;
    std::map<std::string, FileDescriptor> stored;
    auto second = HostedPool::start(spec_, elsewhere, stored, 1000);
    ASSERT_TRUE(second) << second.error().text();
    EXPECT_EQ(uuid_of(**second), uuid);
    EXPECT_EQ((*second)->serving()->host(), 1u);
  }
  // Nor who does not know that it is shared.
  spec_.pool.sharing = {};
  spec_.after_power_loss = AfterPowerLoss::kFormat;
  EXPECT_NE(refusal().doing.find("found a pool that several hosts share"), std::string::npos);
  EXPECT_EQ(uuid_text(header("dax0.0").uuid), uuid);
}

TEST_F(SharedDaxPool, ARecordOfThisHostClearsNothingThatOthersUse) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  const std::string uuid = leave_pool();
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->is_being_cleared = true;
  (*record)->boot_id = "another boot";
  ASSERT_TRUE(state_.save(**record));
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ(uuid_of(**pool), uuid);
  pool->reset();
  devices_.put("dax0.0", 0, std::string(4096, '\xa5'));
  EXPECT_EQ(refusal().code, EEXIST);
}

TEST_F(SharedDaxPool, AFormattingHostIsLeftAlone) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  SharingConfig other = spec_.pool.sharing;
  other.machine_id = "bbbb";
  put_claim(machine_number(other));
  const Error error = refusal();
  EXPECT_EQ(error.code, EEXIST);
  EXPECT_NE(error.text().find("another host formats it"), std::string::npos) << error.text();
  const std::string begin = devices_.get("dax0.0", 0, 8);
  EXPECT_EQ(shm::claim_in(std::as_bytes(std::span(begin))).machine(), machine_number(other)) << "it stays";
  put_claim(machine_number(spec_.pool.sharing));
  auto pool = start();
  EXPECT_TRUE(pool) << "it was this machine's: " << pool.error().text();
}

// A device is blank when it is opened, and another host begins while this one looks at its bytes.
TEST_F(SharedDaxPool, AHostThatBeginsToFormatMeanwhileIsNamedAndNotItsBytes) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  const auto described = describe_dax_device(devices_.path("dax0.0"), devices_.rules());
  ASSERT_TRUE(described);
  const auto device = DaxDevice::open(*described, 0, devices_.rules());
  ASSERT_TRUE(device) << device.error().text();
  SharingConfig other = spec_.pool.sharing;
  other.machine_id = "bbbb";
  put_claim(machine_number(other));
  const auto found = what_is_on(**device, "far");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, EAGAIN);
  EXPECT_NE(found.error().doing.find("another host formats it"), std::string::npos) << found.error().doing;
  devices_.put("dax0.0", 0, std::string(8, '\0'));
  devices_.put("dax0.0", 1u << 20, "x");
  const auto foreign = what_is_on(**device, "far");
  ASSERT_TRUE(foreign) << foreign.error().doing;
  EXPECT_EQ(foreign->value_or(""), "zeros at its beginning and content at byte 1048576");
}

}  // namespace
}  // namespace maru::daemon
