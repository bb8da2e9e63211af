// Devices that nothing but the name in the state file speaks for: which of them are taken, and cleared. And pools that the
// state file knows, whose device is not to be seen.
#include "tests/unit/dax_pool_fixture.h"

#include "daemon/hosting/dax_format.h"
#include "libmaru/shm/region/data_label.h"
#include "libmaru/shm/region/format_claim.h"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>

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

// Of two devices the one that holds the pool is not to be seen.
class UnseenDaxPool : public DaxPool {
 protected:
  UnseenDaxPool() {
    devices_.add("dax0.0", kBytes);
    devices_.add("dax1.0", kBytes);
    spec_.dax.device = "node:0";
    uuid_ = leave_pool();
    std::filesystem::rename(devices_.path("dax0.0"), devices_.path("away"));
  }
  void expect_it_is_back() {
    std::filesystem::rename(devices_.path("away"), devices_.path("dax0.0"));
    EXPECT_EQ(leave_pool(), uuid_);
  }
  std::string uuid_;
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
  expect_untouched("found none there, and elsewhere " + devices_.path("dax0.0"));
  spec_.dax.device = "cxl:free";
  expect_untouched("found none there, and elsewhere " + devices_.path("dax0.0"));
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

// Names change from boot to boot, and so another device may have this one's; and in any boot it may hold something new.
TEST_F(DaxPool, ClearingGoesOnOnlyOnWhatLooksLikeIt) {
  devices_.add("dax0.0", kBytes);
  leave_pool();
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  (*record)->is_being_cleared = true;
  const std::string own_boot = (*record)->boot_id;
  devices_.put("dax0.0", 0, "XFSB" + std::string((128u << 10) - 4, '\0'));
  for (const std::string& boot_id : {own_boot, std::string("another boot")}) {
    (*record)->boot_id = boot_id;
    ASSERT_TRUE(state_.save(**record));
    EXPECT_EQ(refusal().code, EEXIST) << "nothing that marud was clearing: it has no mark";
    EXPECT_EQ(devices_.get("dax0.0", 0, 4), "XFSB");
  }
  devices_.put("dax0.0", 0, std::string(4, '\0'));
  devices_.put("dax0.0", kBytes - 7, "secret");
  EXPECT_FALSE(start()) << "of another boot";
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), "secret");
  (*record)->boot_id = own_boot;
  ASSERT_TRUE(state_.save(**record));
  EXPECT_TRUE(start());
  EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
}

// Late, or not to be opened, or with bad memory at its beginning: it is somewhere, and the blank one is another device.
TEST_F(UnseenDaxPool, IsNotReplacedWhereItIsKnown) {
  for (const bool is_shared : {false, true}) {
    spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = is_shared;
    const Error error = refusal();
    EXPECT_EQ(error.code, ENOENT) << "it is tried again";
    for (const char* part : {"dax0.0, devdax, which cannot be opened: No such file",
                             "dax1.0, devdax, blank at its beginning; expected the one that holds it",
                             "a blank device is not taken in its place", "--format far makes a new pool"})
      EXPECT_NE(error.doing.find(part), std::string::npos) << error.doing;
    EXPECT_EQ(devices_.get("dax1.0", 0, 4096), std::string(4096, 0));
    ASSERT_TRUE(state_.load("far") && *state_.load("far"));
    EXPECT_EQ((*state_.load("far"))->is_being_cleared, false);
  }
  spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = false;
  expect_it_is_back();
}

TEST_F(DaxPool, ANewPoolInPlaceOfOneThatIsNotToBeSeenIsMadeOnCommandOrWhenItIsForgotten) {
  for (const char* name : {"dax0.0", "dax1.0", "dax2.0"}) devices_.add(name, kBytes);
  spec_.dax.device = "node:0";
  const std::string uuid = leave_pool();
  std::filesystem::rename(devices_.path("dax0.0"), devices_.path("away0"));
  const auto made = format_on_command(spec_, state_, false, 1000);
  ASSERT_TRUE(made) << made.error().text();
  const std::string second = leave_pool();
  EXPECT_NE(second, uuid);
  EXPECT_EQ(uuid_text(header("dax1.0").uuid), second);
  std::filesystem::rename(devices_.path("dax1.0"), devices_.path("away1"));
  EXPECT_EQ(refusal().code, ENOENT);
  std::filesystem::remove(state_.file_of("far"));
  const std::string third = leave_pool();
  EXPECT_EQ(uuid_text(header("dax2.0").uuid), third);
}

// The command did nothing, and so marud knows the pool still that is somewhere.
TEST_F(UnseenDaxPool, IsNotForgottenByACommandThatFails) {
  const uint64_t page_bytes = spec_.pool.page_bytes;
  spec_.pool.page_bytes = kBytes;  // a shape that the device has no room for
  const auto made = format_on_command(spec_, state_, false, 1000);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, EINVAL) << made.error().text();
  spec_.pool.page_bytes = page_bytes;
  EXPECT_EQ(refusal().code, ENOENT) << "it took a blank device in place of its own";
  expect_it_is_back();
}

// But the pool that was cleared away is nowhere.
TEST_F(DaxPool, FormatOnCommandThatFailsAfterClearingForgetsThePoolThatWasCleared) {
  devices_.add("dax0.0", kBytes);
  leave_pool();
  const uint64_t page_bytes = spec_.pool.page_bytes;
  spec_.pool.page_bytes = kBytes;
  const auto made = format_on_command(spec_, state_, true, 1000);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, EINVAL) << made.error().text();
  spec_.pool.page_bytes = page_bytes;
  spec_.dax.device = "node:0";
  leave_pool();
  EXPECT_EQ(header("dax0.0").magic, format::kMagic);
}

// Its content went with the power, unless a device that cannot be read says something else.
TEST_F(DaxPool, APoolInVolatileMemoryOfAnotherBootIsReplacedOnceAllDevicesAreRead) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  devices_.add("dax1.0", kBytes, DaxStandIn::kVolatile);
  spec_.dax.device = "node:0";
  const std::string uuid = leave_pool();
  pretend_other_boot("dax0.0", false);
  std::filesystem::rename(devices_.path("dax0.0"), devices_.path("away"));
  EXPECT_EQ(refusal().code, ENOENT);
  devices_.add("dax2.0", kBytes, DaxStandIn::kVolatile);  // and another name
  devices_.remove("dax0.0", DaxStandIn::kVolatile);
  const std::string second = leave_pool();
  EXPECT_NE(second, uuid);
  EXPECT_EQ(uuid_text(header("dax1.0").uuid), second);
}

TEST_F(DaxPool, ABlankDeviceUnderTheNameOfAPoolThatIsElsewhereIsRefused) {
  devices_.add("dax0.0", kBytes);
  const std::string uuid = leave_pool();
  devices_.rename("dax0.0", "dax7.0");
  devices_.add("dax0.0", kBytes);
  const Error error = refusal();
  EXPECT_EQ(error.code, EEXIST);
  EXPECT_NE(error.doing.find("found it blank, expected the pool that it was, " + uuid + ", which is on " +
                             devices_.path("dax7.0")),
            std::string::npos)
      << error.doing;
  EXPECT_EQ(devices_.get("dax0.0", 0, 4096), std::string(4096, 0));
  spec_.dax.device = "uuid:" + uuid;
  EXPECT_EQ(leave_pool(), uuid);
  // Nowhere any more: somebody made the device blank.
  devices_.remove("dax7.0");
  spec_.dax.device = devices_.path("dax7.0");
  devices_.add("dax7.0", kBytes);
  EXPECT_NE(leave_pool(), uuid);
}

// The device that was chosen is not blank any more, and no pool yet: it is found again all the same, by itself alone.
TEST_F(DaxPool, FormattingThatWasCutOffIsFoundAgainWhereADeviceIsChosen) {
  constexpr size_t kUuid = offsetof(format::Header, uuid);
  for (const char* wish : {"node:0", "cxl:free"}) {
    SCOPED_TRACE(wish);
    state_.remove("far");
    const std::string parent = wish[0] == 'c' ? DaxStandIn::kCxl : DaxStandIn::kPersistent;
    devices_.add("dax0.0", kBytes, parent);
    const uint64_t claim = shm::FormatClaim::of(0).bits;
    devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
    devices_.put("dax0.0", kUuid, std::string(16, 'u'));
    spec_.dax.device = wish;
    {
      auto pool = start();
      ASSERT_TRUE(pool) << pool.error().text();
      EXPECT_EQ(uuid_of(**pool), "75757575-7575-7575-7575-757575757575") << "whoever begins again keeps it";
      (*pool)->stop(false);
    }
    devices_.remove("dax0.0", parent);
  }
}

// A death between the two words of the uuid.
TEST_F(DaxPool, HalfAUuidBesideAClaimIsNoPools) {
  constexpr size_t kUuid = offsetof(format::Header, uuid);
  const uint64_t claim = shm::FormatClaim::of(0).bits;
  for (const size_t half : {0, 8}) {
    SCOPED_TRACE(half);
    state_.remove("far");
    devices_.add("dax0.0", kBytes);
    devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
    devices_.put("dax0.0", kUuid + half, std::string(8, 'u'));
    leave_pool();
    const format::Header made = header("dax0.0");
    uint64_t words[2];
    std::memcpy(words, made.uuid, sizeof(words));
    EXPECT_NE(words[0], 0u);
    EXPECT_NE(words[1], 0u);
    devices_.remove("dax0.0", DaxStandIn::kPersistent);
  }
}

// Of two new pools that may lie on the same devices the one is formatted, and cut off; the other one is started first.
TEST_F(DaxPool, FormattingThatWasCutOffIsLeftToItsPool) {
  for (const char* name : {"dax0.0", "dax1.0"}) devices_.add(name, kBytes);
  spec_.dax.device = "node:0";
  const uint64_t claim = shm::FormatClaim::of(0).bits;
  const std::string cut_off(reinterpret_cast<const char*>(&claim), sizeof(claim));
  devices_.put("dax0.0", 0, cut_off);
  devices_.put("dax0.0", offsetof(format::Header, uuid), std::string(16, 'u'));
  PoolRecord record;
  record.pool = "near";
  record.uuid.fill('u');
  record.dax_name = "dax0.0";
  record.is_being_formatted = true;
  ASSERT_TRUE(state_.save(record));
  const std::string uuid = leave_pool();
  EXPECT_EQ(devices_.get("dax0.0", 0, 8), cut_off) << "the pool \"far\" has taken what the pool \"near\" had begun";
  EXPECT_EQ(header("dax1.0").magic, format::kMagic);
  spec_.pool.name = "third";
  EXPECT_EQ(refusal().code, ENOENT);
  spec_.dax.device = devices_.path("dax0.0");
  EXPECT_EQ(refusal().code, EEXIST);
  spec_.dax.device = "node:0";
  spec_.pool.name = "near";
  EXPECT_EQ(leave_pool(), "75757575-7575-7575-7575-757575757575");
  spec_.pool.name = "far";
  EXPECT_EQ(leave_pool(), uuid);
}

// What stands in the state file is what the claim will have, and keeps the pool from nothing when there is no claim.
TEST_F(DaxPool, TheStateFileSaysWhatIsFormattedBeforeItIs) {
  devices_.add("dax0.0", kBytes);
  spec_.dax.device = "node:0";
  const uint64_t page_bytes = spec_.pool.page_bytes;
  spec_.pool.page_bytes = kBytes;  // a shape that the device has no room for
  EXPECT_EQ(refusal().code, EINVAL);
  auto record = state_.load("far");
  ASSERT_TRUE(record && *record);
  EXPECT_TRUE((*record)->is_being_formatted);
  EXPECT_NE((*record)->uuid, Uuid{});
  devices_.rename("dax0.0", "dax1.0");
  spec_.pool.page_bytes = page_bytes;
  const std::string uuid = leave_pool();
  record = state_.load("far");
  ASSERT_TRUE(record && *record);
  EXPECT_TRUE((*record)->is_made());
  EXPECT_EQ((*record)->dax_name, "dax1.0");
  uint8_t known[16];
  std::memcpy(known, (*record)->uuid.data(), sizeof(known));
  EXPECT_EQ(uuid_text(known), uuid);
}

std::string bytes_of(const shm::ClearingMark& mark) {
  return std::string(reinterpret_cast<const char*>(&mark.bits), sizeof(mark.bits));
}

// Has `work` find a SIGTERM that waits: whatever takes long is cut off before its first byte.
void while_told_to_stop(const std::function<void()>& work) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &term, &before), 0);
  ASSERT_EQ(::raise(SIGTERM), 0);
  work();
  const timespec at_once = {};
  ASSERT_EQ(::sigtimedwait(&term, nullptr, &at_once), SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

// Clearing, cut off after each of its steps: docs/format.md, "Give up".
TEST_F(DaxPool, ClearingThatWasCutOffIsFoundAgainWhereADeviceIsChosen) {
  constexpr size_t kUuid = offsetof(format::Header, uuid);
  const std::string mark = bytes_of(shm::ClearingMark::of(false, false));
  const std::string with_uuid = bytes_of(shm::ClearingMark::of(false, true));
  const std::string old(kUuid - 8, 'o'), uuid(16, 'u'), half = std::string(8, 'u') + std::string(8, 'o');
  const std::string beginnings[] = {mark + old + std::string(16, 'o'),
                                    mark + old + half,
                                    mark + old + uuid,
                                    with_uuid + old + uuid,
                                    mark + old + uuid,
                                    mark + std::string(56, 0)};
  for (const char* wish : {"node:0", "cxl:free", "path"})
    for (const bool is_known : {true, false})
      for (size_t i = 0; i < std::size(beginnings); ++i) {
        SCOPED_TRACE(std::string(wish) + (is_known ? ", known, " : ", not known, ") + std::to_string(i));
        const std::string parent = wish[0] == 'c' ? DaxStandIn::kCxl : DaxStandIn::kPersistent;
        devices_.add("dax0.0", kBytes, parent);
        devices_.put("dax0.0", 0, beginnings[i]);
        devices_.put("dax0.0", kBytes - 7, "secret");
        PoolRecord record;
        record.pool = "far";
        record.uuid.fill('u');
        record.boot_id = "another boot";
        record.dax_name = "dax7.0";  // as it was called then
        record.is_being_cleared = true;
        if (is_known)
          ASSERT_TRUE(state_.save(record));
        else
          state_.remove("far");
        spec_.dax.device = wish[0] == 'p' ? devices_.path("dax0.0") : wish;
        {
          auto pool = start();
          ASSERT_TRUE(pool) << pool.error().text();
          EXPECT_EQ(devices_.get("dax0.0", kBytes - 7, 6), std::string(6, 0));
          EXPECT_NE(uuid_of(**pool), "75757575-7575-7575-7575-757575757575") << "it is another pool";
          (*pool)->stop(false);
        }
        devices_.remove("dax0.0", parent);
      }
}

TEST_F(DaxPool, ClearingThatWasCutOffIsLeftToItsPoolAndToOneOfThisMachine) {
  devices_.add("dax0.0", kBytes);
  spec_.dax.device = "node:0";
  leave_pool();
  // marud is told to stop before the first byte is cleared.
  pretend_other_boot("dax0.0", false);
  spec_.after_power_loss = AfterPowerLoss::kFormat;
  while_told_to_stop([&] { EXPECT_EQ(refusal().code, ECANCELED); });
  const auto mark = [&] { return devices_.get("dax0.0", 0, 8); };
  ASSERT_EQ(mark(), bytes_of(shm::ClearingMark::of(false, true)));
  spec_.pool.name = "near";
  EXPECT_EQ(refusal().code, ENOENT);
  spec_.dax.device = devices_.path("dax0.0");
  EXPECT_EQ(refusal().code, EEXIST);
  // Of a pool of several hosts another one may be at it.
  spec_.pool.name = "far";
  spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
  spec_.pool.sharing.machine_id = "aaaa";
  EXPECT_EQ(refusal().code, EEXIST);
  EXPECT_EQ(mark(), bytes_of(shm::ClearingMark::of(false, true)));
  spec_.pool.sharing = {};
  spec_.dax.device = "node:0";
  leave_pool();
  EXPECT_EQ(header("dax0.0").magic, format::kMagic);
}

// To another host, which no lock keeps from the device, it looks as if it had been cut off. The command was given for a pool of
// several hosts, or for one of this host in the place of such a pool.
TEST_F(DaxPool, WhatAnotherHostIsClearingIsTakenByForceAlone) {
  for (const bool is_pool_shared : {true, false}) {
    SCOPED_TRACE(is_pool_shared);
    devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
    const std::string path = devices_.path("dax0.0");
    spec_.dax.device = path;
    const auto share = [&] {
      spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
      spec_.pool.sharing.hosts = 2;
      spec_.pool.sharing.machine_id = "aaaa";
      spec_.pool.sharing.boot_id = "11111111-1111-4111-8111-111111111111";
    };
    share();
    leave_pool();
    if (!is_pool_shared) spec_.pool.sharing = {};
    while_told_to_stop([&] {
      const auto cut_off = format_on_command(spec_, state_, true, 1000);
      ASSERT_FALSE(cut_off);
      EXPECT_EQ(cut_off.error().code, ECANCELED) << cut_off.error().text();
    });
    const std::string mark = devices_.get("dax0.0", 0, 64);
    // The other host, also when it had a pool there once, in memory that lost power since.
    spec_.pool.sharing = {};
    for (const bool has_record : {false, true}) {
      const StateDirectory elsewhere(directory_.file("elsewhere"));
      PoolRecord record;
      record.pool = "far";
      record.uuid.fill('v');
      record.boot_id = "another boot";
      record.dax_name = "dax0.0";
      record.device.bytes = kBytes;
      record.is_volatile = true;
      if (has_record)
        ASSERT_TRUE(elsewhere.save(record));
      else
        elsewhere.remove("far");
      std::map<std::string, FileDescriptor> stored;
      for (const std::string& wish : {std::string("node:0"), path}) {
        SCOPED_TRACE(wish);
        spec_.dax.device = wish;
        const auto started = HostedPool::start(spec_, elsewhere, stored, 1000);
        EXPECT_FALSE(started);
        const auto made = format_on_command(spec_, elsewhere, false, 1000);
        EXPECT_FALSE(made);
        EXPECT_EQ(devices_.get("dax0.0", 0, 64), mark);
      }
    }
    // Nor does this one go on by itself.
    spec_.dax.device = path;
    if (is_pool_shared) share();
    EXPECT_EQ(refusal().code, EEXIST);
    EXPECT_EQ(devices_.get("dax0.0", 0, 64), mark);
    const auto made = format_on_command(spec_, state_, true, 1000);
    ASSERT_TRUE(made) << made.error().text();
    EXPECT_EQ(header("dax0.0").magic, format::kMagic);
    spec_.pool.sharing = {};
    state_.remove("far");
    devices_.remove("dax0.0", DaxStandIn::kVolatile);
  }
}

// The command, given again.
TEST_F(DaxPool, FormatOnCommandGoesOnWithWhatWasCutOff) {
  devices_.add("dax0.0", kBytes);
  const uint64_t claim = shm::FormatClaim::of(0).bits;
  for (const std::string& begin : {std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)),
                                   bytes_of(shm::ClearingMark::of(false, true))})
    for (const char* wish : {"node:0", "path"}) {
      SCOPED_TRACE(wish);
      devices_.put("dax0.0", 0, std::string(4096, 0));
      devices_.put("dax0.0", 0, begin);
      spec_.dax.device = wish[0] == 'p' ? devices_.path("dax0.0") : wish;
      const auto made = format_on_command(spec_, state_, false, 1000);
      ASSERT_TRUE(made) << made.error().text();
      EXPECT_EQ(header("dax0.0").magic, format::kMagic);
    }
}

TEST_F(DaxPool, FormattingThatAnotherHostBeganIsNoCandidate) {
  devices_.add("dax0.0", kBytes);
  const uint64_t claim = shm::FormatClaim::of(77).bits;
  devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
  spec_.dax.device = "node:0";
  const Error error = refusal();
  EXPECT_EQ(error.code, ENOENT);
  EXPECT_NE(error.text().find("another host formats it at this moment, or died over it"), std::string::npos)
      << error.text();
  EXPECT_EQ(devices_.get("dax0.0", 0, 8), std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
}

// Two pools that may lie on the same devices. The one that is new is started first, and the other's device is the only one
// there that holds a pool.
TEST_F(DaxPool, APoolThatAnotherOneIsKnownToBeIsNotAdopted) {
  devices_.add("dax0.0", kBytes);
  spec_.dax.device = "node:0";
  const std::string uuid = leave_pool();
  spec_.pool.name = "near";
  const Error none = refusal();
  EXPECT_EQ(none.code, ENOENT);
  EXPECT_NE(none.doing.find("a pool of marud, uuid " + uuid), std::string::npos) << none.doing;
  EXPECT_NE(none.doing.find("which is pool \"far\""), std::string::npos) << none.doing;
  // Not under the name of the device either, which may have become this one's; but by its uuid.
  spec_.dax.device = devices_.path("dax0.0");
  const Error named = refusal();
  EXPECT_EQ(named.code, EEXIST);
  EXPECT_NE(named.doing.find("which is pool \"far\""), std::string::npos) << named.doing;
  spec_.dax.device = "node:0";
  devices_.add("dax1.0", kBytes);
  EXPECT_NE(leave_pool(), uuid);
  spec_.pool.name = "far";
  EXPECT_EQ(leave_pool(), uuid);
  spec_.pool.name = "renamed";
  spec_.dax.device = "uuid:" + uuid;
  EXPECT_EQ(leave_pool(), uuid);
}

// Power was lost, and memory came back as zeros. What such a start leaves is the next one's.
TEST_F(DaxPool, AStartThatFailsAfterTheHeaderIsGoneOnWith) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile);
  leave_pool();
  pretend_other_boot("dax0.0", false);
  devices_.put("dax0.0", 0, std::string(kBytes, '\0'));
  spec_.pool.policy = "no-such-policy";
  EXPECT_FALSE(start());
  spec_.pool.policy = "lru";
  const auto again = start();
  EXPECT_TRUE(again) << again.error().text();
}

TEST_F(DaxPool, ACommandThatFailsAfterTheHeaderIsGoneOnWith) {
  devices_.add("dax0.0", kBytes);
  devices_.add("dax1.0", kBytes);
  leave_pool();
  spec_.dax.device = devices_.path("dax1.0");
  spec_.pool.policy = "no-such-policy";
  EXPECT_FALSE(format_on_command(spec_, state_, false, 1000));
  spec_.pool.policy = "lru";
  const auto again = start();
  EXPECT_TRUE(again) << again.error().text();
}

TEST_F(DaxPool, WhatAnotherHostHadClaimedIsMarkedAsSharedWhileItIsCleared) {
  devices_.add("dax0.0", kBytes);
  const uint64_t claim = shm::FormatClaim::of(77).bits;
  devices_.put("dax0.0", 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)));
  while_told_to_stop([&] { EXPECT_FALSE(format_on_command(spec_, state_, true, 1000)); });
  EXPECT_EQ(devices_.get("dax0.0", 0, 8), bytes_of(shm::ClearingMark::of(false, true, true)));
  const StateDirectory elsewhere(directory_.file("elsewhere"));
  std::map<std::string, FileDescriptor> stored;
  spec_.dax.device = "node:0";
  EXPECT_FALSE(HostedPool::start(spec_, elsewhere, stored, 1000));
}

// Memory decayed: the magic number is still there, and flags that nobody set.
TEST_F(LostDaxPool, AHeaderThatDecayedIsNotSharedByItsFlags) {
  std::string garbage = kGarbage;
  const uint64_t magic = format::kMagic;
  const uint32_t flags = 0xFFFF'FFFF;
  std::memcpy(garbage.data(), &magic, sizeof(magic));
  std::memcpy(garbage.data() + offsetof(format::Header, incompat_flags), &flags, sizeof(flags));
  lose(garbage);
  while_told_to_stop([&] { EXPECT_EQ(refusal().code, ECANCELED); });
  const auto again = start();
  EXPECT_TRUE(again) << again.error().text();
}

}  // namespace
}  // namespace maru::daemon
