// Silence, suspicion and proof: what two maruds on one file conclude from each other's heartbeat, and which proof counts.
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/region/host_claim.h"
#include "tests/process/puppet.h"
#include "tests/process/shared_hosts.h"
#include "tests/support/control_map.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace maru::test {
namespace {

// All hosts of a test are this machine.
std::string own_name() {
  char name[256] = {};
  EXPECT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  return name;
}

// The lines of a configuration that fence by a shell script of this text, which is written to `path`.
std::string fencing_by(const std::string& path, const std::string& text, uint32_t timeout_ms,
                       const std::string& argument = {}) {
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  EXPECT_EQ(::chmod(path.c_str(), 0755), 0);
  return "fencing_command = [\"" + path + "\"" + (argument.empty() ? "" : ", \"" + argument + "\"") +
         "]\nfencing_names = [\"" + own_name() + "\"]\nfencing_timeout_ms = " + std::to_string(timeout_ms) + "\n";
}

TEST_F(Hosts, TheFencingCommandIsAProofIfItSucceeds) {
  const std::string told = directory_.file("told"), ready = directory_.file("ready");
  Host a(directory_, 0, patient_watch_);
  Host b(directory_, 1,
         patient_watch_ + fencing_by(directory_.file("fence"),
                                     "echo \"$MARU_POOL $MARU_HOST_SLOT $1\" >> " + told + "\ntest -e " + ready, 20000,
                                     "off"));
  a.kill();
  EXPECT_TRUE(b.has_logged("the fencing command failed: it ended with status 1"));
  EXPECT_EQ(b.state_of(0), "suspect") << "a command that fails proves nothing";
  std::string line;
  std::ifstream file(told);
  std::getline(file, line);
  EXPECT_EQ(line, "default 0 off");
  std::ofstream(ready) << "now";
  a.start();  // a new suspicion needs a host that was alive in between
  ASSERT_TRUE(b.sees(0, "live"));
  a.kill();
  EXPECT_TRUE(b.sees(0, "free"));
  EXPECT_TRUE(b.has_logged("(the fencing command succeeded)"));
}

TEST_F(Hosts, TheFencingCommandIsAProofUnderAParentThatIgnoresItsChildren) {
  Host a(directory_, 0, watch_);
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  Host b(directory_, 1, watch_ + fencing_by(directory_.file("fence"), "exit 0", 20000), 16u << 20, Host::Start::kBegin);
  std::signal(SIGCHLD, before);
  b.await();
  a.kill();
  EXPECT_TRUE(b.has_logged("(the fencing command succeeded)"));
  EXPECT_TRUE(b.sees(0, "free"));
}

// A proof takes its time, in which the machine may come back.
TEST_F(Hosts, AProofOfDeathIsForTheLifeThatWasFenced) {
  const std::string ready = directory_.file("ready");
  Host a(directory_, 0, watch_);
  Host b(directory_, 1,
         watch_ + fencing_by(directory_.file("fence"), "until test -e " + ready + "; do sleep 0.05; done", 600000));
  const uint64_t generation = b.host(0).at("generation");
  a.kill();
  ASSERT_TRUE(b.has_logged("host 0 is fenced with"));
  a.start();
  ASSERT_TRUE(b.sees(0, "live"));
  std::ofstream(ready) << "now";
  EXPECT_TRUE(b.has_logged("the fencing command succeeded, and host 0 is not what it was"));
  EXPECT_EQ(b.state_of(0), "live");
  EXPECT_EQ(b.host(0).at("generation"), generation + 1);
  Puppet on_a(a.socket_path());
  EXPECT_EQ(on_a.store("of a", "in its next life"), 0);
}

// Whoever may write to the pool may write there what another machine is called.
TEST_F(Hosts, AHostIsFencedByTheNameWithWhichItWasMet) {
  const std::string told = directory_.file("told");
  Host a(directory_, 0, patient_watch_);
  Host b(directory_, 1,
         patient_watch_ + fencing_by(directory_.file("fence"), "echo \"$MARU_HOST_NAME\" >> " + told, 20000));
  const std::string name = b.host(0).at("name");
  ASSERT_TRUE(b.has_logged("host 0 is met as " + name));
  const ControlMap map(b.socket_path());
  uint64_t other = 0;
  std::memcpy(&other, "victim", 6);
  map.region().host(0).name[0].store_release(other);
  for (size_t i = 1; i < std::size(map.region().host(0).name); ++i) map.region().host(0).name[i].store_release(0);
  a.kill();
  EXPECT_TRUE(b.sees(0, "free"));
  EXPECT_TRUE(b.has_logged("calls itself victim now, and it was " + name));
  std::string line;
  std::ifstream file(told);
  std::getline(file, line);
  EXPECT_EQ(line, name);
}

// Nor may a client have other machines fenced, by making a host of that name up.
TEST_F(Hosts, AHostIsFencedOnlyIfItsNameIsConfigured) {
  const std::string own = own_name(), told = directory_.file("told"), script = directory_.file("fence");
  std::ofstream(script) << "#!/bin/sh\necho \"$MARU_HOST_NAME\" >> " << told << "\n";
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  const std::string fences = patient_watch_ + "fencing_command = [\"" + script + "\"]\nfencing_timeout_ms = 5000\n";
  {
    Host a(directory_, 0, patient_watch_),
        b(directory_, 1, fences + "fencing_names = [\"another\", \"" + own + "x\"]\n");
    ASSERT_TRUE(b.has_logged("host 0 is met as " + own));
    a.kill();
    EXPECT_TRUE(b.has_logged("stays suspect and is not fenced: fencing_names has no such name"));
    EXPECT_EQ(b.state_of(0), "suspect");
    EXPECT_FALSE(std::ifstream(told).is_open());
    b.kill();
  }
  Host b(directory_, 1, fences + "fencing_names = [\"another\", \"" + own + "\"]\n");
  EXPECT_TRUE(b.sees(0, "free"));
}

TEST_F(Hosts, TheNameOfAHostThatIsAliveIsNotFenced) {
  const std::string told = directory_.file("told"), script = directory_.file("fence");
  std::ofstream(script) << "#!/bin/sh\necho \"$MARU_HOST_NAME\" >> " << told << "\n";
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  const std::string three = patient_watch_ + "hosts = 3\n";
  Host a(directory_, 0, three);
  Host b(directory_, 1,
         three + "fencing_command = [\"" + script + "\"]\nfencing_names = [\"" + own_name() +
             "\"]\nfencing_timeout_ms = 20000\n");
  Host c(directory_, 2, three);
  ASSERT_TRUE(b.has_logged("host 2 is met as"));
  a.kill();
  EXPECT_TRUE(b.has_logged("stays suspect and is not fenced: host 2 has the same name and is alive"));
  EXPECT_EQ(b.state_of(0), "suspect");
  EXPECT_FALSE(std::ifstream(told).is_open());
}

// Any client can write a heartbeat that stands still, again and again.
TEST_F(Hosts, AMachineThatWasFencedIsNotFencedAgainAtOnce) {
  const std::string told = directory_.file("told");
  Host a(directory_, 0, watch_);
  Host b(directory_, 1,
         watch_ + fencing_by(directory_.file("fence"), "echo \"$MARU_HOST_GENERATION\" >> " + told, 20000));
  a.kill();
  ASSERT_TRUE(b.sees(0, "free"));
  a.start();
  ASSERT_TRUE(b.sees(0, "live"));
  a.kill();
  EXPECT_TRUE(
      b.has_logged("stays suspect: the fencing command succeeded for this slot or this name a short while ago"));
  EXPECT_EQ(b.state_of(0), "suspect");
  std::stringstream lines;
  lines << std::ifstream(told).rdbuf();
  const std::string text = lines.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(b.ask({{"command", "host.declare_dead"}, {"host", 0}}).at("state"), "dead")
      << "an administrator may say so";
}

TEST_F(Hosts, AClientThatScribblesOnClaimsDoesNotFillTheLog) {
  constexpr int kTimes = 300;
  Host a(directory_, 0);
  const ControlMap map(a.socket_path());
  AtomicU64& claim = map.region().host(0).claim;
  const shm::HostClaim live{claim.load_acquire()};
  for (int i = 0; i < kTimes; ++i) {
    claim.store_release(live.in(shm::HostState::kSuspect).bits);
    a.ask({{"command", "status"}});
    ASSERT_TRUE(wait_until([&] { return claim.load_acquire() == live.bits; })) << "the host itself puts it right";
  }
  const std::string line = "had taken this one";
  EXPECT_TRUE(a.has_logged(line));
  const std::string log = a.log();
  int lines = 0;
  for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++lines;
  EXPECT_LT(lines, kTimes / 2);
}

// Who found the host suspect runs the command, and may be gone before it has succeeded.
TEST_F(Hosts, AHostThatIsFoundSuspectIsFencedAsWell) {
  const std::string ready = directory_.file("ready");
  Host a(directory_, 0, watch_);
  Host b(directory_, 1, watch_ + fencing_by(directory_.file("fence"), "test -e " + ready, 1000));
  a.kill();
  ASSERT_TRUE(b.has_logged("the fencing command failed"));
  b.kill();
  std::ofstream(ready) << "now";
  b.start();
  EXPECT_TRUE(b.sees(0, "free"));
}

TEST_F(Hosts, AHostWhoseMarudWasStoppedInOrderIsNotFenced) {
  Host a(directory_, 0, patient_watch_);
  Host b(directory_, 1, patient_watch_ + fencing_by(directory_.file("fence"), "exit 0", 1000));
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  const auto ended = a.stop();
  ASSERT_TRUE(ended && !ended->by_signal && ended->code == 0);
  ASSERT_TRUE(b.sees(0, "suspect"));
  EXPECT_TRUE(b.has_logged("since its marud was stopped in order"));
  EXPECT_EQ(on_a.retrieve("of a").at("text"), "stored by a") << "its clients go on";
  a.start();
  EXPECT_TRUE(b.sees(0, "live"));
  EXPECT_EQ(b.log().find("is fenced with"), std::string::npos);
  EXPECT_EQ(on_b.retrieve("of a").at("text"), "stored by a");
  // A marud that ends otherwise is another matter.
  a.kill();
  EXPECT_TRUE(b.sees(0, "free"));
}

// marud's loop may be at something long: another pool that is being verified, millions of blocks that are deleted.
TEST_F(Hosts, AHostWhoseLoopIsBusyIsNotSilent) {
  Host a(directory_, 0), b(directory_, 1);
  const ControlMap map(b.socket_path());
  if (::ptrace(PTRACE_SEIZE, a.pid(), nullptr, nullptr) != 0)
    GTEST_SKIP() << "this machine lets no process trace another one";
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, a.pid(), nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(a.pid(), &status, __WALL), a.pid());
  ASSERT_TRUE(WIFSTOPPED(status)) << "from here on its main thread does nothing";
  const AtomicU64& heartbeat = map.region().host(0).heartbeat_ms;
  bool moves = true;
  for (int i = 0; i < 5 && moves; ++i) {
    const uint64_t before = heartbeat.load_acquire();
    moves = wait_until([&] { return heartbeat.load_acquire() != before; });
  }
  EXPECT_TRUE(moves);
  ASSERT_EQ(::ptrace(PTRACE_DETACH, a.pid(), nullptr, nullptr), 0);
  EXPECT_EQ(a.state_of(1), "live");
}

// Its reclaimer died itself, or left, and nobody saw the two at once.
TEST_F(Hosts, AnybodyGoesOnWithADeadHostWhoseReclaimerIsGone) {
  Host a(directory_, 0);
  const ControlMap map(a.socket_path());
  {
    Host b(directory_, 1);
    Puppet on_b(b.socket_path());
    ASSERT_EQ(on_b.store("of b", "stored by b"), 0);
    b.kill();
    on_b.process().kill();
  }
  AtomicU64& claim = map.region().host(1).claim;
  const uint32_t generation = shm::HostClaim{claim.load_acquire()}.generation();
  claim.store_release(shm::HostClaim::dead(generation, 1, generation).bits);
  EXPECT_TRUE(a.sees(1, "free"));
  EXPECT_TRUE(a.has_logged("this host goes on with taking back what host 1 held"));
  Puppet on_a(a.socket_path());
  EXPECT_EQ(on_a.retrieve("of b").at("text"), "stored by b");
}

TEST_F(Hosts, AWishOfALifeThatIsOverIsNotAnswered) {
  Host a(directory_, 0), b(directory_, 1);
  Puppet on_a(a.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  const ControlMap map(a.socket_path());
  AtomicU64& wanted = map.region().host(0).wanted;
  const auto generation = b.host(1).at("generation").get<uint32_t>();
  wanted.store_release(shm::HostWish::of(1, generation - 1).bits);
  EXPECT_TRUE(wait_until([&] { return wanted.load_acquire() == 0; }));
  EXPECT_EQ(on_a.exists("of a"), 1) << "nothing was given up";
  EXPECT_EQ(a.host(0).at("regions"), 1);
  wanted.store_release(shm::HostWish::of(1, generation).bits);
  EXPECT_TRUE(a.has_logged("is given up for host 1, which asked for one"));
}

}  // namespace
}  // namespace maru::test
