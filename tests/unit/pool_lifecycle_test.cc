// Removing a pool, without a server: what counts as a client.
#include "daemon/hosting/pool_lifecycle.h"
#include "daemon/admin/commands.h"
#include "daemon/admin/metrics.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {
thread_local size_t fails_of = 0;  // the next allocation of so many bytes by this thread fails
}  // namespace

// None of them inlined: the compiler would see free() of what another operator new returned, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (bytes == fails_of) {
    fails_of = 0;
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace maru::daemon {
namespace {

constexpr Moment kNow = {1'700'000'000'000, 5'000};
constexpr uint64_t kDeadlineMs = 1000;
constexpr Moment kLater = {kNow.unix_ms + 2 * kDeadlineMs, kNow.monotonic_ms + 2 * kDeadlineMs};

// After a restart marud may know of a lane whose process it cannot watch: /proc hides it, or there is no descriptor left.
class UnwatchedLane : public ::testing::Test {
 protected:
  UnwatchedLane() : state_(directory_.file("state")) {
    ::mkdir(directory_.file("state").c_str(), 0700);
    add_pool("default");
    process_ = ::fork();
    if (process_ == 0)
      for (;;) ::pause();
    const ClientIdentity who = {process_, ::getuid(), ::getgid(), start_time_of(process_).value_or(0)};
    lane_ = pool().attach(who, 0, 0, kNow.unix_ms).value().lane;
  }
  ~UnwatchedLane() override {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  void add_pool(const std::string& name) {
    PoolSpec spec;
    spec.pool.name = name;
    spec.pool.page_bytes = 4096;
    spec.pool.region_bytes = 64 << 10;
    spec.pool.lanes = 8;
    spec.bytes = 1 << 20;
    spec.huge_pages = HugePages::kNever;
    std::map<std::string, FileDescriptor> stored;
    auto hosted = HostedPool::start(spec, state_, stored, kNow.unix_ms);
    if (!hosted) throw std::runtime_error(hosted.error().text());
    pools_.push_back(std::move(*hosted));
  }
  Pool& pool() { return *pools_[0]->serving(); }
  nlohmann::json remove(bool fence) {
    return lifecycle_.run("device.remove",
                          {{"name", "default"}, {"deadline_ms", kDeadlineMs}, {"discard", true}, {"fence", fence}},
                          "a test", kNow);
  }

  test::TemporaryDirectory directory_;
  StateDirectory state_;
  Config config_;
  HostedPools pools_;
  LaneWatches lanes_;
  PoolLifecycle lifecycle_{config_, pools_, lanes_, state_, [] { return Reading(); }, [](bool) {}};
  pid_t process_ = 0;
  uint32_t lane_ = 0;
};

// It would run as marud's own user, and the admin group may not become that user.
TEST_F(UnwatchedLane, AdministratorsAddNoPoolThatHasAProgramRun) {
  const std::string toml = "[[pool]]\nname = \"new\"\nbackend = \"file\"\npath = \"" + directory_.file("new.pool") +
                           "\"\nsize = \"4MiB\"\nprofile = \"shared\"\ncoherent = true\n"
                           "fencing_command = [\"/bin/true\"]\nfencing_names = [\"other\"]\n";
  const auto add = [&](bool of_owner) {
    lifecycle_.run("device.add", {{"toml", toml}}, "a test", kNow, of_owner);
    std::vector<LateAnswer> answers;
    EXPECT_TRUE(test::wait_until([&] {
      lifecycle_.step(kNow);
      answers = lifecycle_.take_answers();
      return !answers.empty();
    }));
    return answers.at(0).reply;
  };
  const AdminReply refused = add(false);
  EXPECT_EQ(refused.code, EINVAL);
  EXPECT_NE(refused.text.find("line 8: pool \"new\": fencing_command: found a program"), std::string::npos)
      << refused.text;
  EXPECT_EQ(add(true).code, 0);
}

// Or whoever watches it for restarts sees one whenever the two clocks of a scrape were read a millisecond apart.
TEST_F(UnwatchedLane, MarudStartedWhenItDidWhateverTheClockSaysNow) {
  for (const uint64_t now_unix_ms : {kNow.unix_ms, kNow.unix_ms + 1, kNow.unix_ms - 3'600'000}) {
    const AdminView view = {pools_, lanes_, 0, 1234567, 5, now_unix_ms, kNow.monotonic_ms, &lifecycle_};
    EXPECT_EQ(snapshot_of(view, "no pool").start_unix_ms, 1234567u);
  }
}

TEST_F(UnwatchedLane, HoldsThePool) {
  EXPECT_TRUE(lifecycle_.is_held(*pools_[0])) << "or marud's end would give up memory that the next one is handed back";
  EXPECT_EQ(remove(false).value("clients", 0), 1);
  lifecycle_.step(kNow);
  EXPECT_EQ(pools_[0]->condition(), HostedPool::Condition::kLeaving);
  lifecycle_.step(kLater);
  EXPECT_EQ(pools_[0]->condition(), HostedPool::Condition::kServing);
  EXPECT_NE(pools_[0]->stays_because().find(std::to_string(process_)), std::string::npos) << pools_[0]->stays_because();
}

TEST_F(UnwatchedLane, LetsThePoolGoWhenItsProcessIsGone) {
  remove(false);
  pool().client_died(lane_);
  EXPECT_FALSE(lifecycle_.is_held(*pools_[0]));
  lifecycle_.step(kNow);
  ASSERT_FALSE(pools_[0]->is_gone()) << "before it was taken back";
  pool().turn(kNow.unix_ms);
  EXPECT_TRUE(test::wait_until([&] {
    lifecycle_.step(kNow);
    return pools_[0]->is_gone();
  }));
}

// Whoever may write to the pool may have written any process there before marud was started.
TEST_F(UnwatchedLane, IsNamedAndItsProcessNotEnded) {
  remove(true);
  lifecycle_.step(kLater);
  constexpr Moment kLast = {kLater.unix_ms + 3'600'000, kLater.monotonic_ms + 3'600'000};
  lifecycle_.step(kLast);
  EXPECT_EQ(::waitpid(process_, nullptr, WNOHANG), 0) << "it lives";
  EXPECT_EQ(pools_[0]->condition(), HostedPool::Condition::kServing);
  for (const std::string& said : {std::to_string(process_), std::string("only the pool says")})
    EXPECT_NE(pools_[0]->stays_because().find(said), std::string::npos) << pools_[0]->stays_because();
}

// The pool is drained by then, and its answer finds no memory.
TEST_F(UnwatchedLane, IsDrainedAndCalledBackWhereTheAnswerFindsNoMemoryAtFirst) {
  for (const bool drains : {true, false}) {
    const nlohmann::json asked =
        lifecycle_.run(drains ? "device.drain" : "device.cancel", {{"name", "default"}}, "a test", kNow);
    ASSERT_FALSE(asked.contains("error")) << asked.dump();
    std::vector<LateAnswer> answers = lifecycle_.take_answers();
    bool has_failed = !answers.empty();  // written down at once: nothing is left to fail
    EXPECT_TRUE(test::wait_until([&] {
      fails_of = has_failed ? 0 : sizeof(LateAnswer);
      try {
        lifecycle_.step(kNow);
      } catch (const std::bad_alloc&) {
        has_failed = true;
      }
      fails_of = 0;
      if (answers.empty()) answers = lifecycle_.take_answers();
      return !answers.empty();
    }));
    EXPECT_TRUE(has_failed) << "the test would prove nothing";
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].reply.code, 0) << answers[0].reply.text;
    const auto expected = drains ? HostedPool::Condition::kDraining : HostedPool::Condition::kServing;
    EXPECT_EQ(pools_[0]->condition(), expected);
    for (int turns = 0; turns < 3; ++turns) lifecycle_.step(kNow);
    EXPECT_EQ(state_.is_draining("default"), drains);
  }
}

// A command whose reply finds no memory is over for who asked, and the next one is not answered in its place.
TEST_F(UnwatchedLane, ANumberThatNobodyTookIsNotTheNextCommands) {
  const nlohmann::json drain = {{"name", "default"}};
  EXPECT_FALSE(lifecycle_.run("device.drain", drain, "a test", kNow).contains("error"));
  EXPECT_TRUE(lifecycle_.run("device.drain", {{"name", "absent"}}, "a test", kNow).contains("error"));
  EXPECT_EQ(lifecycle_.take_ticket(), 0u);
}

class WatchedLane : public UnwatchedLane {
 protected:
  LaneWatch& watch(bool has_attached) {
    const ClientIdentity who = {process_, ::getuid(), ::getgid(), start_time_of(process_).value_or(0)};
    LaneWatch one{0, 0, lane_, who, "a client", std::move(*open_process(process_, who.start_time)), 0, 0};
    one.has_attached = has_attached;
    return lanes_.add(std::move(one));
  }
  int refused(const nlohmann::json& request) {
    const AdminView view = {pools_, lanes_, 0, 0, 0, kNow.unix_ms, kNow.monotonic_ms, &lifecycle_};
    said_ = fence_client(view, request, "a test");
    return said_.value("errno", 0);
  }
  bool is_ended() {
    siginfo_t info = {};
    if (::waitid(P_PID, id_t(process_), &info, WEXITED | WNOWAIT) != 0) return false;
    return info.si_code == CLD_KILLED && info.si_status == SIGKILL;
  }
  bool lives() {
    siginfo_t info = {};
    return ::waitid(P_PID, id_t(process_), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == 0;
  }
  nlohmann::json said_;
};

TEST_F(WatchedLane, IsEndedWithThePoolWhenItHasAttached) {
  watch(true);
  remove(true);
  lifecycle_.step(kLater);
  EXPECT_TRUE(is_ended());
  EXPECT_EQ(pools_[0]->condition(), HostedPool::Condition::kLeaving) << "until its end was seen";
}

TEST_F(WatchedLane, OfThePoolsWordAloneIsNotEnded) {
  watch(false);
  remove(true);
  lifecycle_.step(kLater);
  EXPECT_TRUE(lives());
  EXPECT_EQ(refused({{"pid", process_}}), EACCES);
  EXPECT_NE(said_.dump().find("has not attached since marud was started"), std::string::npos) << said_.dump();
  EXPECT_TRUE(lives());
  lanes_.find_lane(0, lane_)->has_attached = true;
  EXPECT_EQ(refused({{"pid", process_}}), 0) << said_.dump();
  EXPECT_TRUE(is_ended());
}

TEST_F(WatchedLane, IsNotMeantByItsNumberAloneWhereThereAreSeveralPools) {
  watch(true);
  add_pool("other");
  EXPECT_EQ(refused({{"lane", lane_}}), EINVAL);
  EXPECT_TRUE(lives());
  EXPECT_EQ(refused({{"lane", lane_}, {"pool", "default"}}), 0) << said_.dump();
  EXPECT_TRUE(is_ended());
}

}  // namespace
}  // namespace maru::daemon
