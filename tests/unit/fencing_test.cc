// The fencing command, and the heartbeat of the host that may be fenced.
#include "daemon/fencing.h"
#include "daemon/heartbeat.h"
#include "daemon/pool_hosts.h"
#include "libmaru/shm/host_claim.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"
#include "tests/unit/small_pool.h"

#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

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
  ASSERT_TRUE(fencing->start({script}, {}, 1000));
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
    Fencing other;
    return other.start({"/bin/true"}, {}, 1000) && ::kill(pid, 0) != 0;
  }));
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
  heartbeat.loop_turns();
  EXPECT_TRUE(moves());
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
