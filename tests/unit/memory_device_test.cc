// Where the memory of a pool lies.
#include "daemon/dax/memory_device.h"
#include "daemon/dax_format.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kBytes = 4u << 20;

// The kernel's word for where shared memory shall lie: its policy belongs to the file.
struct Placed {
  int mode = -1;
  unsigned long nodes = 0;
};
Placed placement_of(const Device& device) {
  void* address = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, device.fd(), 0);
  Placed placed;
  EXPECT_NE(address, MAP_FAILED);
  EXPECT_EQ(::get_mempolicy(&placed.mode, &placed.nodes, 8 * sizeof(placed.nodes), address, MPOL_F_ADDR), 0);
  ::munmap(address, kBytes);
  return placed;
}

TEST(MemoryDevice, LiesOnTheNodesThatAreNamed) {
  if (::numa_available() < 0) GTEST_SKIP() << "this kernel has no NUMA policies";
  using Policy = NumaPlacement::Policy;
  for (const auto& [policy, mode] :
       {std::pair(Policy::kBind, int(MPOL_BIND)), std::pair(Policy::kInterleave, int(MPOL_INTERLEAVE)),
        std::pair(Policy::kPreferred, int(MPOL_PREFERRED))}) {
    auto device = MemoryDevice::create("test", kBytes, HugePages::kNever, {{0}, policy, false});
    ASSERT_TRUE(device) << device.error().text();
    EXPECT_EQ(placement_of(**device).mode, mode);
    EXPECT_EQ(placement_of(**device).nodes, 1u);
  }
  auto anywhere = MemoryDevice::create("test", kBytes, HugePages::kNever, {});
  ASSERT_TRUE(anywhere);
  EXPECT_EQ(placement_of(**anywhere).mode, int(MPOL_DEFAULT));
  auto nowhere = MemoryDevice::create("test", kBytes, HugePages::kNever, {{1000}, Policy::kBind, false});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ENODEV);
  EXPECT_NE(nowhere.error().doing.find("found no memory on node 1000"), std::string::npos) << nowhere.error().doing;
}

TEST(MemoryDevice, FirstTouchTakesEveryPage) {
  auto device = MemoryDevice::create("test", kBytes, HugePages::kNever, {});
  ASSERT_TRUE(device);
  void* address = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*device)->fd(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const auto pages_there = [&] {
    std::vector<unsigned char> there(kBytes / 4096);
    EXPECT_EQ(::mincore(address, kBytes, there.data()), 0);
    size_t count = 0;
    for (unsigned char page : there) count += page & 1;
    return count;
  };
  EXPECT_EQ(pages_there(), 0u);
  ASSERT_TRUE(touch_all("test", **device));
  EXPECT_EQ(pages_there(), kBytes / 4096);
  ::munmap(address, kBytes);
}

}  // namespace
}  // namespace maru::daemon
