// SIGINT, SIGTERM and SIGHUP while a plan is followed. They wait until the end of a step, so that the finished steps can be
// undone. They are blocked and not caught: the kernel gives up taking memory offline, in a step or in its undoing, as soon as a
// signal arrives.
//
// Thread safety: a process has at most one at a time. Its destructor restores the earlier mask. Make it before other threads,
// so that they start with the same signals blocked.
#pragma once

#include <csignal>
#include <string>

namespace maru::daemon::provision {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Which one came first, in words; empty: none.
  std::string text();

 private:
  sigset_t blocked_ = {}, before_ = {};
  int came_ = 0;
};

}  // namespace maru::daemon::provision
