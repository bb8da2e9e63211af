// SIGINT, SIGTERM and SIGHUP while a plan is followed: kept waiting instead of ending the process, so that what was begun is
// undone between two steps. They are blocked and not caught: the kernel gives up taking memory offline, in a step or in its
// undoing, as soon as a signal arrives.
//
// Thread safety: one of them at a time in a process, from its making to its end, which puts back what was there before. Made
// before other threads, which are born with the same signals blocked.
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
