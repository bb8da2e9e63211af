// Copies of payloads are exact whichever way of copying takes its turn: any size, any alignment of the source.
#include "libmaru/client/payload_copy.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

namespace maru::client {
namespace {

constexpr size_t kLargest = 1 << 20;
constexpr size_t kGuard = 256;

// Aligned to a cache line, as pages of a pool are, with room on both sides.
struct Target {
  std::unique_ptr<std::byte[]> memory = std::make_unique<std::byte[]>(kLargest + 3 * kGuard);
  std::byte* begin() {
    const auto address = reinterpret_cast<uintptr_t>(memory.get()) + kGuard;
    return memory.get() + kGuard + (64 - address % 64) % 64;
  }
};

void copy_some(size_t copies) {
  std::vector<std::byte> source(kLargest + kGuard);
  for (size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i * 167 + (i >> 8));
  Target target;
  for (size_t i = 0; i < copies; ++i) {
    const size_t bytes = kLargest / (1 + i % 5) - i * 13, from = i * 7 % kGuard, to = i % 6 == 5 ? 8 : 0;
    std::byte* begin = target.begin() + to;
    std::memset(target.memory.get(), 0xA5, kLargest + 3 * kGuard);
    copy_payload(begin, source.data() + from, bytes);
    ASSERT_EQ(std::memcmp(begin, source.data() + from, bytes), 0) << bytes << " bytes from " << from << " to " << to;
    for (size_t k = 1; k <= kGuard / 2; ++k) {
      ASSERT_EQ(begin[-ptrdiff_t(k)], std::byte{0xA5}) << k << " before the target";
      ASSERT_EQ(begin[bytes + k - 1], std::byte{0xA5}) << k << " behind the target of " << bytes;
    }
  }
}

TEST(PayloadCopy, EveryWayCopiesWhatItWasAskedToAndNothingElse) { copy_some(120); }

TEST(PayloadCopy, ThreadsMayFindTheFastestWayTogether) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { copy_some(20); });
}

TEST(PayloadCopy, NothingIsCopiedOfNothing) {
  std::byte to{1};
  const std::byte from{2};
  copy_payload(&to, &from, 0);
  EXPECT_EQ(to, std::byte{1});
}

}  // namespace
}  // namespace maru::client
