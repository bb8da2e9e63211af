// The file tier on a device that fails: without room, with errors, or slow. The tier's calls to its device come here first.
#include "daemon/tierd/tiers/file/log_format.h"
#include "daemon/tierd/tiers/file/transfers.h"
#include "libmaru/base/file_descriptor.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/tier_user.h"

#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

// Of each counter, so many calls fail or wait.
struct Device {
  std::atomic<bool> is_full = false;                 // regions get no header, also in the place of an older one
  std::atomic<int> bad_reads = 0, bad_writes = 0;    // of records
  std::atomic<int> slow_writes = 0;                  // of records of the key "slow"
  std::atomic<bool> holds = false, is_held = false;  // until `holds` ends
  std::atomic<int> refused_submits = 0;
} device;

bool takes_one(std::atomic<int>& counter) {
  int left = counter;
  while (left > 0 && !counter.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

}  // namespace

extern "C" ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  if (device.is_full) return errno = ENOSPC, -1;
  return ::syscall(SYS_pwrite64, file, data, bytes, offset);
}
extern "C" ssize_t preadv(int file, const iovec* pieces, int n, off_t offset) {
  if (takes_one(device.bad_reads)) return errno = EIO, -1;
  return ::syscall(SYS_preadv, file, pieces, n, offset, 0);
}
extern "C" ssize_t pwritev2(int file, const iovec* pieces, int n, off_t offset, int flags) {
  if (takes_one(device.bad_writes)) return errno = EIO, -1;
  const std::string_view begin(static_cast<const char*>(pieces[0].iov_base), pieces[0].iov_len);
  const bool is_slow = begin.substr(sizeof(maru::tierd::RecordHeader)).starts_with("slow");
  if (is_slow && takes_one(device.slow_writes)) {
    device.is_held = true;
    device.holds.wait(true);
  }
  return ::syscall(SYS_pwritev2, file, pieces, n, offset, 0, flags);
}
extern "C" int io_uring_submit(io_uring* ring) {
  static const auto real = reinterpret_cast<int (*)(io_uring*)>(::dlsym(RTLD_NEXT, "io_uring_submit"));
  return takes_one(device.refused_submits) ? -EAGAIN : real(ring);
}

namespace maru::test {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kRegionBytes = 64u << 10, kRegions = 6;
constexpr int kEntriesOfRegion = 4;  // of entry()

class FileFaults : public testing::Test {
 protected:
  static TierEntry entry(char content = 'x') { return {"attributes", std::string(8000, content), 3}; }
  tierd::TierOptions options(tierd::TierOptions more = {}) const {
    tierd::TierOptions all = {{"path", directory_.file("log")},
                              {"capacity", std::to_string(tierd::kLogFirstRegion + kRegions * kRegionBytes)},
                              {"region_bytes", std::to_string(kRegionBytes)},
                              {"direct", "no"},
                              {"readers", "2"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::unique_ptr<tierd::Tier> open(tierd::TierOptions more = {}) { return open_or_throw("file", options(more)); }
  // The readers write, by calls that can fail here.
  std::unique_ptr<tierd::Tier> open_without_ring() { return open({{"io_uring", "false"}}); }

  TemporaryDirectory directory_;
};

TEST_F(FileFaults, ATierThatCannotStartIsRefused) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  FileDescriptor next(::dup(1));
  const rlimit for_the_log_alone = {rlim_t(next.get()) + 1, before.rlim_max};
  next.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &for_the_log_alone), 0);
  const auto tier = tierd::Tier::open("file", options());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(tier);
  EXPECT_NE(tier.error().text().find("raise the limit of open files"), std::string::npos) << tier.error().text();
}

// As btrfs and ZFS, which take new room to replace a block.
TEST_F(FileFaults, AFullFileSystemThatReplacesNoBlockCostsNoEntries) {
  auto tier = open();
  TierUser user(*tier);
  for (int i = 0; i < 60; ++i) ASSERT_EQ(user.store("key " + std::to_string(i), entry()), 0);
  ASSERT_GT(tier->usage().evicted, 0u);
  device.is_full = true;
  int result = 0;
  for (int i = 0; result == 0 && i < 60; ++i) result = user.store("more " + std::to_string(i), entry());
  EXPECT_EQ(result, -ENOSPC);
  EXPECT_GE(tier->usage().entries, (kRegions - 3) * kEntriesOfRegion) << "regions were given up that nothing can take";
  device.is_full = false;
  EXPECT_TRUE(wait_until([&] { return user.store("later", entry()) == 0; }));
  const uint64_t entries = tier->usage().entries;
  tier = nullptr;
  EXPECT_LE(open()->usage().entries, entries) << "entries that had gone are back";
}

TEST_F(FileFaults, ADeletionReachesWhatCouldNotBeRead) {
  {
    const auto tier = open();
    TierUser user(*tier);
    ASSERT_EQ(user.store("key", entry()), 0);
    device.bad_reads = 1;
    int result = 0;
    EXPECT_FALSE(user.load("key", &result));
    EXPECT_EQ(result, -EIO);
    EXPECT_EQ(user.lookup("key").result, -ENOENT);
    EXPECT_EQ(user.remove("key"), 0);
    EXPECT_EQ(user.remove("key"), -ENOENT);
  }
  const auto tier = open();
  EXPECT_EQ(TierUser(*tier).lookup("key").result, -ENOENT) << "a deleted entry is back";
}

TEST_F(FileFaults, ADeletionThatFailedCanBeRepeated) {
  {
    const auto tier = open_without_ring();
    TierUser user(*tier);
    ASSERT_EQ(user.store("key", entry()), 0);
    device.bad_writes = 1;
    EXPECT_EQ(user.remove("key"), -EIO);
    EXPECT_EQ(user.lookup("key").result, -ENOENT);
    EXPECT_EQ(user.remove("key"), 0);
  }
  const auto tier = open();
  EXPECT_EQ(TierUser(*tier).lookup("key").result, -ENOENT) << "a deleted entry is back";
}

// Otherwise the record of before would lie in a newer region than the record that takes its place, and outlast it.
TEST_F(FileFaults, AnEntryIsNotMovedPastAStoreOfItsKey) {
  {
    const auto tier = open_without_ring();
    TierUser user(*tier);
    int stored = 0;
    const auto store_next = [&] { ASSERT_EQ(user.store("filler " + std::to_string(stored++), entry()), 0); };
    ASSERT_EQ(user.store("slow", entry('1')), 0);
    ASSERT_TRUE(user.load("slow"));
    // The new record is the last in region 3. Region 4 then leaves one clean region, so region 0 is given up.
    while (stored < 4 * kEntriesOfRegion - 2) store_next();
    device.holds = true;
    device.slow_writes = 1;
    const uint64_t ticket = user.begin(MARU_TIER_STORE, "slow", entry('2'));
    ASSERT_TRUE(wait_until([] { return device.is_held.load(); }));
    store_next();
    EXPECT_TRUE(wait_until([&] { return tier->usage().evicted > 0; }));
    device.holds = false;
    device.holds.notify_all();
    EXPECT_EQ(user.finish(ticket).result, 0);
    user.drop(ticket);
    while (stored < 100 && user.lookup("slow").result == 0) store_next();
    EXPECT_EQ(user.lookup("slow").result, -ENOENT);
  }
  const auto tier = open();
  EXPECT_EQ(TierUser(*tier).lookup("slow").result, -ENOENT) << "a replaced entry is back";
}

TEST_F(FileFaults, AWriteThatTheKernelHadNoMemoryForIsSubmittedAgain) {
  const auto tier = open();
  if (std::strstr(tier->health().text, "io_uring") != nullptr) GTEST_SKIP() << tier->health().text;
  TierUser user(*tier);
  device.refused_submits = 2;
  EXPECT_EQ(user.store("key", entry()), 0);
  EXPECT_EQ(user.load("key"), entry());
}

// A user that waits for one read wants the next one soon. So the writes that wait do not all begin in between.
TEST(Transfers, WritesStayFewForAMomentAfterARead) {
  constexpr size_t kBytes = 64 << 10;
  TemporaryDirectory directory;
  const FileDescriptor file(::open(directory.file("data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  std::string slow(kBytes, 'x'), fast(kBytes, 'x'), room(kBytes, 0);
  slow.replace(sizeof(tierd::RecordHeader), 4, "slow");
  ASSERT_EQ(::pwrite(file.get(), room.data(), kBytes, 0), ssize_t(kBytes));
  for (const std::chrono::milliseconds moment : {0ms, std::chrono::milliseconds(24h)}) {
    std::atomic<int> reads = 0, writes = 0;
    tierd::Transfers transfers(file.get(), {4, 16 * kBytes, kBytes, moment, false});
    const auto start = [&](bool is_write, std::string& bytes, std::atomic<int>& done) {
      tierd::Transfer transfer;
      transfer.pieces[0] = {bytes.data(), bytes.size()};
      transfer.done = [&done](int result) { done += result == 0; };
      is_write ? transfers.write(std::move(transfer)) : transfers.read(std::move(transfer));
    };
    const auto read_once = [&] {
      const int before = reads;
      start(false, room, reads);
      return wait_until([&] { return reads > before; });
    };
    ASSERT_TRUE(read_once());
    device.holds = true;
    device.slow_writes = 1;
    start(true, slow, writes);
    ASSERT_TRUE(wait_until([] { return device.is_held.load(); }));
    start(true, fast, writes);
    if (moment == 0ms) {
      EXPECT_TRUE(wait_until([&] { return writes == 1; }));
    } else {
      // Each of these threads looks for a write behind its read.
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(read_once());
      EXPECT_EQ(writes, 0);
    }
    device.holds = device.is_held = false;
    device.holds.notify_all();
    EXPECT_TRUE(wait_until([&] { return writes == 2; }));
  }
}

}  // namespace
}  // namespace maru::test
