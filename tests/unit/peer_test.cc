// Proof that a process is gone, and what is none.
#include "daemon/peer.h"
#include "daemon/state_file.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace maru::daemon {
namespace {

TEST(Peer, AProcessIsKnownByItsStartTime) {
  const auto start_time = start_time_of(::getpid());
  ASSERT_TRUE(start_time);
  EXPECT_TRUE(open_process(::getpid(), *start_time));
  const auto another = open_process(::getpid(), *start_time + 1);
  ASSERT_FALSE(another);
  EXPECT_EQ(another.error().code, ESRCH);
}

TEST(Peer, AProcessThatEndedIsGone) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, id_t(pid), &info, WEXITED | WNOWAIT), 0);
  const auto start_time = start_time_of(pid);  // a zombie still has one
  ASSERT_TRUE(start_time);
  EXPECT_EQ(open_process(pid, *start_time).error().code, ESRCH);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_EQ(open_process(pid, *start_time).error().code, ESRCH);
}

// The first process of a new pid namespace is 1 there.
TEST(Peer, AProcessIsFoundByItsPidInAnotherNamespace) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t outer = ::fork();
  if (outer == 0) {
    pid_t inner = ::unshare(CLONE_NEWPID) == 0 ? ::fork() : -1;
    if (inner == 0) ::pause();
    (void)!::write(ends[1], &inner, sizeof(inner));
    ::pause();
  }
  pid_t inner = -1;
  ASSERT_EQ(::read(ends[0], &inner, sizeof(inner)), ssize_t(sizeof(inner)));
  const auto end_both = [&] {
    if (inner > 0) ::kill(inner, SIGKILL);
    ::kill(outer, SIGKILL);
    ::waitpid(outer, nullptr, 0);
  };
  if (inner < 0) {
    end_both();
    GTEST_SKIP() << "a pid namespace cannot be made here (that takes root)";
  }
  const auto start_time = start_time_of(inner);
  ASSERT_TRUE(start_time);
  pid_t found = 0;
  EXPECT_TRUE(find_process(1, *start_time, &found));
  EXPECT_EQ(found, inner);
  const int unknown = own_pid_namespace() == 0xEFFF'FFFC ? ESRCH : EXDEV;  // who does not see all cannot say
  EXPECT_EQ(find_process(1, *start_time + 1'000'000'000, &found).error().code, unknown);
  EXPECT_EQ(find_process(12'345'678, *start_time, &found).error().code, unknown);
  end_both();
  EXPECT_TRUE(test::wait_until([&] { return !find_process(1, *start_time, &found); }));
}

// A marud that runs out of descriptors while it looks for the processes of a pool must not take the living for dead.
TEST(Peer, LackOfDescriptorsProvesNothing) {
  const auto start_time = start_time_of(::getpid());
  ASSERT_TRUE(start_time);
  const std::string boot_id = current_boot_id();
  ASSERT_FALSE(boot_id.empty());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<FileDescriptor> taken;
  for (int fd = 0; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 3)) >= 0;) taken.emplace_back(fd);
  ASSERT_EQ(errno, EMFILE);
  EXPECT_EQ(current_boot_id(), boot_id) << "or every process would be one of another boot";
  const auto with_none = open_process(::getpid(), *start_time);
  taken.pop_back();
  const auto with_one = open_process(::getpid(), *start_time);
  taken.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(with_none);
  EXPECT_EQ(with_none.error().code, EMFILE);
  ASSERT_FALSE(with_one);
  EXPECT_EQ(with_one.error().code, EMFILE);
}

}  // namespace
}  // namespace maru::daemon
