// What a client does with memory that the machine has lost: as much of it is replaced as the mapping allows, and known as bad.
#include "libmaru/client/memory_errors.h"

#include "libmaru/base/mapping.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <iterator>
#include <span>
#include <utility>

namespace maru::client {
namespace {

constexpr uint64_t kUnit = 2u << 20, kPageBytes = 64u << 10;
constexpr uint64_t kUnits = 4;

// Four huge pages, the first page of the pool in the middle of the first one.
class BadPagesTest : public ::testing::Test {
 protected:
  BadPagesTest() {
    constexpr size_t kReserved = (kUnits + 1) * kUnit;
    void* address = ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    reserved_ = Mapping(static_cast<std::byte*>(address), kReserved);
    const auto place = reinterpret_cast<uintptr_t>(address);
    mapped_ = {reserved_.data() + (kUnit - place % kUnit) % kUnit, kUnits * kUnit};
    std::memset(mapped_.data(), 'x', mapped_.size());
  }

  std::byte* page(uint64_t index) const { return mapped_.data() + kUnit / 2 + index * kPageBytes; }
  BadPages make(uint64_t unit) const {
    return BadPages(page(0), (kUnits * kUnit - kUnit / 2) / kPageBytes, kPageBytes, mapped_, unit, -1);
  }
  // The bytes that are zero now: from where on, and how many.
  std::pair<uint64_t, uint64_t> replaced() const {
    const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
    const auto first = std::find_if(mapped_.begin(), mapped_.end(), is_zero);
    return {uint64_t(first - mapped_.begin()), uint64_t(std::count_if(first, mapped_.end(), is_zero))};
  }

  Mapping reserved_;
  std::span<std::byte> mapped_;
};

uintptr_t address_of(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }

TEST_F(BadPagesTest, WhereTheKernelDoesNotSayHowMuchIsLostItIsAHugePage) {
  const unsigned nonsense[] = {0, 1, 11, 31, 63, 0xFFFF};
  for (uint64_t i = 0; i < std::size(nonsense); ++i) {
    BadPages bad = make(kUnit);
    std::memset(mapped_.data(), 'x', mapped_.size());
    const std::byte* in_third = mapped_.data() + 2 * kUnit + 5 * kPageBytes + 123;
    ASSERT_TRUE(bad.replace(address_of(in_third), nonsense[i])) << nonsense[i];
    EXPECT_EQ(replaced(), std::pair(2 * kUnit, kUnit)) << nonsense[i];
    const auto first = uint32_t((2 * kUnit - kUnit / 2) / kPageBytes);
    EXPECT_FALSE(bad.has(first - 1));
    EXPECT_TRUE(bad.has(first));
    EXPECT_TRUE(bad.has(first + uint32_t(kUnit / kPageBytes) - 1));
    EXPECT_FALSE(bad.has(first + uint32_t(kUnit / kPageBytes)));
  }
}

TEST_F(BadPagesTest, LessThanAHugePageCannotBeReplacedInOne) {
  BadPages bad = make(kUnit);
  ASSERT_TRUE(bad.replace(address_of(page(0)), 12));
  EXPECT_EQ(replaced(), std::pair(uint64_t{0}, kUnit)) << "also what lies before page 0";
  EXPECT_TRUE(bad.has(0));
  EXPECT_TRUE(bad.has(uint32_t(kUnit / 2 / kPageBytes) - 1));
  EXPECT_FALSE(bad.has(uint32_t(kUnit / 2 / kPageBytes)));
}

TEST_F(BadPagesTest, OfOrdinaryMemoryAPageOfTheKernelGoesOrWhatItSays) {
  BadPages bad = make(4096);
  ASSERT_TRUE(bad.replace(address_of(page(40) + 5000), 0));
  EXPECT_EQ(replaced(), std::pair(uint64_t(page(40) + 4096 - mapped_.data()), uint64_t{4096}));
  EXPECT_TRUE(bad.has(40));
  EXPECT_FALSE(bad.has(41));
  ASSERT_TRUE(bad.replace(address_of(page(40)), 30));
  EXPECT_EQ(replaced(), std::pair(uint64_t{0}, kUnits * kUnit)) << "all that is mapped, and nothing else";
  EXPECT_TRUE(bad.has(0));
}

}  // namespace
}  // namespace maru::client
