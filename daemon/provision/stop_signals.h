// SIGINT, SIGTERM and SIGHUP while a plan is followed: taken down instead of ending the process, so that what was begun is
// undone between two steps.
//
// Thread safety: one of them at a time in a process, from its making to its end, which puts back what was there before.
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

  // Which one came, in words; empty: none.
  std::string text() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3];
};

}  // namespace maru::daemon::provision
