// Pools in files whose file system fills up: no engine gets a signal for that. Each test mounts a tmpfs, in a mount namespace
// of its own.
#include "libmaru/base/file_descriptor.h"
#include "maru/format/control_region.h"
#include "maru/format/data_label.h"
#include "tests/process/roles.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kMiB = 1u << 20, kPoolBytes = 6 * kMiB, kDiskBytes = 12 * kMiB, kPageBytes = 4096;
constexpr const char* kEveryPage = "1500";  // more than the pool has

class FullDisk : public ::testing::TestWithParam<bool> {  // in two files
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      GTEST_SKIP() << "no mount namespace of its own: " << std::strerror(errno);
    mount_disk("tmpfs", "size=" + std::to_string(kDiskBytes));
  }
  void TearDown() override {
    marud_.reset();
    while (::umount2(disk_.path().c_str(), MNT_DETACH) == 0) {  // ends: one after the other goes
    }
  }
  void mount_disk(const char* type, const std::string& options) {
    ASSERT_EQ(::mount("none", disk_.path().c_str(), type, 0, options.c_str()), 0) << std::strerror(errno);
  }
  std::string pages() const { return disk_.file("pages"); }

  // The pool "default" on the disk, beside one in memory.
  void start(const std::string& more) {
    PoolWish wish;
    wish.name = "memory";
    wish.more = "\n[[pool]]\nname = \"default\"\nbackend = \"file\"\npath = \"" + pages() + "\"\n" +
                (GetParam() ? "control_path = \"" + disk_.file("control") + "\"\n" : "") +
                "size = " + std::to_string(kPoolBytes) + "\npage_bytes = 4096\nregion_bytes = \"256KiB\"\n" +
                "lanes = 8\npins = 2048\nhigh_watermark = 1\nlow_watermark = 0.5\n" + more;
    marud_ = std::make_unique<MarudProcess>(std::vector{wish});
  }
  // Another program takes the room that is left on the disk, but for so much.
  void fill_disk(uint64_t but_bytes = 0) {
    const FileDescriptor other(::open(disk_.file("other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::error_code failed;
    const uint64_t free_bytes = std::filesystem::space(disk_.path(), failed).free;
    ASSERT_GE(free_bytes, but_bytes);
    ASSERT_EQ(::fallocate(other.get(), 0, 0, off_t(free_bytes - but_bytes)), 0) << std::strerror(errno);
  }
  void make_room() { std::filesystem::remove(disk_.file("other")); }
  // Pages of zeros lose their room, as if a marud had given them out without any.
  void punch_zeros() {
    const FileDescriptor file(::open(pages().c_str(), O_RDWR | O_CLOEXEC));
    format::Header header;
    ASSERT_EQ(::pread(file.get(), &header, sizeof(header), 0), ssize_t(sizeof(header)));
    const uint64_t end = std::filesystem::file_size(pages());
    std::string page(kPageBytes, '\0');
    for (uint64_t at = GetParam() ? format::kDataLabelRoom : header.control_bytes; at < end; at += kPageBytes) {
      ASSERT_EQ(::pread(file.get(), page.data(), page.size(), off_t(at)), ssize_t(page.size()));
      if (page != std::string(kPageBytes, '\0')) continue;
      ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(kPageBytes)), 0);
    }
  }
  // The errno with which an engine ends that stores until it cannot, or that a signal ended it.
  int store_all(const char* pages = kEveryPage) {
    ChildProcess engine({own_program(), "--role", "store-as", marud_->socket_path(), "0", pages});
    const auto ended = engine.wait();
    EXPECT_TRUE(ended && !ended->by_signal) << (ended ? ended->text() : "it hangs");
    return ended && !ended->by_signal ? ended->code : -1;
  }
  json status() { return marud_->pool_status(); }

  TemporaryDirectory disk_;
  std::unique_ptr<MarudProcess> marud_;
};

INSTANTIATE_TEST_SUITE_P(Files, FullDisk, ::testing::Values(false, true));

TEST_P(FullDisk, APoolHasAllItsRoomFromTheBeginning) {
  start("");
  fill_disk();
  const uint64_t count = TestClient(marud_->socket_path()).geometry().pages;
  EXPECT_EQ(store_all(std::to_string(count).c_str()), 0);
  EXPECT_FALSE(status().contains("unreserved_because"));
  EXPECT_EQ(store_all(), ENOSPC) << "it is full, and everything is pinned or was stored before";
}

TEST_P(FullDisk, WithoutThatAStoreIsRefusedWhenItIsFull) {
  start("reserve = false\n");
  EXPECT_TRUE(marud_->has_logged("has not promised room for all of it"));
  EXPECT_TRUE(marud_->has_logged("reserve = false"));
  fill_disk(kMiB);
  EXPECT_EQ(store_all(), ENOSPC);
  EXPECT_TRUE(marud_->has_logged("gives its clients no further region until there is room"));
  EXPECT_TRUE(status().contains("full_because")) << status().dump();
  EXPECT_GT(status().value("unreserved_bytes", uint64_t{0}), 0u);
  make_room();
  EXPECT_TRUE(wait_until([&] { return !status().contains("full_because"); }));
  EXPECT_EQ(store_all("700"), 0);
}

// Each region is touched before a client gets it.
TEST_P(FullDisk, AFileSystemThatCannotReserveRoomIsNamed) {
  mount_disk("ramfs", "");
  start("");
  EXPECT_TRUE(marud_->has_logged("its file system has no call for it (fallocate)"));
  EXPECT_TRUE(status().contains("unreserved_because"));
  const uint64_t before = status().value("unreserved_bytes", uint64_t{0});
  EXPECT_EQ(store_all("300"), 0);
  EXPECT_LT(status().value("unreserved_bytes", before), before);
}

// Room that another program has taken away: libmaru tells a full file system from bad memory.
TEST_P(FullDisk, ACopyIntoMemoryThatIsNotThereSaysSo) {
  start("reserve = false\n");
  TestClient client(marud_->socket_path());
  ASSERT_EQ(client.store("first", "text"), 0);
  punch_zeros();
  fill_disk();
  ASSERT_EQ(maru_handle_memory_errors(0), 0);
  EXPECT_EQ(client.store("second", std::string(3000, 'x')), -ENOSPC);
  make_room();
  EXPECT_EQ(client.store("second", std::string(3000, 'x')), 0);
  EXPECT_EQ(marud_->log().find("bad memory"), std::string::npos);
}

// As a marud leaves them that gave out pages without any room.
TEST_P(FullDisk, FreePagesWithoutRoomAreTakenBackAtTheStart) {
  start("reserve = false\n");
  {
    TestClient client(marud_->socket_path());
    for (int i = 0; i < 80; ++i) EXPECT_EQ(client.store("old " + std::to_string(i), std::string(4000, 'o')), 0);
  }
  marud_->kill();
  punch_zeros();
  fill_disk();
  marud_->start();
  EXPECT_TRUE(marud_->has_logged("free pages are not given to clients until there is room"));
  EXPECT_EQ(store_all(), ENOSPC);
  make_room();
  EXPECT_TRUE(wait_until([&] { return !status().contains("full_because"); }));
  EXPECT_EQ(store_all("400"), 0);
  EXPECT_EQ(marud_->ask({{"command", "check"}, {"quiesce", true}}).at("found"), 0u);
}

}  // namespace
}  // namespace maru::test
