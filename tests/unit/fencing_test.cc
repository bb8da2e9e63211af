// The fencing command, and the heartbeat of the host that may be fenced.
#include "daemon/pool/hosts/fencing.h"
#include "daemon/pool/hosts/heartbeat.h"
#include "daemon/pool/hosts/pool_hosts.h"
#include "libmaru/shm/region/host_claim.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"
#include "tests/unit/small_pool.h"

#include <atomic>
#include <csignal>
#include <dlfcn.h>
#include <fstream>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {
std::atomic<bool> disk_hangs{false};
std::atomic<int> spawns{0};
}  // namespace

// Instead of the C library's: a program on a disk that does not answer.
extern "C" int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  static const auto real = reinterpret_cast<decltype(&posix_spawn)>(::dlsym(RTLD_NEXT, "posix_spawn"));
  while (disk_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int code = real(pid, path, actions, attributes, arguments, environment);
  ++spawns;
  return code;
}

namespace maru::daemon {
namespace {

using test::TemporaryDirectory;
using test::wait_until;

// Someone who holds a process fast: even when it is killed its parent is not told before the tracer is gone.
class Tracer {
 public:
  explicit Tracer(pid_t traced) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // or a test that hangs and is ended would leave it
      const char seized = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 ? 'y' : 'n';
      if (::write(ready[1], &seized, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char seized = 'n';
    holds_ = ::read(ready[0], &seized, 1) == 1 && seized == 'y';
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Tracer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool holds() const { return holds_; }

 private:
  pid_t pid_ = 0;
  bool holds_ = false;
};

TEST(Fencing, ACommandThatCannotBeEndedIsNotWaitedFor) {
  TemporaryDirectory directory;
  const std::string script = directory.file("fence"), told = directory.file("pid");
  std::ofstream(script) << "#!/bin/sh\necho $$ > " << told << ".new && mv " << told << ".new " << told
                        << "\nexec sleep 1000\n";
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  auto fencing = std::make_unique<Fencing>();
  fencing->start({script}, {}, 1000);
  pid_t pid = 0;
  ASSERT_TRUE(wait_until([&] { return bool(std::ifstream(told) >> pid); }));
  {
    const Tracer tracer(pid);
    if (!tracer.holds()) GTEST_SKIP() << "this machine lets no process trace another one";
    std::string why;
    EXPECT_EQ(fencing->look(999, &why), Fencing::Outcome::kRunning);
    EXPECT_EQ(fencing->look(1000, &why), Fencing::Outcome::kFailed);  // and not never
    EXPECT_EQ(why, "it did not end in time");
    EXPECT_FALSE(fencing->is_running());
    EXPECT_EQ(::kill(pid, 0), 0) << "it is there still";
  }
  fencing.reset();
  // Another one's start or end collects what was left behind.
  EXPECT_TRUE(wait_until([&] {
    const int before = spawns;
    Fencing other;
    other.start({"/bin/true"}, {}, 1000);
    return wait_until([&] { return spawns > before; }) && ::kill(pid, 0) != 0;
  }));
}

Fencing::Outcome end_of(Fencing& fencing, std::string* ret_why) {
  auto outcome = Fencing::Outcome::kRunning;
  EXPECT_TRUE(wait_until([&] { return (outcome = fencing.look(0, ret_why)) != Fencing::Outcome::kRunning; }));
  return outcome;
}

TEST(Fencing, ItsEndSaysWhetherItProvedTheDeath) {
  std::string why;
  Fencing fencing;
  fencing.start({"/bin/true"}, {}, 1);
  EXPECT_EQ(end_of(fencing, &why), Fencing::Outcome::kProven);
  fencing.start({"/bin/false"}, {}, 1);
  EXPECT_EQ(end_of(fencing, &why), Fencing::Outcome::kFailed);
  EXPECT_EQ(why, "it ended with status 1");
  fencing.start({"/no/such/program"}, {}, 1);
  EXPECT_EQ(end_of(fencing, &why), Fencing::Outcome::kFailed);
  EXPECT_EQ(why, "cannot run /no/such/program: No such file or directory");
  EXPECT_FALSE(fencing.is_running());
}

// One that comes up after its time is ended by the thread that started it.
TEST(Fencing, ACommandOnADiskThatDoesNotAnswerIsNotWaitedFor) {
  TemporaryDirectory directory;
  const std::string script = directory.file("fence"), told = directory.file("pid");
  std::ofstream(script) << "#!/bin/sh\necho $$ > " << told << ".new && mv " << told << ".new " << told
                        << "\nexec sleep 1000\n";
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  while (::waitpid(-1, nullptr, 0) > 0) continue;  // those that other tests left behind
  disk_hangs = true;
  const int before = spawns;
  std::string why;
  Fencing fencing;
  fencing.start({script}, {}, 1000);
  EXPECT_EQ(fencing.look(999, &why), Fencing::Outcome::kRunning);
  EXPECT_EQ(fencing.look(1000, &why), Fencing::Outcome::kFailed);
  EXPECT_EQ(why, "it did not end in time");
  EXPECT_FALSE(fencing.is_running());
  disk_hangs = false;
  ASSERT_TRUE(wait_until([&] { return spawns > before; }));
  int status = 0;
  EXPECT_TRUE(wait_until([&] { return ::waitpid(-1, &status, WNOHANG) > 0; })) << "it was not ended";
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(HostWatch, AHostIsSilentAfterTimeAndLooks) {
  const auto live = shm::HostClaim::of(shm::HostState::kLive, 1);
  HostWatch seen;
  seen.look(live, 5, 1000);
  EXPECT_FALSE(seen.is_silent(1'000'000, 5000)) << "this marud has not looked for long";
  for (uint32_t i = 0; i < kSilentLooks; ++i) seen.look(live, 5, 1000 + 200 * (i + 1));
  EXPECT_FALSE(seen.is_silent(6000, 5000));
  EXPECT_TRUE(seen.is_silent(6001, 5000));
  seen.look(live, 4, 7000);  // its clock was set back
  EXPECT_FALSE(seen.is_silent(100'000, 5000));
  for (uint32_t i = 0; i < kSilentLooks; ++i) seen.look(live, 4, 20'000);
  EXPECT_TRUE(seen.is_silent(20'000, 5000));
  seen.look(shm::HostClaim::of(shm::HostState::kSuspect, 1), 4, 20'000);
  EXPECT_FALSE(seen.is_silent(20'000, 5000)) << "somebody else has judged: from the beginning";
}

class HeartbeatTest : public testing::Test {
 protected:
  HeartbeatTest() {
    EXPECT_TRUE(shm::claim_host(region_, 1, shm::read_claim(region_, 1), 1) &&
                shm::finish_attach(region_, 1, shm::read_claim(region_, 1)));
  }
  uint64_t beats() const { return region_.host(1).heartbeat_ms.load_acquire(); }
  bool moves() const {
    const uint64_t before = beats();
    return wait_until([&] { return beats() != before; });
  }
  // From some moment on.
  bool falls_silent() const {
    return wait_until([&] {
      const uint64_t before = beats();
      std::this_thread::sleep_for(std::chrono::milliseconds(4 * kHeartbeatPauseMs));
      return beats() == before;
    });
  }

  shm::SmallPool pool_{{.lanes = 8, .hosts = 3}};
  const shm::ControlRegion& region_ = pool_.region;
};

TEST_F(HeartbeatTest, ItGoesOnWithoutTheLoopUntilThatHangs) {
  const uint32_t generation = shm::read_claim(region_, 1).generation();
  Heartbeat heartbeat(region_, 1, generation, 500);
  EXPECT_TRUE(moves());
  EXPECT_TRUE(moves()) << "marud is being started";
  heartbeat.loop_turns();
  EXPECT_TRUE(falls_silent()) << "a loop that hangs";
  // Each turn lets it go on for half a second: on a busy machine its thread may come later.
  const uint64_t before = beats();
  EXPECT_TRUE(wait_until([&] {
    heartbeat.loop_turns();
    return beats() != before;
  }));
}

TEST_F(HeartbeatTest, ItEndsWithTheLifeOfTheHost) {
  const shm::HostClaim claim = shm::read_claim(region_, 1);
  Heartbeat heartbeat(region_, 1, claim.generation());
  EXPECT_TRUE(moves());
  ASSERT_TRUE(shm::suspect_host(region_, 1, claim));
  EXPECT_TRUE(moves());
  ASSERT_TRUE(shm::declare_host_dead(region_, 1, shm::read_claim(region_, 1), 0, 1));
  EXPECT_TRUE(falls_silent());
  ASSERT_TRUE(shm::free_host(region_, 1, shm::read_claim(region_, 1)));
  ASSERT_TRUE(shm::claim_host(region_, 1, shm::read_claim(region_, 1), 1) &&
              shm::finish_attach(region_, 1, shm::read_claim(region_, 1)));
  EXPECT_TRUE(falls_silent()) << "the slot is another host's";
}

}  // namespace
}  // namespace maru::daemon
