// A program that a test starts. It dies with the test, and no process but this very one is ever signalled.
#pragma once

#include "tests/support/wait_until.h"

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::test {

class ChildProcess {
 public:
  struct Ended {
    bool by_signal;
    int code;  // exit status, or the signal
    std::string text() const { return (by_signal ? "ended by signal " : "ended with status ") + std::to_string(code); }
  };

  // `output_path`: where its standard output and error go, appended; empty: where the test's go. `inherited`: descriptors
  // that it keeps under the same numbers. `environment`: "NAME=value", added.
  explicit ChildProcess(const std::vector<std::string>& command, const std::string& output_path = {},
                        const std::vector<int>& inherited = {}, const std::vector<std::string>& environment = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool is_running();
  void signal(int number);
  // Waits for its end. Nothing when it goes on for far too long.
  std::optional<Ended> wait(std::chrono::milliseconds at_most = far_too_long());
  // SIGKILL, and waits.
  void kill();

 private:
  pid_t pid_ = -1;
  std::optional<Ended> ended_;
};

// The program that runs now: started again with another role.
std::string own_program();

}  // namespace maru::test
