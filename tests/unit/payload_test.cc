// How a client maps the pages of a pool: in the multiples that the device demands, wherever regions begin.
#include "libmaru/client/payload.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "tests/support/sanitizers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace maru::client {
namespace {

constexpr const char* kName = "payload-test";

// The mappings of the pool in this process, as the kernel has them.
struct Mapped {
  uint64_t begin, end, offset;
  bool is_writable;
};
std::vector<Mapped> mappings() {
  std::vector<Mapped> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kName) == std::string::npos) continue;
    Mapped one = {};
    char protection[8] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %lx", &one.begin, &one.end, protection, &one.offset) != 4) continue;
    one.is_writable = protection[1] == 'w';
    all.push_back(one);
  }
  return all;
}

struct Shape {
  uint64_t alignment;
  uint64_t page_bytes;
  uint64_t region_bytes;
  uint64_t pages_offset;  // 0: behind the control region
};

class PayloadShapes : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr uint64_t kPoolBytes = 64u << 20;

  PayloadShapes() {
    shm::FormatWishes wishes;
    wishes.pool_bytes = kPoolBytes;
    wishes.page_bytes = GetParam().page_bytes;
    wishes.region_bytes = GetParam().region_bytes;
    wishes.lanes = 4;
    wishes.pins_max = 64;
    format::Parameters parameters;
    shm::Layout layout;
    EXPECT_EQ(shm::choose_parameters(wishes, &parameters), nullptr);
    EXPECT_EQ(shm::plan_layout(parameters, &layout), nullptr);
    memory_.resize(layout.control_bytes / 8);
    EXPECT_EQ(shm::ControlRegion::format(std::as_writable_bytes(std::span(memory_)), parameters, {}, true, &region_),
              nullptr);
    offset_ = GetParam().pages_offset ? GetParam().pages_offset : region_.page_offset(0);
    fd_.reset(::memfd_create(kName, MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(fd_.get(), off_t(1ull << 31)), 0);
  }
  // Whatever is mapped could be mapped of a device with this alignment.
  void expect_aligned() const {
    for (const Mapped& one : mappings()) {
      EXPECT_EQ(one.begin % GetParam().alignment, 0u);
      EXPECT_EQ(one.end % GetParam().alignment, 0u);
      EXPECT_EQ(one.offset % GetParam().alignment, 0u);
    }
  }

  std::vector<uint64_t> memory_;
  shm::ControlRegion region_;
  uint64_t offset_ = 0;
  FileDescriptor fd_;
};

TEST_P(PayloadShapes, PagesBeyondTheEndOfTheirMemoryAreRefused) {
  const uint64_t end = offset_ + region_.pages() * region_.page_bytes();
  ASSERT_EQ(::ftruncate(fd_.get(), off_t(end)), 0);
  EXPECT_TRUE(Payload::map(fd_.get(), offset_, region_, GetParam().alignment));
  ASSERT_EQ(::ftruncate(fd_.get(), off_t(end - 1)), 0);
  const auto refused = Payload::map(fd_.get(), offset_, region_, GetParam().alignment);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EBADMSG);
}

TEST_P(PayloadShapes, PagesLieWhereTheyAreAndMappingsAreWhole) {
  auto payload = Payload::map(fd_.get(), offset_, region_, GetParam().alignment);
  ASSERT_TRUE(payload) << payload.error().text();
  const auto last = uint32_t(region_.pages() - 1);
  std::vector<std::byte*> addresses(region_.pages());
  // Backwards, and every other region at first, so that neighbours meet chunks that are mapped already.
  for (const bool odd : {false, true})
    for (uint32_t page = last; page < region_.pages(); page -= region_.region_pages()) {
      if ((region_.region_of(page) % 2 == 1) != odd) continue;
      std::byte* address = odd ? (*payload)->writable(page) : (*payload)->at(page);
      ASSERT_NE(address, nullptr) << page;
      addresses[page] = address;
    }
  expect_aligned();
  for (uint32_t page = 0; page < region_.pages(); page += 7) {
    std::byte* address = (*payload)->writable(page);
    ASSERT_NE(address, nullptr);
    if (addresses[page]) {
      EXPECT_EQ(address, addresses[page]);
    }
    std::memcpy(address, &page, sizeof(page));
    std::memset(address + region_.page_bytes() - 1, 0x5a, 1);
  }
  expect_aligned();
  for (uint32_t page = 0; page < region_.pages(); page += 7) {
    uint32_t said = 0;
    ASSERT_EQ(::pread(fd_.get(), &said, sizeof(said), off_t(offset_ + page * region_.page_bytes())),
              ssize_t(sizeof(said)));
    EXPECT_EQ(said, page);
  }
  payload->reset();
  EXPECT_TRUE(mappings().empty());
}

// Neighbours share a chunk: each page may be written when its region may, and no region of other chunks.
TEST_P(PayloadShapes, WhatIsWrittenIsItsRegionAndTheChunksOfIt) {
  auto payload = Payload::map(fd_.get(), offset_, region_, GetParam().alignment);
  ASSERT_TRUE(payload);
  const uint32_t in_region = region_.region_pages();
  std::byte* first = (*payload)->writable(in_region);
  ASSERT_NE(first, nullptr);
  const uint64_t bytes = in_region * region_.page_bytes();
  const auto begin = reinterpret_cast<uint64_t>(first);
  uint64_t writable = 0;
  for (const Mapped& one : mappings()) {
    const uint64_t from = std::max(one.begin, begin), to = std::min(one.end, begin + bytes);
    if (one.is_writable && from < to) writable += to - from;
    if (one.is_writable) {
      EXPECT_GT(one.begin + GetParam().alignment, begin);
      EXPECT_LT(one.end - GetParam().alignment, begin + bytes);
    }
  }
  EXPECT_EQ(writable, bytes);
}

TEST_P(PayloadShapes, EveryPageCanBeReadAtOnceAndNoneWritten) {
  auto payload = Payload::map(fd_.get(), offset_, region_, GetParam().alignment);
  ASSERT_TRUE(payload);
  const uint64_t bytes = region_.pages() * region_.page_bytes();
  const auto begin = reinterpret_cast<uint64_t>((*payload)->at(0));
  const std::vector<Mapped> all = mappings();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_LE(all[0].begin, begin);
  EXPECT_GE(all[0].end, begin + bytes);
  EXPECT_FALSE(all[0].is_writable);
  EXPECT_EQ((*payload)->at(uint32_t(region_.pages() - 1))[region_.page_bytes() - 1], std::byte{0});
}

// After mlockall(MCL_FUTURE) the kernel reads each new mapping that may be read. In a child, since the lock is the process's.
TEST_P(PayloadShapes, NothingIsTakenWhereAllThatIsMappedIsLocked) {
  if (test::kHasAddressSanitizer || test::kHasThreadSanitizer)
    GTEST_SKIP() << "a sanitizer maps more than can be locked";
  constexpr int kCannotLock = 77;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Not through the C library, where a sanitizer does nothing instead.
    if (::syscall(SYS_mlockall, MCL_FUTURE) != 0) ::_exit(kCannotLock);
    auto payload = Payload::map(fd_.get(), offset_, region_, GetParam().alignment);
    if (!payload) ::_exit(payload.error().code == ENOLCK ? kCannotLock : 1);
    struct stat file = {};
    if ((*payload)->writable(0) == nullptr || ::fstat(fd_.get(), &file) != 0) ::_exit(2);
    if (file.st_blocks != 0) ::_exit(3);
    if (!(*payload)->let_go()) ::_exit(4);
    const std::span<std::byte> mapped = (*payload)->mapped();
    const size_t bytes = std::min(mapped.size(), kPoolBytes), os_page = size_t(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> is_there(bytes / os_page);
    if (::mincore(mapped.data(), bytes, is_there.data()) != 0) ::_exit(5);
    const auto is_set = [](unsigned char page) { return (page & 1) != 0; };
    if (std::any_of(is_there.begin(), is_there.end(), is_set)) ::_exit(6);
    *(*payload)->at(0) = std::byte{1};
    ::_exit(*(*payload)->at(1) == std::byte{0} ? 0 : 7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kCannotLock) GTEST_SKIP() << "this user may not lock so much memory";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(Alignments, PayloadShapes,
                         ::testing::Values(Shape{4096, 4096, 1u << 20, 0}, Shape{2u << 20, 4096, 1u << 20, 0},
                                           Shape{2u << 20, 65536, 4u << 20, 0}, Shape{2u << 20, 4096, 64u << 10, 0},
                                           Shape{2u << 20, 2u << 20, 4u << 20, 2u << 20},
                                           Shape{1u << 30, 65536, 4u << 20, 0}));

}  // namespace
}  // namespace maru::client
