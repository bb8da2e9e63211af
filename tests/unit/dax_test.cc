// Devices: what sysfs says of them, what lies on them, which of them a pool means. Files stand in for devices.
#include "daemon/memory/dax_device.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "tests/support/bad_beyond_end.h"
#include "tests/support/dax_stand_in.h"

#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

namespace maru::daemon {
namespace {

using test::DaxStandIn;

constexpr uint64_t kBytes = 16u << 20;

class Dax : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  DaxStandIn devices_{directory_.file("dax")};

  Result<std::unique_ptr<DaxDevice>> open(const std::string& name, uint64_t alignment = 0) {
    auto found = describe_dax_device(devices_.path(name), devices_.rules());
    if (!found) return tl::unexpected(found.error());
    return DaxDevice::open(*found, alignment, devices_.rules());
  }
  // Why it cannot be opened.
  Error refusal(const std::string& name, uint64_t alignment = 0) {
    auto opened = open(name, alignment);
    EXPECT_FALSE(opened) << name;
    return opened ? Error{0, ""} : opened.error();
  }
  DeviceLabel label(const std::string& name) {
    auto opened = open(name);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().text());
    return opened ? (*opened)->label() : DeviceLabel{};
  }
  format::Header format_pool(const std::string& name, uint8_t id, uint64_t bytes = kBytes) {
    shm::FormatWishes wishes;
    wishes.pool_bytes = bytes;
    wishes.page_bytes = 4096;
    wishes.lanes = 4;
    wishes.pins_max = 64;
    format::Parameters parameters;
    shm::Layout layout;
    EXPECT_EQ(shm::choose_parameters(wishes, &parameters), nullptr);
    EXPECT_EQ(shm::plan_layout(parameters, &layout), nullptr);
    std::vector<uint64_t> memory((layout.control_bytes + 7) / 8);
    shm::FormatIdentity identity = {};
    identity.uuid[0] = id;
    shm::ControlRegion region;
    EXPECT_EQ(
        shm::ControlRegion::format(std::as_writable_bytes(std::span(memory)), parameters, identity, true, &region),
        nullptr);
    devices_.put(name, 0, std::string(reinterpret_cast<const char*>(memory.data()), layout.control_bytes));
    return region.header();
  }
  void put_header(const std::string& name, const format::Header& header) {
    devices_.put(name, 0, std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
  }
  static Uuid uuid(uint8_t id) { return {id}; }
};

TEST_F(Dax, SysfsSaysWhatADeviceIs) {
  devices_.add("dax10.0", kBytes, DaxStandIn::kCxl, 3);
  devices_.add("dax2.0", kBytes * 2, DaxStandIn::kVolatile, 1, 4096, "kmem");
  devices_.add("dax0.0", kBytes, DaxStandIn::kPersistent, -1);
  const auto devices = list_dax_devices(devices_.rules());
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].text(), devices_.path("dax0.0") + " (16 MiB, alignment 2 MiB, devdax, persistent)");
  EXPECT_EQ(devices[1].text(),
            devices_.path("dax2.0") + " (32 MiB, alignment 4 KiB, NUMA node 1, system-ram, volatile)");
  EXPECT_EQ(devices[2].text(),
            devices_.path("dax10.0") + " (16 MiB, alignment 2 MiB, NUMA node 3, devdax, volatile, CXL)");
  EXPECT_TRUE(list_dax_devices({directory_.file("nothing"), "/dev", true}).empty());
}

TEST_F(Dax, OnlyDaxDevicesAreTakenForSome) {
  const DaxRules real;  // of this machine
  const auto null = describe_dax_device("/dev/null", real);
  ASSERT_FALSE(null);
  EXPECT_EQ(null.error().code, ENODEV);
  EXPECT_NE(null.error().doing.find("found a character device of another kind"), std::string::npos)
      << null.error().doing;
  devices_.add("dax0.0", kBytes);
  const auto file = describe_dax_device(devices_.path("dax0.0"), real);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ENODEV);
  EXPECT_NE(file.error().doing.find("say backend = \"file\""), std::string::npos) << file.error().doing;
  const auto missing = describe_dax_device(devices_.path("dax1.0"), devices_.rules());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ENOENT);
  EXPECT_NE(missing.error().doing.find("found " + devices_.path("dax0.0") + " (16 MiB"), std::string::npos)
      << missing.error().doing;
}

TEST_F(Dax, ADeviceThatCannotBeAPoolIsRefusedAndSaysWhy) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kVolatile, 0, 2u << 20, "kmem");
  EXPECT_EQ(refusal("dax0.0").code, EBUSY);
  EXPECT_NE(refusal("dax0.0").doing.find("the mode system-ram"), std::string::npos);
  devices_.add("dax1.0", kBytes, DaxStandIn::kVolatile, 0, 2u << 20, "");
  EXPECT_EQ(refusal("dax1.0").code, ENODEV);
  devices_.add("dax2.0", kBytes + 4096);
  EXPECT_NE(refusal("dax2.0").doing.find("expected a multiple of its alignment of 2 MiB; make the device anew"),
            std::string::npos);
  devices_.add("dax3.0", kBytes);
  EXPECT_NE(refusal("dax3.0", 1u << 30).doing.find("found an alignment of 2 MiB, configured is 1 GiB"),
            std::string::npos);
  EXPECT_TRUE(open("dax3.0", 2u << 20));
  devices_.add("dax4.0", 0);
  EXPECT_NE(refusal("dax4.0").doing.find("that it has no memory"), std::string::npos);
  devices_.add("dax5.0", 128u << 10, DaxStandIn::kVolatile, 0, 4096);
  EXPECT_NE(refusal("dax5.0").doing.find("found 128 KiB, expected at least 256 KiB; make the device larger"),
            std::string::npos);
}

TEST_F(Dax, ADeviceIsTakenByOneMarudAlone) {
  devices_.add("dax0.0", kBytes);
  auto first = open("dax0.0");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)->map_alignment(), 2u << 20);
  EXPECT_EQ((*first)->bytes(), kBytes);
  EXPECT_EQ(refusal("dax0.0").code, EBUSY);
  // Clients that outlive marud hold copies of the descriptor, and must not keep the next marud out.
  FileDescriptor held(::dup((*first)->fd()));
  first->reset();
  EXPECT_TRUE(open("dax0.0"));
}

TEST_F(Dax, WhatLiesOnADeviceIsNamed) {
  devices_.add("dax0.0", kBytes);
  EXPECT_EQ(label("dax0.0").kind, DeviceLabel::Kind::kNothing);
  const struct {
    uint64_t offset;
    std::string bytes;
    const char* found;
  } known[] = {{0x438, "\x53\xEF", "an ext2, ext3 or ext4 file system"},
               {0, "XFSB", "an XFS file system"},
               {0x10040, "_BHRfS_M", "a btrfs file system"},
               {0, "LUKS\xba\xbe", "an encrypted volume (LUKS)"},
               {0x218, "LVM2 001", "a physical volume of LVM"},
               {0x200, "EFI PART", "a partition table (GPT)"},
               {0xff6, "SWAPSPACE2", "swap space"},
               {0, "PMEMOBJ", "an object pool of the PMDK"},
               {0x3000, "x", "content that is not marud's"}};
  for (const auto& [offset, bytes, found] : known) {
    devices_.put("dax0.0", 0, std::string(128u << 10, 0));
    devices_.put("dax0.0", offset, bytes);
    EXPECT_EQ(label("dax0.0").kind, DeviceLabel::Kind::kForeign) << found;
    EXPECT_EQ(label("dax0.0").found, found);
  }
}

TEST_F(Dax, APoolThatCannotBeUsedIsNoPool) {
  devices_.add("dax0.0", kBytes);
  format::Header header = format_pool("dax0.0", 7);
  EXPECT_EQ(label("dax0.0").kind, DeviceLabel::Kind::kPool);
  EXPECT_EQ(label("dax0.0").uuid, uuid(7));
  header.version_major = 9;
  header.checksum = shm::header_checksum(header);
  put_header("dax0.0", header);
  EXPECT_EQ(label("dax0.0").kind, DeviceLabel::Kind::kDamaged);
  EXPECT_EQ(label("dax0.0").found,
            "a pool of marud with version 9." + std::to_string(format::kVersionMinor) + " of the format");
  header.created_unix_ms ^= 1;
  put_header("dax0.0", header);
  EXPECT_EQ(label("dax0.0").kind, DeviceLabel::Kind::kDamaged);
}

TEST_F(Dax, EveryByteOfADeviceIsLookedAt) {
  const uint64_t bytes = (256u << 20) + kBytes;  // more than one window
  devices_.add("dax0.0", bytes);
  auto device = open("dax0.0");
  ASSERT_TRUE(device);
  uint64_t told = 0;
  const Progress tell = [&](uint64_t done, uint64_t of) {
    EXPECT_EQ(of, bytes);
    told = done;
    return true;
  };
  EXPECT_FALSE(find_content((*device)->content(), tell)->has_value());
  EXPECT_EQ(told, bytes);
  for (const uint64_t at : {bytes - 1, (uint64_t{256} << 20) + 1, uint64_t{4u << 20}}) {
    devices_.put("dax0.0", at, "x");
    EXPECT_EQ(find_content((*device)->content(), {})->value_or(0), at);
  }
  ASSERT_TRUE(give_up_content((*device)->content(), false, uuid(7)));
  const auto given_up = read_label((*device)->content());
  ASSERT_TRUE(given_up);
  EXPECT_EQ(given_up->kind, DeviceLabel::Kind::kGivenUp);
  EXPECT_EQ(given_up->uuid, uuid(7));
  ASSERT_TRUE(clear_content((*device)->content(), {}));
  EXPECT_FALSE(find_content((*device)->content(), {})->has_value());
  const auto stopped = clear_content((*device)->content(), [](uint64_t, uint64_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ECANCELED);
}

TEST_F(Dax, MemoryThatCannotBeReadIsAnErrorAndNotZeros) {
  devices_.add("dax0.0", kBytes);
  auto device = open("dax0.0");
  ASSERT_TRUE(device);
  std::filesystem::resize_file(devices_.path("dax0.0"), kBytes / 2);
  const auto found = find_content((*device)->content(), {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, EIO);
}

TEST_F(Dax, APoolIsFoundByItsUuidWhateverTheDeviceIsCalled) {
  for (const char* name : {"dax0.0", "dax1.0", "dax2.0"}) devices_.add(name, kBytes);
  format_pool("dax1.0", 7);
  const std::string wish = "uuid:07000000-0000-0000-0000-000000000000";
  const auto find = [&] {
    return find_dax_devices(wish, {}, DeviceLabel::Kind::kPool, BlankDevices::kElse, devices_.rules());
  };
  ASSERT_TRUE(find());
  EXPECT_EQ(find()->at(0).name, "dax1.0");
  devices_.rename("dax1.0", "dax9.0");
  ASSERT_TRUE(find());
  EXPECT_EQ(find()->at(0).name, "dax9.0");
  format_pool("dax2.0", 7);  // a copy
  ASSERT_FALSE(find());
  EXPECT_EQ(find().error().code, ENOTUNIQ);
  devices_.remove("dax2.0");
  devices_.remove("dax9.0");
  ASSERT_FALSE(find());
  EXPECT_EQ(find().error().code, ENOENT);
  EXPECT_NE(find().error().doing.find("dax0.0, devdax, blank at its beginning"), std::string::npos);
}

TEST_F(Dax, ANodeMeansItsDeviceThatHoldsThePoolElseABlankOne) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kPersistent, 0);
  devices_.add("dax1.0", kBytes, DaxStandIn::kPersistent, 1);
  devices_.add("dax2.0", kBytes, DaxStandIn::kCxl, 1);
  devices_.add("dax3.0", kBytes, DaxStandIn::kCxl, 1, 2u << 20, "kmem");
  const auto find = [&](const char* wish, std::optional<Uuid> known = std::nullopt,
                        BlankDevices blank = BlankDevices::kElse) {
    std::string names;
    const auto found = find_dax_devices(wish, known, DeviceLabel::Kind::kPool, blank, devices_.rules());
    if (!found) return std::string(std::generic_category().message(found.error().code));
    for (const DaxDescription& device : *found) names += device.name + " ";
    return names;
  };
  EXPECT_EQ(find("node:0"), "dax0.0 ");
  EXPECT_EQ(find("node:1"), "dax1.0 dax2.0 ");
  EXPECT_EQ(find("cxl:free"), "dax2.0 ");
  EXPECT_EQ(find("node:7"), "No such file or directory");
  format_pool("dax2.0", 7);
  EXPECT_EQ(find("node:1"), "dax2.0 ");           // the only pool there
  EXPECT_EQ(find("node:1", uuid(8)), "dax1.0 ");  // another pool than this one
  EXPECT_EQ(find("node:1", uuid(8), BlankDevices::kIfAllAreRead), "dax1.0 ");
  EXPECT_EQ(find("node:1", uuid(8), BlankDevices::kNever), "No such file or directory") << "it is somewhere";
  EXPECT_EQ(find("node:1", uuid(7), BlankDevices::kNever), "dax2.0 ");
  EXPECT_EQ(find("node:1", std::nullopt, BlankDevices::kFirst), "dax1.0 ");
  {
    const auto other = open("dax2.0");  // a pool that names it by its path
    EXPECT_EQ(find("node:1"), "dax1.0 ");
    EXPECT_EQ(find("cxl:free"), "No such file or directory");
    EXPECT_EQ(find("node:1", uuid(7)), "dax2.0 ") << "opening it says that it is busy";
  }
  format_pool("dax1.0", 8);
  EXPECT_EQ(find("node:1", uuid(8)), "dax1.0 ");
  EXPECT_EQ(find("node:1"), "Name not unique on network");  // ENOTUNIQ: which one?
}

TEST_F(Dax, WhyADeviceIsNotReadIsSaidAndTheDevicesElsewhere) {
  devices_.add("dax0.0", kBytes, DaxStandIn::kPersistent, 0);
  devices_.add("dax1.0", kBytes, DaxStandIn::kPersistent, 1);
  devices_.add("dax2.0", kBytes, DaxStandIn::kPersistent, 1);
  const auto text = [&](const std::string& wish, BlankDevices blank = BlankDevices::kElse) {
    const auto found = find_dax_devices(wish, uuid(7), DeviceLabel::Kind::kPool, blank, devices_.rules());
    return found ? "found " + found->front().name : found.error().doing;
  };
  const auto expect = [&](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  const std::string elsewhere = "found none there, and elsewhere " + devices_.path("dax0.0") + " (16 MiB";
  expect(text("node:9"), elsewhere);
  expect(text("node:9"), "NUMA node 1, devdax");
  expect(text("cxl:free"), elsewhere);
  // As one whose name udev has not made yet.
  std::filesystem::rename(devices_.path("dax1.0"), devices_.path("later"));
  const std::string unread = devices_.path("dax1.0") + ", devdax, which cannot be opened: No such file or directory";
  expect(text("uuid:07000000-0000-0000-0000-000000000000"), unread);
  expect(text("node:1", BlankDevices::kIfAllAreRead), unread);
  expect(text("node:1", BlankDevices::kIfAllAreRead),
         "expected the one that holds it, or that all of these can be read");
  expect(text("node:1"), "found dax2.0");
  // One with bad memory at its beginning.
  std::filesystem::rename(devices_.path("later"), devices_.path("dax1.0"));
  std::filesystem::resize_file(devices_.path("dax1.0"), 0);
  const test::BadBeyondEnd bad;
  expect(text("node:1", BlankDevices::kNever), devices_.path("dax1.0") + ", devdax, which cannot be read: ");
  expect(text("node:1", BlankDevices::kNever), "(a memory error at byte 0)");
}

TEST_F(Dax, WishesHaveAForm) {
  for (const char* good : {"/dev/dax0.0", "uuid:07000000-0000-0000-0000-000000000000", "node:0", "cxl:free"})
    EXPECT_FALSE(check_dax_wish(good)) << good;
  for (const char* bad : {"", "dax0.0", "uuid:07", "node:", "node:x", "node:-1", "node:1x", "cxl:", "free"})
    EXPECT_TRUE(check_dax_wish(bad)) << bad;
}

}  // namespace
}  // namespace maru::daemon
