// Proof that a process is gone, and what is none.
#include "daemon/system/peer.h"
#include "daemon/hosting/state_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace maru::daemon {
namespace {

TEST(Peer, AProcessIsKnownByItsStartTime) {
  const auto start_time = start_time_of(::getpid());
  ASSERT_TRUE(start_time);
  EXPECT_TRUE(open_process(::getpid(), *start_time));
  const auto another = open_process(::getpid(), *start_time + 2);  // one tick is rounding
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

// Which proves nothing where marud does not see all of them.
TEST(Peer, AllProcessesHaveTheirStartTimes) {
  const auto own = start_time_of(::getpid());
  ASSERT_TRUE(own);
  const auto all = all_start_times();
  if (own_pid_namespace() != 0xEFFF'FFFC) {
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, EXDEV);
    return;
  }
  ASSERT_TRUE(all) << all.error().text();
  EXPECT_GE(all->size(), 2u);
  EXPECT_NE(std::find(all->begin(), all->end(), *own), all->end());
}

// The end of a new process, as another user beside a /proc that hides what is others'. 77: that cannot be had here.
int identify_hidden(int socket) {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("proc", "/proc", "proc", 0, "hidepid=2") != 0 || ::setgid(65'534) != 0 || ::setuid(65'534) != 0)
    return 77;
  const auto peer = identify_peer(socket);
  if (peer || peer.error().code != EACCES) return 1;
  if (peer.error().text().find("/proc is mounted with hidepid") == std::string::npos) return 2;
  // It lives, and so it is not taken for one that has ended.
  const auto process = open_process(::getppid(), 1);
  return process || process.error().code != EACCES ? 3 : 0;
}

TEST(Peer, AHiddenProcessIsNamedAndDoesNotCountAsEnded) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a /proc that hides processes";
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(identify_hidden(sockets[1]));
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  for (const int socket : sockets) ::close(socket);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no /proc of one's own can be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
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
