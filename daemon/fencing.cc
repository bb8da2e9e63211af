#include "daemon/fencing.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::daemon {

namespace {

// Ended by SIGKILL, and perhaps not gone yet. Of the one thread that fences.
std::vector<pid_t> left_behind;

void collect_the_left() {
  std::erase_if(left_behind, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
}

}  // namespace

Fencing::~Fencing() {
  if (is_running()) leave_behind();
}

void Fencing::leave_behind() {
  ::kill(pid_, SIGKILL);
  left_behind.push_back(std::exchange(pid_, 0));
  collect_the_left();
}

Result<void> Fencing::start(const std::vector<std::string>& command,
                            const std::vector<std::pair<std::string, std::string>>& variables, uint64_t ends_ms) {
  collect_the_left();
  std::vector<char*> arguments, environment;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<std::string> own;
  for (const auto& [name, value] : variables) own.push_back(name + "=" + value);
  for (std::string& word : own) environment.push_back(word.data());
  for (char** word = environ; *word != nullptr; ++word) environment.push_back(*word);
  environment.push_back(nullptr);

  posix_spawnattr_t how;
  ::posix_spawnattr_init(&how);
  // marud blocks the signals that it reads from a descriptor; the command must not inherit that.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &all);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int code = ::posix_spawn(&pid_, command.front().c_str(), nullptr, &how, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&how);
  if (code != 0) {
    pid_ = 0;
    return failure(code, "run the fencing command " + command.front());
  }
  ends_ms_ = ends_ms;
  return {};
}

Fencing::Outcome Fencing::look(uint64_t now_ms, std::string* ret_why) {
  int status = 0;
  const pid_t found = ::waitpid(pid_, &status, WNOHANG);
  if (found == 0 && now_ms < ends_ms_) return Outcome::kRunning;
  if (found == 0) {
    leave_behind();
    *ret_why = "it did not end in time";
    return Outcome::kFailed;
  }
  pid_ = 0;
  if (found > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return Outcome::kProven;
  if (found < 0)
    *ret_why = std::strerror(errno);
  else if (WIFSIGNALED(status))
    *ret_why = "it was ended by signal " + std::to_string(WTERMSIG(status));
  else
    *ret_why = "it ended with status " + std::to_string(WEXITSTATUS(status));
  return Outcome::kFailed;
}

}  // namespace maru::daemon
