#include "tests/support/child_process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::test {

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& output_path,
                           const std::vector<int>& inherited, const std::vector<std::string>& environment) {
  // Everything that allocates happens before the fork: the test may have threads.
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; *variable; ++variable) variables.push_back(*variable);
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  variables.push_back(nullptr);

  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(126);
  for (const int fd : inherited) ::fcntl(fd, F_SETFD, 0);
  if (!output_path.empty()) {
    const int fd = ::open(output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
  }
  ::execvpe(arguments[0], arguments.data(), variables.data());
  ::_exit(127);
}

ChildProcess::~ChildProcess() { kill(); }

bool ChildProcess::is_running() {
  if (ended_) return false;
  int status = 0;
  const pid_t found = ::waitpid(pid_, &status, WNOHANG);
  if (found == 0) return true;
  ended_ = WIFSIGNALED(status) ? Ended{true, WTERMSIG(status)} : Ended{false, WEXITSTATUS(status)};
  return false;
}

void ChildProcess::signal(int number) {
  if (is_running()) ::kill(pid_, number);
}

std::optional<ChildProcess::Ended> ChildProcess::wait(std::chrono::milliseconds at_most) {
  if (!wait_until([&] { return !is_running(); }, at_most)) return std::nullopt;
  return ended_;
}

void ChildProcess::kill() {
  signal(SIGKILL);
  (void)wait();
}

namespace {

std::string read_own_program() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  return std::string(path, size_t(std::max<ssize_t>(size, 0)));
}

// From the beginning: where the root is no mount of its own, the link changes once a test has left the mount namespace.
const std::string own_path = read_own_program();

}  // namespace

std::string own_program() {
  if (own_path.empty()) throw std::runtime_error("cannot read /proc/self/exe");
  return own_path;
}

}  // namespace maru::test
