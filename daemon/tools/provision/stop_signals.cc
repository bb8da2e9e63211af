#include "daemon/tools/provision/stop_signals.h"

#include <ctime>

namespace maru::daemon::provision {

StopSignals::StopSignals() {
  sigemptyset(&blocked_);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&blocked_, number);  // nohup(1) and others mean it
  }
  ::pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
}

StopSignals::~StopSignals() {
  // Takes a signal that came after the last look: no step is left to stop.
  const timespec at_once = {};
  while (::sigtimedwait(&blocked_, nullptr, &at_once) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::string StopSignals::text() {
  const timespec at_once = {};
  for (int number; (number = ::sigtimedwait(&blocked_, nullptr, &at_once)) > 0;)
    if (came_ == 0) came_ = number;
  if (came_ == 0) return {};
  return std::string("stopped by SIG") + (came_ == SIGINT ? "INT" : came_ == SIGTERM ? "TERM" : "HUP");
}

}  // namespace maru::daemon::provision
