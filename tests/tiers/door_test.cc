// The socket of prefetches when descriptors run out: nothing spins, and connections are served again afterwards.
#include "daemon/tierd/prefetch_door.h"
#include "tests/support/temporary_directory.h"

#include <cstring>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::tierd {
namespace {

// No new descriptor gets this number or a higher one.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit fewer = {limit, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_ = {};
};

rlim_t lowest_free_descriptor() { return rlim_t(FileDescriptor(::dup(0)).get()); }

class Door : public testing::Test {
 protected:
  void SetUp() override {
    auto door = PrefetchDoor::open(path_, loads_,
                                   [](uint32_t, const std::string&, PrefetchDoor::Answer answer) { answer(0, "{}"); });
    ASSERT_TRUE(door) << door.error().text();
    door_ = std::move(*door);
  }

  FileDescriptor connect() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  // Whether maru-tierd's loop would serve it at once, again and again. poll() needs a descriptor below the limit.
  bool is_ready() const {
    epoll_event event;
    return ::epoll_wait(door_->descriptor(), &event, 1, 0) == 1;
  }
  // The first bytes of an answer; 0: the connection was closed; -1: neither yet.
  static ssize_t received(const FileDescriptor& socket) {
    char room[64];
    return ::recv(socket.get(), room, sizeof room, MSG_DONTWAIT);
  }
  void expect_served(const FileDescriptor& socket) {
    const prefetch::MessageHeader question = {prefetch::kMessageMagic, prefetch::kListTiers, 0, 0};
    ASSERT_EQ(::send(socket.get(), &question, sizeof question, MSG_NOSIGNAL), ssize_t(sizeof question));
    while (is_ready()) {
      door_->serve();
      const ssize_t got = received(socket);
      if (got < 0) continue;
      EXPECT_EQ(got, ssize_t(sizeof question) + 2) << "a header and {}";
      return;
    }
    ADD_FAILURE() << "the question is not answered";
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/door";
  TenantNames names_;
  Counters counters_;
  StoreController::Slots slots_;
  std::unique_ptr<TenantQuotas> quotas_ = *TenantQuotas::open("", 0);
  StoreController stores_{{}, nullptr, {}, names_, *quotas_, slots_, counters_};
  PrefetchController loads_{{}, nullptr, {}, names_, slots_, stores_, counters_};
  std::unique_ptr<PrefetchDoor> door_;
};

TEST_F(Door, ASpareDescriptorTurnsConnectionsAway) {
  const FileDescriptor first = connect(), second = connect();
  {
    const DescriptorLimit all_are_taken(lowest_free_descriptor());
    door_->serve();
    EXPECT_FALSE(is_ready());
  }
  EXPECT_EQ(received(first), 0) << "the asker goes on without";
  EXPECT_EQ(received(second), 0);
  expect_served(connect());
}

TEST_F(Door, WithoutAnyDescriptorConnectionsWaitForTheEndOfOne) {
  FileDescriptor old = connect();
  expect_served(old);
  const FileDescriptor fresh = connect();
  bool was_ready = true;
  {
    const DescriptorLimit none(0);
    door_->serve();
    was_ready = is_ready();
  }
  EXPECT_FALSE(was_ready) << "maru-tierd would spin";
  EXPECT_EQ(received(fresh), -1);
  old.reset();
  expect_served(fresh);
}

TEST_F(Door, WithoutAnyDescriptorConnectionsWaitForAPause) {
  const FileDescriptor fresh = connect();
  {
    const DescriptorLimit none(0);
    door_->serve();
  }
  const Clock::time_point now = Clock::now();
  door_->tick(now);
  EXPECT_FALSE(is_ready());
  door_->tick(now + PrefetchDoor::kAcceptPause);
  expect_served(fresh);
}

}  // namespace
}  // namespace maru::tierd
