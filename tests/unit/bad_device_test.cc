// Devices with bad memory: it is not taken for zeros, and nothing is formatted there. What other trouble may pass.
#include "daemon/hosting/dax_format.h"
#include "daemon/memory/dax_device.h"
#include "daemon/memory/split_device.h"
#include "libmaru/shm/region/format_claim.h"
#include "tests/support/bad_beyond_end.h"
#include "tests/support/memory_error.h"
#include "tests/unit/dax_pool_fixture.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kBytes = 16u << 20;

// A device of which the bytes from some place on cannot be read.
class BadDevice : public DaxPool {
 protected:
  BadDevice() {
    devices_.add("dax0.0", kBytes);
    fd_.reset(::open(devices_.path("dax0.0").c_str(), O_RDWR | O_CLOEXEC));
  }
  void set_good(uint64_t bytes) const { ASSERT_EQ(::ftruncate(fd_.get(), off_t(bytes)), 0); }
  DeviceBytes bytes(uint64_t alignment = 2u << 20) const { return {fd_.get(), kBytes, alignment, "it"}; }
  template <typename T>
  static void expect_trouble(const Result<T>& result, const std::string& part = "(a memory error at byte ") {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, EHWPOISON) << "not EIO: time mends it not, so nobody tries again on his own";
    EXPECT_NE(result.error().doing.find(part), std::string::npos) << result.error().doing;
  }

  FileDescriptor fd_;
  const test::BadBeyondEnd bad_;
};

TEST_F(BadDevice, ItsBeginningIsNotTakenForZeros) {
  set_good(0);
  expect_trouble(read_label(bytes()), "cannot be read (a memory error at byte 0)");
  set_good(4096);  // a part as large as the alignment goes, and not the page alone: a device is not split
  expect_trouble(read_label(bytes(1u << 30)), "(a memory error at byte 0)");
}

TEST_F(BadDevice, ContentUnderIsNotNothing) {
  const auto find = [&] { return find_content(bytes(), {}); };
  const auto blank = find();
  EXPECT_TRUE(blank && !*blank);
  set_good(kBytes / 2);
  expect_trouble(find());
  devices_.put("dax0.0", 5, "x");
  const auto found = find();
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(*found, std::optional<uint64_t>(5)) << "which says enough";
}

TEST_F(BadDevice, IsNeitherGivenUpNorCleared) {
  ASSERT_TRUE(give_up_content(bytes(), false, Uuid{7}));
  set_good(kBytes / 2);
  expect_trouble(clear_content(bytes(), {}));
  const auto label = read_label(bytes());
  ASSERT_TRUE(label) << label.error().text();
  EXPECT_EQ(label->kind, DeviceLabel::Kind::kGivenUp) << "the mark stays, since it is not clear";
  set_good(0);
  expect_trouble(give_up_content(bytes(), false, Uuid{7}), "cannot be written (a memory error at byte 0)");
}

TEST_F(BadDevice, AWindowLosesPartsOfTheAlignmentOfTheDevice) {
  constexpr uint64_t kPart = 64u << 10, kAt = 2u << 20;
  devices_.put("dax0.0", kAt, std::string(4 * kPart, 'x'));
  std::string around;
  uint64_t lost_at = 0;
  const auto look = [&](std::span<std::byte> part, uint64_t offset) {
    if (offset != kAt) return;
    const auto start = reinterpret_cast<uintptr_t>(part.data());
    const uint64_t first = (start + 2 * kPart) / kPart * kPart - start;
    ASSERT_TRUE(test::raise_memory_error(part.data() + first + kPart / 2, BUS_MCEERR_AR));
    lost_at = offset + first;
    for (const uint64_t at : {first - 1, first, first + kPart - 1, first + kPart}) around += char(part[at]);
  };
  const auto looked = look_at_all(bytes(kPart), PROT_READ, look, {});
  expect_trouble(looked, "(a memory error at byte " + std::to_string(lost_at));
  EXPECT_EQ(around, std::string("x\0\0x", 4));
}

TEST_F(BadDevice, NoPagesAreLabelledThere) {
  devices_.add("dax1.0", kBytes);
  const auto open = [&](const char* name) {
    return DaxDevice::open(describe_dax_device(devices_.path(name), devices_.rules()).value(), 0, devices_.rules());
  };
  auto control = open("dax1.0"), pages = open("dax0.0");
  ASSERT_TRUE(control && pages);
  auto split = SplitDevice::join(std::move(*control), std::move(*pages));
  ASSERT_TRUE(split) << split.error().text();
  set_good(0);
  const uint8_t id[16] = {7};
  expect_trouble((*split)->label_pages(id, false), "cannot be written (a memory error at byte 0)");
}

TEST_F(BadDevice, NoCommandFormatsIt) {
  set_good(kBytes / 2);
  const auto format = [&] { return format_on_command(spec_, state_, false, 1000); };
  expect_trouble(format());
  // A formatting that was cut off goes on without a look at what is there, and meets it in the control region.
  const uint64_t claim = shm::FormatClaim::of(0).bits;
  const std::string begun(reinterpret_cast<const char*>(&claim), sizeof(claim));
  devices_.put("dax0.0", 0, begun);
  set_good(128u << 10);
  expect_trouble(format(), "found bad memory at byte 0");
  // And not where the claim is: the formatting seems to succeed.
  devices_.add("dax1.0", kBytes, test::DaxStandIn::kPersistent, 0, 128u << 10);
  devices_.put("dax1.0", 0, begun);
  std::filesystem::resize_file(devices_.path("dax1.0"), 128u << 10);
  spec_.dax.device = devices_.path("dax1.0");
  expect_trouble(format(), "the machine reports bad memory at byte ");
}

TEST_F(BadDevice, WhatTimeMayMendIsTriedAgain) {
  const auto is_tried = [&](int code) {
    return HostedPool::unavailable(spec_, state_, {code, "open it"})->may_become_available();
  };
  EXPECT_TRUE(is_tried(ENODEV)) << "no device yet";
  EXPECT_TRUE(is_tried(EUSERS)) << "a host of a shared pool may leave";
  EXPECT_TRUE(is_tried(ESTALE)) << "it changed while it was opened";
  EXPECT_FALSE(is_tried(EEXIST)) << "something else lies there";
}

}  // namespace
}  // namespace maru::daemon
