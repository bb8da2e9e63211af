// What becomes of a pool in two files: created, formatted, adopted, or refused with what was found, expected, and to be done.
#include "daemon/hosting/hosted_pool.h"
#include "daemon/memory/file_device.h"
#include "daemon/memory/split_device.h"
#include "libmaru/base/mapping.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/data_label.h"
#include "libmaru/shm/region/format_claim.h"
#include "maru/format/data_label.h"
#include "tests/support/wait_until.h"
#include "tests/unit/startable_pool.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

namespace maru::daemon {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBytes = 8u << 20;

class FilePool : public StartablePool {
 protected:
  std::string control_ = directory_.file("control"), pages_ = directory_.file("pages");

  FilePool() : StartablePool(Backend::kFile) {
    spec_.path = pages_;
    spec_.control_path = control_;
    spec_.bytes = kBytes;
  }
  void expect_refusal(const std::string& part) {
    const std::string text = refusal().text();
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  static void put(const std::string& path, uint64_t at, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(at));
    file << bytes;
  }
  static std::string get(const std::string& path, size_t bytes) {
    std::ifstream file(path, std::ios::binary);
    std::string text(bytes, 0);
    file.read(text.data(), std::streamsize(bytes));
    return text;
  }
  // As if marud had died before the header was written: the claim, and the uuid beside it.
  static void cut_off(const std::string& path) {
    constexpr size_t kUuid = offsetof(format::Header, uuid), kUuidEnd = kUuid + 16;
    const uint64_t claim = shm::FormatClaim::of(0).bits;
    put(path, 0, std::string(reinterpret_cast<const char*>(&claim), sizeof(claim)) + std::string(kUuid - 8, 0));
    put(path, kUuidEnd, std::string(sizeof(format::Header) - kUuidEnd, 0));
  }
  static void pretend_other_boot(const std::string& path, bool in_order) {
    format::HostRecord host;
    const uint64_t at = header(path).sections[format::kSectionHosts].offset;
    std::memcpy(&host, get(path, at + sizeof(host)).data() + at, sizeof(host));
    switch_off(host, in_order);
    put(path, at, std::string(reinterpret_cast<const char*>(&host), sizeof(host)));
  }
  static format::Header header(const std::string& path) {
    format::Header header;
    std::memcpy(&header, get(path, sizeof(header)).data(), sizeof(header));
    return header;
  }
  uint64_t epoch_at_start() {
    auto pool = start();
    EXPECT_TRUE(pool) << pool.error().text();
    if (!pool) return 0;
    const uint64_t epoch = (*pool)->serving()->epoch();
    (*pool)->stop(false);
    return epoch;
  }
  static void make_blank(const std::string& path, uint64_t bytes) {
    std::ofstream(path, std::ios::binary);
    ASSERT_EQ(::truncate(path.c_str(), off_t(bytes)), 0);
  }
};

TEST_F(FilePool, InTwoFilesIsFormattedAndThenAdopted) {
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  const std::string uuid = uuid_of(**pool);
  const Device& device = (*pool)->serving()->device();
  ASSERT_TRUE(device.is_split());
  EXPECT_EQ(device.kind(), "file");
  EXPECT_EQ(fs::file_size(control_) + fs::file_size(pages_), kBytes);
  EXPECT_EQ((*pool)->serving()->header().parameters.pool_bytes, kBytes);
  for (const std::string& path : {control_, pages_}) {
    struct stat status = {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << path;
  }
  EXPECT_EQ(::fcntl(device.read_only_fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  expect_refusal("another marud has it");
  (*pool)->stop(false);
  pool->reset();
  expect_adoption(uuid, 2);
}

// Its client has outlived marud.
TEST_F(FilePool, ALaneThatIsStillMappedKeepsNoMarudOut) {
  for (const bool is_split : {true, false}) {
    if (!is_split) spec_.control_path.clear(), fs::remove(pages_);
    FileDescriptor control;
    auto pool = start();
    ASSERT_TRUE(pool) << pool.error().text();
    ASSERT_TRUE((*pool)->serving()->attach({17, 5, 5, 99}, 0, 0, 1000, &control));
    ASSERT_TRUE(control.is_open());
    pool->reset();
    pool = start();
    ASSERT_TRUE(pool) << pool.error().text();
    EXPECT_EQ((*pool)->serving()->lock_of(1), LaneLock::kHeld);
    expect_refusal("another marud has it");
    control.reset();
    EXPECT_EQ((*pool)->serving()->lock_of(1), LaneLock::kFree);
  }
}

TEST_F(FilePool, SizesOfFilesThatAreThereMayBeAny) {
  make_blank(control_, 1u << 20);
  make_blank(pages_, kBytes);
  spec_.bytes = 0;
  auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->header().parameters.pool_bytes, kBytes + (1u << 20));
  pool->reset();
  spec_.bytes = kBytes;
  expect_refusal("found 1048576 and 8388608 bytes, expected 8388608 together, as configured");
  spec_.bytes = kBytes + (1u << 20);
  EXPECT_TRUE(start());
}

TEST_F(FilePool, OneOfTheTwoFilesAloneIsRefusedAndNothingMade) {
  const std::string uuid = leave_pool(), elsewhere = directory_.file("elsewhere");
  for (const auto& [gone, there, has] : {std::tuple(control_, pages_, "which has its control region"),
                                         std::tuple(pages_, control_, "which has its pages")}) {
    fs::rename(gone, elsewhere);
    const std::string before = get(there, 4096);
    expect_refusal("found it without \"" + gone + "\", " + has + ", expected both or neither");
    EXPECT_FALSE(fs::exists(gone));
    EXPECT_EQ(get(there, 4096), before);
    fs::rename(elsewhere, gone);
  }
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(FilePool, PagesOfAnotherPoolAreRefused) {
  const std::string uuid = leave_pool();
  const std::string other_pages = directory_.file("other-pages"), other_control = directory_.file("other-control");
  spec_.path = other_pages;
  spec_.control_path = other_control;
  const std::string other = leave_pool();
  spec_.control_path = control_;
  expect_refusal("found the pages of a pool of marud, uuid " + other + ", expected those of a pool of marud, uuid " +
                 uuid);
  // A blank file is none of its pages either.
  make_blank(directory_.file("blank"), fs::file_size(pages_));
  spec_.path = directory_.file("blank");
  expect_refusal("found zeros, expected those of");
  // Nor are these pages to be written over because their control region is not named.
  spec_.path = pages_;
  spec_.control_path = directory_.file("blank");
  spec_.bytes = 0;
  expect_refusal("found the pages of a pool of marud, uuid " + uuid + " beside");
  EXPECT_EQ(get(directory_.file("blank"), 4096), std::string(4096, 0));
  spec_.control_path = control_;
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(FilePool, AnotherPoolInItsFileIsRefused) {
  spec_.control_path.clear();
  const std::string uuid = leave_pool(), other_path = directory_.file("other");
  spec_.pool.name = "other";
  spec_.path = other_path;
  const std::string other = leave_pool();
  spec_.pool.name = "far";
  spec_.path = pages_;
  fs::rename(pages_, directory_.file("kept"));
  fs::copy_file(other_path, pages_);
  expect_refusal("found a pool of marud, uuid " + other);
  expect_refusal("expected the pool that it was, " + uuid + "; bring that file back, or remove " +
                 state_.file_of("far"));
  fs::rename(directory_.file("kept"), pages_);
  EXPECT_EQ(leave_pool(), uuid);
  // Another file is another pool; and so is what is there once the one before is forgotten.
  spec_.path = directory_.file("another");
  fs::copy_file(other_path, spec_.path);
  EXPECT_EQ(leave_pool(), other);
  fs::copy_file(pages_, spec_.path, fs::copy_options::overwrite_existing);
  expect_refusal("expected the pool that it was, " + other);
  fs::remove(state_.file_of("far"));
  EXPECT_EQ(leave_pool(), uuid);
  fs::remove(spec_.path);
  EXPECT_NE(leave_pool(), uuid) << "a file that is gone is made anew";
}

// Or a marud whose disk is full would make a pool that the next one refuses.
TEST_F(FilePool, APoolThatWasMadeAnewIsKnownThoughItsRecordCouldNotBeWritten) {
  for (const bool in_two : {true, false}) {
    if (!in_two) spec_.control_path.clear();
    const std::string uuid = leave_pool(), in_the_way = state_.file_of("far") + ".next";
    for (const std::string& path : {pages_, control_}) fs::remove(path);
    ASSERT_TRUE(fs::create_directory(in_the_way));
    const std::string anew = leave_pool();
    EXPECT_NE(anew, uuid);
    fs::remove(in_the_way);
    EXPECT_EQ(leave_pool(), anew);
    for (const std::string& path : {pages_, control_}) fs::remove(path);
  }
}

TEST_F(FilePool, AnotherPoolInItsTwoFilesIsRefused) {
  const std::string uuid = leave_pool();
  fs::rename(control_, directory_.file("control-kept"));
  fs::rename(pages_, directory_.file("pages-kept"));
  const StateDirectory here = state_;
  state_ = StateDirectory(directory_.file("elsewhere"));
  const std::string other = leave_pool();
  state_ = here;
  expect_refusal("found a pool of marud, uuid " + other);
  expect_refusal("expected the pool that it was, " + uuid);
  for (const std::string& path : {control_, pages_}) fs::rename(path + "-kept", path);
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(FilePool, WhatIsInAFileIsNamed) {
  spec_.control_path.clear();
  make_blank(pages_, kBytes);
  put(pages_, 0x438, "\x53\xEF");
  expect_refusal("found an ext2, ext3 or ext4 file system, expected a pool or nothing but zeros");
  make_blank(pages_, kBytes);
  leave_pool();
  format::Header header = this->header(pages_);
  header.version_major = 9;
  header.checksum = shm::header_checksum(header);
  put(pages_, 0, std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
  expect_refusal("use \"" + pages_ + "\" as a pool: found a pool of marud with version 9." +
                 std::to_string(format::kVersionMinor) + " of the format, expected one of version 1");
  expect_refusal("let the marud that made it serve it, or remove the file");
  header.created_unix_ms ^= 1;
  header.version_major = 1;
  put(pages_, 0, std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
  expect_refusal("found what was a pool of marud: the header's checksum does not match");
}

TEST_F(FilePool, AFileThatIsTooSmallAndNoneWithoutASizeAreToldWhatToDo) {
  spec_.control_path.clear();
  make_blank(pages_, 100u << 10);
  spec_.bytes = 0;
  expect_refusal("found 100 KiB, expected ");
  expect_refusal(
      " bytes at least: the pool is too small for its control region and a single region of pages; make it larger");
  const std::string text = refusal().text(), before = "expected ";
  spec_.bytes = std::stoull(text.substr(text.find(before) + before.size()));
  fs::resize_file(pages_, spec_.bytes - 4096);
  spec_.bytes -= 4096;
  expect_refusal("too small");
  fs::remove(pages_);
  spec_.bytes += 4096;
  EXPECT_FALSE(leave_pool().empty()) << "as many are enough";
  fs::remove(pages_);
  spec_.bytes = 0;
  expect_refusal("found no such file, expected a pool there, or a size to create one; say size =");
  spec_.control_path = control_;
  expect_refusal("found neither, expected a pool there, or a size to create one; say size =");
}

// A file system or an archive may well begin with zeros.
TEST_F(FilePool, WhatLiesBehindZerosIsNotOverwritten) {
  spec_.bytes = 0;
  for (const std::string& place : {control_, pages_})
    for (const uint64_t at : {64u << 10, (1u << 20) - 30}) {
      make_blank(control_, 1u << 20);
      make_blank(pages_, kBytes);
      put(place, at, "what somebody has stored there");
      const std::string before = get(place, 1u << 20);
      const bool is_seen_by_label = place == pages_ && at < (128u << 10);
      expect_refusal(is_seen_by_label ? "expected a blank file" : "expected a pool or nothing but zeros");
      EXPECT_EQ(get(place, 1u << 20), before);
    }
}

// The same on huge pages, in a file whose holes get none by being looked at.
TEST_F(FilePool, OnHugePagesWhatLiesBehindZerosIsNotOverwritten) {
  const std::string folder = directory_.path() + "/huge", path = folder + "/pool";
  fs::create_directory(folder);
  // Nobody else sees what is mounted here.
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", folder.c_str(), "hugetlbfs", 0, nullptr) != 0)
    GTEST_SKIP() << "this process may not mount hugetlbfs: " << std::strerror(errno);
  const auto unmount = [&](void*) { ::umount2(folder.c_str(), MNT_DETACH); };
  const std::unique_ptr<void, decltype(unmount)> mounted(this, unmount);
  const uint64_t page = *FileDevice::unit_of(path);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const FileDescriptor file(fd);
  ASSERT_GE(fd, 0);
  if (::fallocate(fd, 0, 0, off_t(page)) != 0 || ::fallocate(fd, 0, off_t(2 * page), off_t(page)) != 0)
    GTEST_SKIP() << "this machine grants no two huge pages (vm.nr_hugepages)";
  const auto taken = [&] {
    struct stat status = {};
    return ::fstat(fd, &status) == 0 ? uint64_t(status.st_blocks) * 512 : 0;
  };
  const uint64_t before = taken();
  {
    auto last = Mapping::map_shared(fd, 2 * page, page, PROT_READ | PROT_WRITE);
    ASSERT_TRUE(last);
    last->data()[page - 1] = std::byte{1};
    const auto opened = FileDevice::open(path, 0, 0, FileDevice::Part::kWhole);
    ASSERT_FALSE(opened);
    const std::string text = "bytes at " + std::to_string(3 * page - 1) + " that are not zero";
    EXPECT_NE(opened.error().doing.find(text), std::string::npos) << opened.error().doing;
    last->data()[page - 1] = std::byte{0};
  }
  const auto opened = FileDevice::open(path, 0, 0, FileDevice::Part::kWhole);
  EXPECT_EQ(taken(), before);
  EXPECT_TRUE(opened || opened.error().code == ENOSPC) << opened.error().doing;  // two may be all that there are
}

TEST_F(FilePool, AnEmptyFileBecomesAPool) {
  spec_.control_path.clear();
  make_blank(pages_, 0);
  EXPECT_FALSE(leave_pool().empty());
  EXPECT_EQ(fs::file_size(pages_), kBytes);
  fs::resize_file(pages_, 0);
  spec_.bytes = 0;
  expect_refusal("found it empty, expected a pool, or bytes =");
}

TEST_F(FilePool, PagesThatWereCutAreRefused) {
  leave_pool();
  ASSERT_EQ(::truncate(pages_.c_str(), off_t(fs::file_size(pages_) - 4096)), 0);
  expect_refusal("as configured");
  spec_.bytes = 0;
  expect_refusal("bytes, of which");
}

// Whatever the state of what is left: of this boot or another, to be verified or to be formatted.
TEST_F(FilePool, AControlRegionThatWasCutIsRefused) {
  spec_.pool.checksums = true;
  leave_pool();
  const uint64_t bytes = fs::file_size(control_);
  spec_.bytes = 0;
  for (const uint64_t left : {bytes - 4096, uint64_t{4096}}) {
    fs::resize_file(control_, left);
    for (const auto after : {AfterPowerLoss::kFormat, AfterPowerLoss::kVerify}) {
      spec_.after_power_loss = after;
      expect_refusal(std::to_string(bytes) + " bytes in this file, of which " + std::to_string(left) + " are left");
    }
  }
  fs::resize_file(control_, 512);
  expect_refusal("found 512 bytes, expected a multiple of 4096");
}

TEST_F(FilePool, OneFileThatWasCutIsRefused) {
  spec_.control_path.clear();
  leave_pool();
  spec_.bytes = 0;
  for (const uint64_t left : {kBytes - 4096, uint64_t{4096}}) {
    fs::resize_file(pages_, left);
    expect_refusal("expected all of it");
    expect_refusal("if it was cut off, bring the whole file back");
  }
}

TEST_F(FilePool, TheWrongWayRoundOrOneForBothIsRefused) {
  const std::string uuid = leave_pool();
  spec_.path = control_;
  spec_.control_path = pages_;
  expect_refusal("found the pages of a pool in two files, expected its control region");
  fs::create_hard_link(pages_, directory_.file("link"));
  spec_.path = pages_;
  spec_.control_path = directory_.file("link");
  expect_refusal("found one file of two names");
  spec_.path = control_;
  spec_.control_path.clear();
  spec_.bytes = 0;
  expect_refusal("if its pages lie in another file, name that with path =");
  spec_.path = pages_;
  expect_refusal("found the pages of a pool in two files, expected its control region");
  // A pool in one file, and a blank one beside it.
  spec_.path = directory_.file("whole");
  spec_.bytes = kBytes;
  leave_pool();
  make_blank(directory_.file("blank"), kBytes);
  spec_.bytes = 0;
  spec_.control_path = directory_.file("whole");
  spec_.path = directory_.file("blank");
  expect_refusal("which is all in this file");
  spec_.path = pages_;
  spec_.control_path = control_;
  EXPECT_EQ(leave_pool(), uuid);
}

TEST_F(FilePool, PagesThatOthersMayWriteAreRefused) {
  leave_pool();
  ASSERT_EQ(::chmod(pages_.c_str(), 0620), 0);
  expect_refusal(
      "found that others than its owner may write it, which would let readers do so, expected the mode 0600");
  ASSERT_EQ(::chmod(pages_.c_str(), 0640), 0);
  EXPECT_TRUE(start());
}

TEST_F(FilePool, WhatCannotBeDividedLeavesNoFileBehind) {
  spec_.bytes = 2u << 20;  // the label alone
  expect_refusal("too small");
  EXPECT_FALSE(fs::exists(control_));
  EXPECT_FALSE(fs::exists(pages_));
  // The second file cannot be made, so the first one goes again.
  spec_.bytes = kBytes;
  spec_.path = directory_.file("no/folder/pages");
  EXPECT_FALSE(start());
  EXPECT_FALSE(fs::exists(control_));
}

// marud died between the claim, the label and the header.
TEST_F(FilePool, FormattingThatWasCutOffBeginsAnew) {
  const std::string uuid = leave_pool();
  const auto expect_resumed = [&](const std::string& after) {
    auto pool = start();
    ASSERT_TRUE(pool) << after << ": " << pool.error().text();
    EXPECT_EQ((*pool)->serving()->epoch(), 1u) << after;
    EXPECT_EQ(uuid_of(**pool), uuid) << after << ": what was labelled with it is known by it";
    (*pool)->stop(false);
  };
  const auto clear_label = [&](size_t from, size_t end) { put(pages_, from, std::string(end - from, 0)); };
  using format::DataLabel;
  cut_off(control_);
  expect_resumed("all of the label");
  cut_off(control_);
  clear_label(offsetof(DataLabel, checksum), sizeof(DataLabel));
  expect_resumed("the label without its checksum");
  cut_off(control_);
  clear_label(0, sizeof(DataLabel::magic));
  expect_resumed("the label without its magic number");
  cut_off(control_);
  clear_label(0, sizeof(DataLabel::magic));
  clear_label(offsetof(DataLabel, uuid) + 8, sizeof(DataLabel));
  expect_resumed("half of the uuid");
  cut_off(control_);
  clear_label(0, sizeof(DataLabel));
  expect_resumed("the uuid beside the claim");
  cut_off(control_);
  clear_label(0, sizeof(DataLabel));
  put(control_, offsetof(format::Header, uuid), std::string(8, 0));
  const std::string second = leave_pool();
  EXPECT_NE(second, uuid) << "a part of a uuid is none";
  cut_off(control_);
  put(pages_, 0, "somebody else's");
  expect_refusal("found content that is not marud's beside");
}

// In two files, and in one.
class FilePoolAfterPowerLoss : public FilePool, public ::testing::WithParamInterface<bool> {
 protected:
  FilePoolAfterPowerLoss() {
    if (!GetParam()) spec_.control_path.clear();
  }
  const std::string& control() const { return GetParam() ? control_ : pages_; }
};
INSTANTIATE_TEST_SUITE_P(Files, FilePoolAfterPowerLoss, ::testing::Values(true, false));

TEST_P(FilePoolAfterPowerLoss, WhatWasLeftInOrderIsAdopted) {
  leave_pool();
  pretend_other_boot(control(), true);
  EXPECT_EQ(epoch_at_start(), 2u);
  EXPECT_EQ(epoch_at_start(), 3u);
}

TEST_P(FilePoolAfterPowerLoss, WithoutChecksumsItIsFormattedAnew) {
  const std::string uuid = leave_pool();
  pretend_other_boot(control(), false);
  EXPECT_EQ(epoch_at_start(), 1u);
  EXPECT_EQ(uuid_text(header(control()).uuid), uuid) << "its pages are labelled with it";
  EXPECT_EQ(epoch_at_start(), 2u);
}

TEST_P(FilePoolAfterPowerLoss, WithChecksumsItIsVerifiedUnlessToBeFormatted) {
  spec_.pool.checksums = true;
  leave_pool();
  pretend_other_boot(control(), false);
  EXPECT_EQ(epoch_at_start(), 2u);
  pretend_other_boot(control(), false);
  spec_.after_power_loss = AfterPowerLoss::kFormat;
  EXPECT_EQ(epoch_at_start(), 1u);
}

TEST_P(FilePoolAfterPowerLoss, BookkeepingOfNonsenseIsRepaired) {
  spec_.pool.checksums = true;
  leave_pool();
  pretend_other_boot(control(), false);
  const auto& registry = header(control()).sections[format::kSectionRegistry];
  put(control(), registry.offset, std::string(registry.bytes, '\xa5'));
  EXPECT_EQ(epoch_at_start(), 2u) << "not formatted";
}

// To this host every other one looks like a marud of another boot that was cut off.
TEST_P(FilePoolAfterPowerLoss, APoolOfSeveralHostsIsNeitherVerifiedNorFormatted) {
  auto& sharing = spec_.pool.sharing;
  sharing.is_shared = sharing.is_coherent = spec_.pool.checksums = true;
  sharing.hosts = 2;
  sharing.machine_id = "aaaa";
  sharing.boot_id = "11111111-1111-4111-8111-111111111111";
  const std::string uuid = leave_pool();
  sharing.machine_id = "bbbb";
  sharing.boot_id = "22222222-2222-4222-8222-222222222222";
  spec_.after_power_loss = AfterPowerLoss::kFormat;
  EXPECT_EQ(leave_pool(), uuid);
  EXPECT_NE(epoch_at_start(), 1u);
  // Also by who does not know that it is one.
  sharing = {};
  pretend_other_boot(control(), false);
  const std::string before = get(control(), 64);
  expect_refusal("found a pool that several hosts share");
  EXPECT_EQ(get(control(), 64), before);
}

// A claim says of which pages it is: all others hold something.
TEST_F(FilePool, AClaimFormatsNoPagesButItsOwn) {
  leave_pool();
  cut_off(control_);
  spec_.path = directory_.file("other-pages");
  spec_.control_path = directory_.file("other-control");
  const std::string other = leave_pool(), label = get(spec_.path, 4096);
  spec_.control_path = control_;
  expect_refusal("found the pages of a pool of marud, uuid " + other + " beside \"" + control_ +
                 "\", where the formatting of another pool was cut off, expected a blank file");
  EXPECT_EQ(get(spec_.path, 4096), label);
  // A damaged label is not one that this claim began.
  put(spec_.path, offsetof(format::DataLabel, checksum), std::string(8, 0));
  expect_refusal("found what were pages of a pool of marud, with a damaged label beside");
  put(spec_.path, 0, label);
  // Nor does a claim without a uuid have any.
  put(control_, offsetof(format::Header, uuid), std::string(16, 0));
  expect_refusal("where the formatting of another pool was cut off");
  spec_.control_path = directory_.file("other-control");
  EXPECT_EQ(leave_pool(), other);
}

TEST_F(FilePool, PagesAtAnotherPlaceThanThisVersionPutsThemAreRefused) {
  leave_pool();
  format::DataLabel label;
  const std::string bytes = get(pages_, sizeof(label));
  std::memcpy(&label, bytes.data(), sizeof(label));
  label = shm::make_data_label(label.uuid, label.data_bytes, 2 * label.pages_offset);
  put(pages_, 0, std::string(reinterpret_cast<const char*>(&label), sizeof(label)));
  expect_refusal("from byte 4194304 on, where this version does not look for them");
}

// The marud of another host has created the file, and locks it and gives it its size in this moment.
TEST_F(FilePool, AFileThatAnotherHostIsAboutToMakeIsWaitedFor) {
  spec_.control_path.clear();
  spec_.pool.sharing.is_shared = spec_.pool.sharing.is_coherent = spec_.pool.checksums = true;
  spec_.pool.sharing.hosts = 2;
  spec_.pool.lanes = 8;
  spec_.pool.sharing.machine_id = "aaaa";
  spec_.pool.sharing.boot_id = "11111111-1111-4111-8111-111111111111";
  struct Moment {
    bool is_locked, is_given_up;
  };
  for (const auto [is_locked, is_given_up] : {Moment{true, false}, Moment{false, false}, Moment{true, true}}) {
    fs::remove(pages_);
    const FileDescriptor fd(::open(pages_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd.is_open());
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    ASSERT_TRUE(!is_locked || ::fcntl(fd.get(), F_OFD_SETLK, &whole) == 0);
    auto started = std::async(std::launch::async, [&] { return start(); });
    const auto has_opened = [&] {
      int count = 0;
      std::error_code gone;
      for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
        if (fs::read_symlink(entry.path(), gone) == pages_) ++count;
      return count > 1;
    };
    const auto has_ended = [&] { return started.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    EXPECT_TRUE(test::wait_until([&] { return has_opened() || has_ended(); }));
    ASSERT_EQ(::ftruncate(fd.get(), off_t(kBytes)), 0);
    if (is_given_up) fs::remove(pages_);
    whole.l_type = F_UNLCK;
    ASSERT_EQ(::fcntl(fd.get(), F_OFD_SETLK, &whole), 0);
    auto pool = started.get();
    const std::string refused = pool ? "" : pool.error().doing;
    EXPECT_EQ(refused.empty(), !is_given_up) << refused;
    EXPECT_EQ(refused.find("created and removed it meanwhile") != std::string::npos, is_given_up) << refused;
  }
}

}  // namespace
}  // namespace maru::daemon
