// Room in the file system of a pool in two files: all of it, unless the configuration says no.
#include "daemon/hosting/hosted_pool.h"
#include "daemon/memory/device.h"
#include "maru/format/data_label.h"
#include "tests/unit/startable_pool.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

namespace fs = std::filesystem;

class FileRoom : public StartablePool {
 protected:
  std::string control_ = directory_.file("control"), pages_ = directory_.file("pages");

  FileRoom() : StartablePool(Backend::kFile) {
    spec_.path = pages_;
    spec_.control_path = control_;
    spec_.bytes = 8u << 20;
  }
  // The same bytes again, in a file whose zeros are holes.
  static void copy_with_holes(const std::string& path) {
    constexpr uint64_t kOsPage = 4096;
    const std::string zeros(kOsPage, '\0');
    std::ifstream file(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    fs::remove(path);
    std::ofstream copy(path, std::ios::binary);
    for (uint64_t at = 0; at < all.size(); at += kOsPage) {
      if (all.compare(at, kOsPage, zeros) == 0) continue;
      copy.seekp(std::streamoff(at));
      copy << all.substr(at, kOsPage);
    }
    copy.close();
    fs::resize_file(path, all.size());
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  }
};

uint64_t room_of(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? uint64_t(status.st_blocks) * 512 : 0;
}

TEST_F(FileRoom, ANewOneHasAllItsRoom) {
  leave_pool();
  for (const std::string& path : {control_, pages_}) EXPECT_GE(room_of(path), fs::file_size(path)) << path;
}

TEST_F(FileRoom, ACopyWithHolesHasAllItsRoomAgain) {
  const std::string uuid = leave_pool();
  for (const std::string& path : {control_, pages_}) {
    copy_with_holes(path);
    ASSERT_LT(room_of(path), fs::file_size(path)) << path;
  }
  expect_adoption(uuid, 2);
  for (const std::string& path : {control_, pages_}) EXPECT_GE(room_of(path), fs::file_size(path)) << path;
}

// Its control region has it all the same, or all clients would meet that.
TEST_F(FileRoom, WithoutReservingThePagesHaveNoRoomAndThePoolSaysSo) {
  spec_.reserve = false;
  const auto pool = start();
  ASSERT_TRUE(pool) << pool.error().text();
  EXPECT_EQ((*pool)->serving()->device().unreserved_because(), "its configuration says reserve = false");
  EXPECT_GE(room_of(control_), (*pool)->serving()->header().control_bytes);
  EXPECT_LT(room_of(pages_), fs::file_size(pages_));
}

TEST_F(FileRoom, TouchedFirstItHasItsMemoryBeforeItServes) {
  spec_.reserve = false;
  spec_.numa.first_touch = true;
  const std::string uuid = leave_pool();
  EXPECT_GE(room_of(control_), fs::file_size(control_));
  EXPECT_GE(room_of(pages_) + format::kDataLabelRoom, fs::file_size(pages_));
  expect_adoption(uuid, 2);
}

}  // namespace
}  // namespace maru::daemon
