// The lock of a lane lasts as long as a process has the memory open or mapped through its client's description.
#include "daemon/pool/lanes/lane_locks.h"

#include "daemon/memory/device.h"
#include "libmaru/base/mapping.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/pool_fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr ClientIdentity kWho = {17, 5, 5, 99};

struct Locked {
  LaneGrant grant;
  FileDescriptor control;
};

Locked attach_locked(PoolUnderTest& home, const ClientIdentity& who = kWho) {
  Locked client;
  const auto grant = home.pool->attach(who, 0, 0, home.now_ms, &client.control);
  if (!grant) throw std::runtime_error(grant.error().text());
  client.grant = *grant;
  return client;
}

bool has_flag(const PoolUnderTest& home, uint32_t lane) {
  return (home.region.identity(lane).state.load_acquire() & format::kLaneHasLock) != 0;
}

TEST(LaneLocks, LastAsLongAsTheDescriptorOrTheMapping) {
  PoolUnderTest home;
  ASSERT_EQ(home.pool->why_no_lane_locks(), "");
  Locked client = attach_locked(home);
  ASSERT_TRUE(client.control.is_open());
  EXPECT_TRUE(has_flag(home, client.grant.lane));
  EXPECT_EQ(home.pool->lock_of(client.grant.lane), LaneLock::kHeld);
  auto mapped = Mapping::map_shared(client.control.get(), 0, 4096, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(mapped);
  client.control.reset();
  EXPECT_EQ(home.pool->lock_of(client.grant.lane), LaneLock::kHeld) << "a client may close what it has mapped";
  mapped->reset();
  EXPECT_EQ(home.pool->lock_of(client.grant.lane), LaneLock::kFree);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(LaneLocks, EndWithTheLastProcessThatHasTheDescription) {
  PoolUnderTest home;
  Locked client = attach_locked(home);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor read_end(ends[0]), write_end(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    write_end.reset();
    (void)!::read(read_end.get(), &byte, 1);
    ::_exit(0);
  }
  client.control.reset();
  EXPECT_EQ(home.pool->lock_of(client.grant.lane), LaneLock::kHeld);
  write_end.reset();
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(home.pool->lock_of(client.grant.lane), LaneLock::kFree);
}

TEST(LaneLocks, OfAnEarlierLifeOfTheLaneAreInNobodysWay) {
  PoolUnderTest home(1u << 20, 16, 64, {}, 0, 256, 2);
  const Locked first = attach_locked(home);
  home.pool->client_died(first.grant.lane);  // as its pidfd says; a child of it may have the descriptor still
  home.settle();
  EXPECT_FALSE(has_flag(home, first.grant.lane));
  Locked second = attach_locked(home, {18, 5, 5, 100});
  ASSERT_EQ(second.grant.lane, first.grant.lane);
  EXPECT_TRUE(has_flag(home, second.grant.lane));
  second.control.reset();
  EXPECT_EQ(home.pool->lock_of(second.grant.lane), LaneLock::kFree);
}

// Any client can have done that.
TEST(LaneLocks, ThatSomebodyElseHasAreNoProof) {
  PoolUnderTest home;
  const uint32_t lane = 1, generation = 1;
  ASSERT_TRUE(LaneLocks::lock(home.fd.get(), lane, generation));
  const Locked client = attach_locked(home);
  ASSERT_EQ(client.grant.lane, lane);
  ASSERT_EQ(client.grant.generation, generation);
  EXPECT_FALSE(has_flag(home, lane));
  EXPECT_EQ(home.pool->lock_of(lane), LaneLock::kUnknown);
}

TEST(LaneLocks, TellTheNextMarudWhichLanesAreMapped) {
  PoolUnderTest home;
  Locked lives = attach_locked(home), ends = attach_locked(home, {18, 5, 5, 100});
  for (const Locked* one : {&lives, &ends})
    home.region.identity(one->grant.lane).pid_namespace.store_relaxed(1);  // whatever marud's is
  ends.control.reset();
  ASSERT_TRUE(home.restart());
  ASSERT_EQ(home.pool->adopted_lanes().size(), 2u);
  EXPECT_TRUE(home.pool->adopted_lanes()[0].is_elsewhere);
  EXPECT_EQ(home.pool->adopted_lanes()[0].pid_namespace, 1u);
  EXPECT_EQ(home.pool->lock_of(lives.grant.lane), LaneLock::kHeld);
  EXPECT_EQ(home.pool->lock_of(ends.grant.lane), LaneLock::kFree);
  EXPECT_EQ(home.pool->unproven_lanes(), 0u);
}

TEST(LaneLocks, ThatALaneDoesNotHaveLeaveItUnproven) {
  PoolUnderTest home;
  const auto client = home.attach();  // without a description of its own, as of a marud before
  EXPECT_FALSE(has_flag(home, client->grant.lane));
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(home.pool->unproven_lanes(), 0u) << "its pid is of this namespace";
  home.region.identity(client->grant.lane).pid_namespace.store_relaxed(1);
  ASSERT_TRUE(home.restart());
  EXPECT_TRUE(home.pool->is_unproven(client->grant.lane));
  EXPECT_EQ(home.pool->unproven_lanes(), 1u);
  EXPECT_EQ(home.pool->status_json(home.now_ms).at("lanes").at("unproven"), 1);
  home.pool->client_died(client->grant.lane);
  home.settle();
  EXPECT_EQ(home.pool->unproven_lanes(), 0u);
}

// What it has lost cannot tell of its end, and the next marud must not think so.
TEST(LaneLocks, ThatALivingProcessHasLostAreAskedForNoMore) {
  PoolUnderTest home;
  Locked watched = attach_locked(home), comes_back = attach_locked(home, {18, 5, 5, 100});
  watched.control.reset();
  comes_back.control.reset();
  ASSERT_TRUE(home.restart());
  home.pool->lane_is_watched(watched.grant.lane, 6);
  const auto again = home.pool->attach({18, 5, 5, 100}, comes_back.grant.lane, comes_back.grant.generation, home.now_ms,
                                       &comes_back.control);
  ASSERT_TRUE(again && again->kept);
  EXPECT_FALSE(comes_back.control.is_open()) << "it has the memory mapped already";
  EXPECT_TRUE(home.pool->adopted_lanes().empty());
  ASSERT_TRUE(home.restart());
  for (const Locked* one : {&watched, &comes_back}) {
    EXPECT_FALSE(has_flag(home, one->grant.lane));
    EXPECT_EQ(home.pool->lock_of(one->grant.lane), LaneLock::kUnknown);
  }
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(LaneLocks, ThatALivingProcessHasStayWithIt) {
  PoolUnderTest home;
  const Locked watched = attach_locked(home), comes_back = attach_locked(home, {18, 5, 5, 100});
  ASSERT_TRUE(home.restart());
  home.pool->lane_is_watched(watched.grant.lane, std::nullopt);
  ASSERT_TRUE(home.pool->attach({18, 5, 5, 100}, comes_back.grant.lane, comes_back.grant.generation, home.now_ms));
  ASSERT_TRUE(home.restart());
  for (const Locked* one : {&watched, &comes_back}) {
    EXPECT_TRUE(has_flag(home, one->grant.lane));
    EXPECT_EQ(home.pool->lock_of(one->grant.lane), LaneLock::kHeld);
  }
}

// Of a file system that nobody has tried locks on.
class ForeignFile final : public Device {
 public:
  explicit ForeignFile(const char* path) { fd_.reset(::open(path, O_RDWR | O_CLOEXEC)); }
  std::string_view kind() const override { return "file"; }
};

TEST(LaneLocks, AreNotBelievedOnAFileSystemThatMayLoseThem) {
  const ForeignFile file("/proc/self/oom_score_adj");
  ASSERT_GE(file.fd(), 0);
  LaneLocks locks;
  locks.begin(file, 0);
  EXPECT_NE(locks.why_none(), "");
  const auto control = locks.open();
  ASSERT_TRUE(control);
  EXPECT_FALSE(control->is_open());
}

}  // namespace
}  // namespace maru::daemon
