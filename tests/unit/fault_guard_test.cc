// What is left of a mapping after a SIGBUS in it.
#include "daemon/memory/fault_guard.h"

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "tests/support/memory_error.h"

#include <cstring>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace maru::daemon {
namespace {

using test::raise_memory_error;

constexpr size_t kBytes = 256u << 10;

class FaultGuardTest : public ::testing::Test {
 protected:
  FaultGuardTest() : fd_(::memfd_create("test", MFD_CLOEXEC)) {
    if (::ftruncate(fd_.get(), off_t(kBytes)) != 0) throw std::runtime_error("ftruncate");
    auto mapped = Mapping::map_shared_aligned(fd_.get(), kBytes, PROT_READ | PROT_WRITE, 4096);
    if (!mapped) throw std::runtime_error(mapped.error().text());
    mapping_ = std::move(*mapped);
    std::memset(mapping_.data(), 0xAB, kBytes);
  }
  unsigned at(size_t offset) const { return unsigned(reinterpret_cast<volatile uint8_t*>(mapping_.data())[offset]); }

  FileDescriptor fd_;
  Mapping mapping_;
  FaultGuard guard_;
};

TEST_F(FaultGuardTest, MemoryErrorTakesOnePageAway) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes));
  ASSERT_TRUE(raise_memory_error(mapping_.data() + 0x3010, BUS_MCEERR_AR));
  EXPECT_EQ(at(0x2FFF), 0xABu);
  EXPECT_EQ(at(0x3000), 0u);
  EXPECT_EQ(at(0x3FFF), 0u);
  EXPECT_EQ(at(0x4000), 0xABu);
  EXPECT_FALSE(guard_.has_fired());
  EXPECT_EQ(guard_.bad_memory(), (std::vector<BadMemory>{{0x3000, 4096}}));
  ASSERT_TRUE(raise_memory_error(mapping_.data() + 0x3020, BUS_MCEERR_AR));
  EXPECT_EQ(guard_.bad_memory().size(), 1u) << "the same page once";
  guard_.end();
  EXPECT_EQ(guard_.bad_memory().size(), 1u) << "kept after the end";
}

TEST_F(FaultGuardTest, PartsAreReplacedAsTheDeviceCutsThem) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes, 64u << 10));
  ASSERT_TRUE(raise_memory_error(mapping_.data() + 0x1'8000, BUS_MCEERR_AR));
  EXPECT_EQ(at(0xFFFF), 0xABu);
  EXPECT_EQ(at(0x1'0000), 0u);
  EXPECT_EQ(at(0x1'FFFF), 0u);
  EXPECT_EQ(at(0x2'0000), 0xABu);
  EXPECT_EQ(guard_.bad_memory(), (std::vector<BadMemory>{{0x1'0000, 64u << 10}}));
}

TEST_F(FaultGuardTest, PageLargerThanTheMappingTakesAllOfIt) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes));
  ASSERT_TRUE(raise_memory_error(mapping_.data() + 0x3010, BUS_MCEERR_AR, 21));
  EXPECT_EQ(at(0), 0u);
  EXPECT_EQ(at(kBytes - 1), 0u);
  EXPECT_FALSE(guard_.has_fired());
  EXPECT_EQ(guard_.bad_memory().size(), 1u);
}

TEST_F(FaultGuardTest, EarlyNoticeChangesNothingAndIsNoted) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes));
  ASSERT_TRUE(raise_memory_error(mapping_.data() + 0x5000, BUS_MCEERR_AO));
  EXPECT_EQ(at(0x5000), 0xABu);
  EXPECT_EQ(guard_.bad_memory(), (std::vector<BadMemory>{{0x5000, 4096}}));
  int elsewhere = 0;
  ASSERT_TRUE(raise_memory_error(&elsewhere, BUS_MCEERR_AO)) << "and one that is not ours is none";
  EXPECT_EQ(guard_.bad_memory().size(), 1u);
}

TEST_F(FaultGuardTest, MoreErrorsThanCanBeNotedLoseTheMapping) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes));
  for (int i = 0; i < FaultGuard::kBadMax; ++i)
    ASSERT_TRUE(raise_memory_error(mapping_.data() + i * 4096, BUS_MCEERR_AR));
  EXPECT_FALSE(guard_.has_fired());
  ASSERT_TRUE(raise_memory_error(mapping_.data() + FaultGuard::kBadMax * 4096, BUS_MCEERR_AR));
  EXPECT_TRUE(guard_.has_fired());
}

TEST_F(FaultGuardTest, MemoryThatIsGoneLosesTheMapping) {
  ASSERT_TRUE(guard_.begin(mapping_.data(), kBytes));
  ASSERT_EQ(::ftruncate(fd_.get(), 4096), 0);
  EXPECT_EQ(at(0x3000), 0u);
  EXPECT_EQ(at(0), 0u) << "all of it";
  EXPECT_TRUE(guard_.has_fired());
  EXPECT_TRUE(guard_.bad_memory().empty());
}

}  // namespace
}  // namespace maru::daemon
