// The fencing command: a program of the administrator that makes sure that a host is dead: it cuts its power, or takes its
// access to the memory away. It reports this with exit status 0. It runs beside marud, which goes on serving; marud ends it
// when it takes too long. Nothing here waits for it. A thread starts it, since the program may lie on a disk that does not
// answer. A command that the kernel cannot end at once (it waits for a device) is left behind, and the next call after its end
// collects it.
//
// Thread safety: one thread at a time for each object.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace maru::daemon {

class Fencing {
 public:
  enum class Outcome : uint8_t { kRunning, kProven, kFailed };

  Fencing() = default;
  ~Fencing();  // ends the command
  Fencing(const Fencing&) = delete;
  Fencing& operator=(const Fencing&) = delete;

  // `command`: absolute path and arguments. The command gets `variables` beside marud's own environment, and no descriptors but
  // the standard streams. look() reports a command that cannot be run.
  void start(const std::vector<std::string>& command, const std::vector<std::pair<std::string, std::string>>& variables,
             uint64_t ends_ms);
  bool is_running() const { return start_ != nullptr; }
  // Its end, when it has ended or when its time is over; `ret_why`: for people, with kFailed.
  Outcome look(uint64_t now_ms, std::string* ret_why);

 private:
  struct Start;
  void leave_behind();

  std::shared_ptr<Start> start_;
  uint64_t ends_ms_ = 0;
};

}  // namespace maru::daemon
