// Where the memory of a pool lies.
#include "daemon/memory/memory_device.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/memory/numa_nodes.h"
#include "daemon/pool/pool.h"
#include "tests/support/temporary_directory.h"

#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {
struct {
  bool lacks_populating = false;   // MADV_POPULATE_WRITE, Linux 5.14
  bool prefers_one_alone = false;  // MPOL_PREFERRED_MANY, Linux 5.15
} older_kernel;
}  // namespace

// Instead of those of the libraries.
extern "C" int madvise(void* address, size_t bytes, int advice) noexcept {
  if (older_kernel.lacks_populating && advice == MADV_POPULATE_WRITE) return errno = EINVAL, -1;
  return int(::syscall(SYS_madvise, address, bytes, advice));
}
extern "C" long mbind(void* address, unsigned long bytes, int mode, const unsigned long* nodes, unsigned long nodes_max,
                      unsigned flags) {
  constexpr int kPreferredMany = 5;
  if (older_kernel.prefers_one_alone && mode == kPreferredMany) return errno = EINVAL, -1;
  return ::syscall(SYS_mbind, address, bytes, mode, nodes, nodes_max, flags);
}

namespace maru::daemon {
namespace {

constexpr uint64_t kBytes = 4u << 20;
constexpr uint64_t kControlBytes = 1u << 20;

Result<uint64_t> a_quarter(uint64_t, uint64_t) { return kControlBytes; }

// The kernel's word for where shared memory shall lie: its policy belongs to the file.
struct Placed {
  int mode = -1;
  unsigned long nodes = 0;
};
Placed placement_of(int fd) {
  void* address = ::mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  Placed placed;
  EXPECT_NE(address, MAP_FAILED);
  EXPECT_EQ(::get_mempolicy(&placed.mode, &placed.nodes, 8 * sizeof(placed.nodes), address, MPOL_F_ADDR), 0);
  ::munmap(address, kControlBytes);
  return placed;
}

TEST(MemoryDevice, LiesOnTheNodesThatAreNamed) {
  if (::numa_available() < 0) GTEST_SKIP() << "this kernel has no NUMA policies";
  using Policy = NumaPlacement::Policy;
  for (const auto& [policy, mode] :
       {std::pair(Policy::kBind, int(MPOL_BIND)), std::pair(Policy::kInterleave, int(MPOL_INTERLEAVE)),
        std::pair(Policy::kPreferred, int(MPOL_PREFERRED))}) {
    auto device = MemoryDevice::create("test", kBytes, HugePages::kNever, {{0}, policy, false}, a_quarter);
    ASSERT_TRUE(device) << device.error().text();
    for (const int fd : {(*device)->control_fd(), (*device)->fd()}) {
      EXPECT_EQ(placement_of(fd).mode, mode);
      EXPECT_EQ(placement_of(fd).nodes, 1u);
    }
  }
  auto anywhere = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(anywhere);
  EXPECT_EQ(placement_of((*anywhere)->fd()).mode, int(MPOL_DEFAULT));
  auto nowhere = MemoryDevice::create("test", kBytes, HugePages::kNever, {{1000}, Policy::kBind, false}, a_quarter);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ENODEV);
  EXPECT_NE(nowhere.error().doing.find("found no memory on node 1000"), std::string::npos) << nowhere.error().doing;
}

TEST(MemoryDevice, KnowsANodeThatCameWhileMarudRuns) {
  test::TemporaryDirectory directory;
  const std::string machine = directory.file("has_memory"), process = directory.file("status");
  const auto nodes = [&](const std::string& has, const std::string& may_use) {
    std::ofstream(machine) << has << "\n";
    std::ofstream(process) << "Name:\tmarud\nMems_allowed:\t1\nMems_allowed_list:\t" << may_use << "\n";
    return nodes_with_memory(machine, process);
  };
  using Nodes = std::set<int>;
  EXPECT_EQ(nodes("0", "0-1023"), Nodes{0});
  EXPECT_EQ(nodes("0,2-3", "0-1023"), (Nodes{0, 2, 3}));
  EXPECT_EQ(nodes("0,2-3", "0,3"), (Nodes{0, 3})) << "what marud is kept from is none";
  EXPECT_EQ(nodes("nonsense", "0"), Nodes{});
  EXPECT_EQ(no_memory_text(7, {0, 2}), "found no memory on node 7, expected one of the nodes 0, 2");
  // This machine's.
  if (::numa_available() >= 0) {
    EXPECT_EQ(nodes_with_memory(), nodes_with_memory(directory.file("missing")));
  }
}

// What a machine with huge pages and two nodes does: tests/hardware/vm/numa.py.
TEST(MemoryDevice, WithoutTheHugePagesThatItMustHaveItSaysHowManyThereAre) {
  constexpr uint64_t kTooMany = 1ull << 46;
  const auto division = [](uint64_t, uint64_t) -> Result<uint64_t> { return uint64_t{4} << 20; };
  auto refused = MemoryDevice::create("test", kTooMany, HugePages::kRequire, {}, division);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().doing.find("take 33554432 huge pages of 2 MiB for pool \"test\": found "),
            std::string::npos)
      << refused.error().doing;
  EXPECT_NE(refused.error().doing.find(" free"), std::string::npos) << refused.error().doing;
  EXPECT_NE(refused.error().doing.find("expected 33554432"), std::string::npos) << refused.error().doing;
  if (::numa_available() < 0) GTEST_SKIP() << "this kernel has no NUMA policies";
  using Policy = NumaPlacement::Policy;
  refused = MemoryDevice::create("test", kTooMany, HugePages::kRequire, {{0}, Policy::kBind, false}, division);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOMEM);
  EXPECT_NE(refused.error().doing.find(" free on NUMA node 0"), std::string::npos) << refused.error().doing;
}

// A kernel that says EINVAL means that it does not know how, and more huge pages would not help.
TEST(MemoryDevice, OfAnOlderKernelItSaysWhatThatLacks) {
  if (::numa_available() < 0) GTEST_SKIP() << "this kernel has no NUMA policies";
  using Policy = NumaPlacement::Policy;
  const auto division = [](uint64_t, uint64_t) -> Result<uint64_t> { return uint64_t{4} << 20; };
  const auto make = [&](HugePages huge_pages) {
    return MemoryDevice::create("old", 8u << 20, huge_pages, {{0}, Policy::kBind, false}, division);
  };
  FileDescriptor huge(::memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB));
  if (!huge.is_open()) GTEST_SKIP() << "this kernel has no huge pages";
  older_kernel.lacks_populating = true;
  const auto refused = make(HugePages::kRequire);
  const auto without = make(HugePages::kTry);
  older_kernel.lacks_populating = false;
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOTSUP);
  const std::string said = refused.error().text();
  EXPECT_NE(said.find("pool \"old\": take huge pages on NUMA node 0: found a kernel that"), std::string::npos) << said;
  EXPECT_NE(said.find("expected Linux 5.14 or newer"), std::string::npos) << said;
  EXPECT_EQ(said.find("have the machine set more aside"), std::string::npos) << said;
  ASSERT_TRUE(without) << without.error().text();
  EXPECT_NE((*without)->without_huge_pages().find("Linux 5.14"), std::string::npos) << (*without)->without_huge_pages();
}

TEST(MemoryDevice, OfAKernelThatPrefersOneNodeAloneItSaysSo) {
  if (::numa_available() < 0) GTEST_SKIP() << "this kernel has no NUMA policies";
  using Policy = NumaPlacement::Policy;
  older_kernel.prefers_one_alone = true;
  // Node 0 twice stands for two nodes, which this machine may not have.
  const auto refused =
      MemoryDevice::create("old", kBytes, HugePages::kNever, {{0, 0}, Policy::kPreferred, false}, a_quarter);
  older_kernel.prefers_one_alone = false;
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text().find("expected Linux 5.15 or newer; name one node"), std::string::npos)
      << refused.error().text();
}

TEST(MemoryDevice, FirstTouchTakesEveryPage) {
  auto device = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(device);
  const auto pages_there = [](int fd, uint64_t bytes) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(address, MAP_FAILED);
    std::vector<unsigned char> there(bytes / 4096);
    EXPECT_EQ(::mincore(address, bytes, there.data()), 0);
    ::munmap(address, bytes);
    size_t count = 0;
    for (unsigned char page : there) count += page & 1;
    return count;
  };
  const int control = (*device)->control_fd(), pages = (*device)->fd();
  EXPECT_EQ(pages_there(control, kControlBytes) + pages_there(pages, kBytes - kControlBytes), 0u);
  ASSERT_TRUE(touch_all("test", **device));
  EXPECT_EQ(pages_there(control, kControlBytes), kControlBytes / 4096);
  EXPECT_EQ(pages_there(pages, kBytes - kControlBytes), (kBytes - kControlBytes) / 4096);
}

FileDescriptor another(int fd) { return FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

// Which descriptors come back is up to clients.
TEST(MemoryDevice, IsAdoptedInBothOfItsPiecesAlone) {
  auto made = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  auto other = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(made && other);
  const Device& device = **made;
  EXPECT_EQ(device.bytes(), kBytes);
  EXPECT_EQ(device.control_room(), kControlBytes);
  const auto adopt = [&](int main, int pages) {
    HeldMemory held = {another(main), pages < 0 ? FileDescriptor() : another(pages)};
    return MemoryDevice::adopt(std::move(held), device.identity(), device.pages_identity());
  };
  const auto code_of = [&](int main, int pages) {
    const auto adopted = adopt(main, pages);
    return adopted ? 0 : adopted.error().code;
  };
  EXPECT_EQ(code_of(device.control_fd(), -1), ESTALE);
  EXPECT_EQ(code_of(device.fd(), device.control_fd()), ESTALE) << "the wrong way round";
  EXPECT_EQ(code_of(device.control_fd(), (*other)->fd()), ESTALE);
  EXPECT_EQ(code_of((*other)->control_fd(), device.fd()), ESTALE);
  const FileDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), off_t(kBytes - kControlBytes)), 0);
  EXPECT_EQ(code_of(device.control_fd(), unsealed.get()), EPERM);
  // A client that only reads has nothing better.
  const auto adopted = adopt(device.control_fd(), device.read_only_fd());
  ASSERT_TRUE(adopted) << adopted.error().text();
  EXPECT_EQ(::fcntl((*adopted)->fd(), F_GETFL) & O_ACCMODE, O_RDWR);
  EXPECT_EQ(::fcntl((*adopted)->read_only_fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ((*adopted)->identity(), device.identity());
  EXPECT_EQ((*adopted)->pages_identity(), device.pages_identity());
}

// As when the kernel gave the number of memory that is gone to that of somebody else.
TEST(MemoryDevice, OfAnotherUserIsNotAdopted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  auto made = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(made);
  const Device& device = **made;
  for (const int fd : {device.control_fd(), device.fd()}) {
    ASSERT_EQ(::fchown(fd, 54'321, gid_t(-1)), 0);
    const auto adopted = MemoryDevice::adopt({another(device.control_fd()), another(device.fd())}, device.identity(),
                                             device.pages_identity());
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error().code, EPERM);
    EXPECT_NE(adopted.error().doing.find("found user 54321"), std::string::npos) << adopted.error().doing;
    ASSERT_EQ(::fchown(fd, ::geteuid(), gid_t(-1)), 0);
  }
}

// Nobody but its owner opens it anew.
TEST(MemoryDevice, BelongsToItsOwnerAlone) {
  auto device = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(device);
  for (const int fd : {(*device)->control_fd(), (*device)->fd()}) {
    struct stat status = {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
}

// The description that a client hands back carries the lock of its lane, which must end with the client.
TEST(MemoryDevice, OfAClientIsOpenedAnew) {
  auto made = MemoryDevice::create("test", kBytes, HugePages::kNever, {}, a_quarter);
  ASSERT_TRUE(made);
  const Device& device = **made;
  const auto is_locked = [&] {
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_start = 7;
    range.l_len = 1;
    return ::fcntl(device.control_fd(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
  };
  for (const bool is_of_client : {false, true}) {
    FileDescriptor theirs(::open(("/proc/self/fd/" + std::to_string(device.control_fd())).c_str(), O_RDWR | O_CLOEXEC));
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_start = 7;
    range.l_len = 1;
    ASSERT_EQ(::fcntl(theirs.get(), F_OFD_SETLK, &range), 0);
    const auto adopted = MemoryDevice::adopt({another(theirs.get()), another(device.fd()), is_of_client},
                                             device.identity(), device.pages_identity());
    ASSERT_TRUE(adopted) << adopted.error().text();
    EXPECT_TRUE(is_locked());
    theirs.reset();
    EXPECT_EQ(is_locked(), !is_of_client);
  }
}

// As an earlier marud made them.
TEST(MemoryDevice, APoolInOnePieceIsAdoptedAsItIs) {
  FileDescriptor fd(::memfd_create("marud:test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), off_t(kBytes)), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  struct stat status = {};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  const DeviceIdentity identity = {status.st_dev, status.st_ino, uint32_t(::fcntl(fd.get(), F_GET_SEALS)), kBytes};
  const auto adopt = [&] { return MemoryDevice::adopt({another(fd.get()), {}}, identity, std::nullopt); };
  PoolConfig config;
  config.name = "test";
  config.page_bytes = 4096;
  config.region_bytes = 64u << 10;
  config.lanes = 8;
  auto blank = adopt();
  ASSERT_TRUE(blank) << blank.error().text();
  ASSERT_TRUE(Pool::format(config, std::move(*blank), 1000));
  auto again = adopt();
  ASSERT_TRUE(again) << again.error().text();
  const auto pool = Pool::adopt(config, std::move(*again), 2000);
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_FALSE((*pool)->device().is_split());
  EXPECT_EQ((*pool)->epoch(), 2u);
}

}  // namespace
}  // namespace maru::daemon
