// The fencing command.
#include "daemon/fencing.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

}  // namespace
}  // namespace maru::daemon
