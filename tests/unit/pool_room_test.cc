// A pool whose file system has not promised room: which region gets room first, and which pages clients get meanwhile.
#include "tests/support/wait_until.h"
#include "tests/unit/pool_fixture.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr uint32_t kRegionPages = 16;
constexpr uint64_t kPauseMs =
    1100;  // longer than marud rests between two attempts for regions that no request waits for

// Memory that another device has, without a promise of room for its pages.
class UnreservedDevice final : public Device {
 public:
  UnreservedDevice(const Device& of, FileDescriptor pages) : pages_identity_(of.pages_identity()) {
    name_ = "a test";
    unreserved_because_ = "a test says so";
    fd_ = std::move(pages);
    control_fd_.reset(::fcntl(of.control_fd(), F_DUPFD_CLOEXEC, 3));
    identity_ = of.identity();
    map_alignment_ = of.map_alignment();
    control_alignment_ = of.control_alignment();
    pages_offset_ = of.pages_offset();
    pages_room_ = of.pages_room();
    control_room_ = of.control_room();
  }
  std::string_view kind() const override { return "memory"; }
  const std::optional<DeviceIdentity>& pages_identity() const override { return pages_identity_; }

 private:
  std::optional<DeviceIdentity> pages_identity_;
};

class PoolRoom : public ::testing::Test {
 protected:
  // The pool has blocks in all regions but the last ones, and a marud adopts it that gets no room for any of them.
  void adopt_without_room(uint32_t regions_unused) {
    const uint32_t regions = home_.region.regions() - regions_unused;
    for (uint32_t i = 0; i < regions * kRegionPages; ++i) {
      blocks_.push_back(client_->store("k" + std::to_string(i)));
      ASSERT_FALSE(blocks_.back().is_none()) << i;
    }
    home_.pool.reset();
    const auto again = [](const FileDescriptor& one) { return FileDescriptor(::fcntl(one.get(), F_DUPFD_CLOEXEC, 3)); };
    auto memory = MemoryDevice::adopt({again(home_.fd), again(home_.pages_fd)}, home_.identity, home_.pages_identity);
    ASSERT_TRUE(memory) << memory.error().text();
    FileDescriptor pages(
        ::open(("/proc/self/fd/" + std::to_string(home_.pages_fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(pages.is_open());
    const int of_device = pages.get();
    auto adopted =
        Pool::adopt(home_.config, std::make_unique<UnreservedDevice>(**memory, std::move(pages)), home_.now_ms);
    ASSERT_TRUE(adopted) << adopted.error().text();
    home_.pool = std::move(*adopted);
    find_descriptor_of_room(of_device);
    for (int turns = 0; home_.pool->is_reclaiming(); ++turns) {
      ASSERT_LT(turns, 10'000);
      home_.pool->turn(home_.now_ms);
    }
  }
  // Room is taken through a descriptor of its own, with which nobody can write.
  void find_descriptor_of_room(int of_device) {
    struct stat wanted = {}, found = {};
    ASSERT_EQ(::fstat(home_.pages_fd.get(), &wanted), 0);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::stoi(entry.path().filename());
      if (fd != of_device && ::fstat(fd, &found) == 0 && found.st_ino == wanted.st_ino &&
          found.st_dev == wanted.st_dev && (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        room_fd_ = fd;
    }
    ASSERT_GE(room_fd_, 0);
  }
  void make_room() { ASSERT_EQ(::dup3(home_.pages_fd.get(), room_fd_, O_CLOEXEC), room_fd_); }
  uint64_t regions_without_room() {
    return home_.pool->status_json(home_.now_ms).value("unreserved_bytes", uint64_t{0}) / (kRegionPages * 4096);
  }

  PoolUnderTest home_{uint64_t{1} << 20, kRegionPages};
  std::unique_ptr<InProcessClient> client_ = home_.attach();
  std::vector<PageRef> blocks_;
  int room_fd_ = -1;
};

// The thread that takes room is at regions of an earlier marud. A request does not wait for all of these.
TEST_F(PoolRoom, ARequestThatWaitsComesBeforeRegionsForWhichNoneWaits) {
  adopt_without_room(2);
  const uint64_t lacking = regions_without_room();
  ASSERT_GT(lacking, 6u);
  make_room();
  home_.pool->turn(home_.now_ms += kPauseMs);  // the thread begins
  const auto fresh = home_.attach();
  ASSERT_TRUE(fresh);
  wire::RentRequest request = {};
  request.runs = request.run_pages = 1;
  uint64_t ticket = 0;
  RentResult result;
  ASSERT_TRUE(test::wait_until([&] {
    result = home_.pool->rent(fresh->grant.lane, request, home_.now_ms, {}, 1, &ticket);
    if (ticket != 0) home_.pool->turn(home_.now_ms += kPauseMs);
    return ticket == 0;
  }));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.regions.size(), 1u);
  EXPECT_GE(regions_without_room(), lacking - 3);
}

// Such a page may have no memory.
TEST_F(PoolRoom, FreePagesOfARegionWithoutRoomAreNotGiven) {
  adopt_without_room(0);
  const auto fresh = home_.attach();
  ASSERT_TRUE(fresh);
  ASSERT_TRUE(fresh->remove(blocks_[5]));
  home_.pool->turn(home_.now_ms += 50);
  ASSERT_EQ(home_.count(PageState::kFree), 1u);
  // Of the other blocks none may go.
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (i != 5)
      home_.region.block(blocks_[i].page()).word.store_release(PageWord::ready(blocks_[i].generation(), 1).bits);
  EXPECT_FALSE(fresh->rent(1));
  EXPECT_EQ(fresh->last_status, -ENOSPC);
  make_room();
  ASSERT_TRUE(test::wait_until([&] {
    home_.pool->turn(home_.now_ms += kPauseMs);
    return regions_without_room() == 0;
  }));
  EXPECT_TRUE(fresh->rent(1));
}

}  // namespace
}  // namespace maru::daemon
