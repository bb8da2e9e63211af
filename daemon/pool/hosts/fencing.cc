#include "daemon/pool/hosts/fencing.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <spawn.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace maru::daemon {

namespace {

std::mutex leaving;
// With the mutex: ended by SIGKILL, and perhaps not gone yet. Never destroyed: a thread may start a command when marud ends.
std::vector<pid_t>& left_behind = *new std::vector<pid_t>;

void collect_the_left() {
  const std::lock_guard lock(leaving);
  std::erase_if(left_behind, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  const std::lock_guard lock(leaving);
  left_behind.push_back(pid);
}

}  // namespace

// `pid` and `code` are the thread's until it says kStarted. The last of the two parties to leave ends the command.
struct Fencing::Start {
  enum State : uint8_t { kStarting, kStarted, kLeft };

  std::vector<std::string> command, variables;
  std::atomic<State> state{kStarting};
  pid_t pid = 0;
  int code = 0;

  void run() {
    spawn();
    if (state.exchange(kStarted) == kLeft && code == 0) end(pid);
  }

 private:
  void spawn() {
    std::vector<char*> arguments, environment;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (std::string& word : variables) environment.push_back(word.data());
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
    code = ::posix_spawn(&pid, command.front().c_str(), nullptr, &how, arguments.data(), environment.data());
    ::posix_spawnattr_destroy(&how);
  }
};

Fencing::~Fencing() {
  if (is_running()) leave_behind();
}

void Fencing::leave_behind() {
  const std::shared_ptr<Start> left = std::exchange(start_, nullptr);
  if (left->state.exchange(Start::kLeft) == Start::kStarted && left->code == 0) end(left->pid);
  collect_the_left();
}

void Fencing::start(const std::vector<std::string>& command,
                    const std::vector<std::pair<std::string, std::string>>& variables, uint64_t ends_ms) {
  collect_the_left();
  start_ = std::make_shared<Start>();
  start_->command = command;
  for (const auto& [name, value] : variables) start_->variables.push_back(name + "=" + value);
  ends_ms_ = ends_ms;
  try {
    std::thread([start = start_] { start->run(); }).detach();
  } catch (const std::system_error&) {  // no thread to be had
    start_->run();
  }
}

Fencing::Outcome Fencing::look(uint64_t now_ms, std::string* ret_why) {
  const bool is_started = start_->state.load() == Start::kStarted;
  int status = 0;
  pid_t found = 0;
  if (is_started && start_->code == 0) found = ::waitpid(start_->pid, &status, WNOHANG);
  if (is_started && start_->code != 0) {
    *ret_why = "cannot run " + start_->command.front() + ": " + std::strerror(start_->code);
    start_.reset();
    return Outcome::kFailed;
  }
  if (found == 0 && now_ms < ends_ms_) return Outcome::kRunning;
  if (found == 0) {
    leave_behind();
    *ret_why = "it did not end in time";
    return Outcome::kFailed;
  }
  start_.reset();
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
