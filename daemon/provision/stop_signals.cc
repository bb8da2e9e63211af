#include "daemon/provision/stop_signals.h"

#include <iterator>

namespace maru::daemon::provision {
namespace {

volatile std::sig_atomic_t came = 0;

}  // namespace

StopSignals::StopSignals() {
  came = 0;
  struct sigaction action = {};
  action.sa_handler = [](int number) { came = number; };
  action.sa_flags = SA_RESTART;  // a step that is under way is finished
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);  // nohup(1) and others mean it
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

std::string StopSignals::text() const {
  const int number = came;
  if (number == 0) return {};
  return std::string("stopped by SIG") + (number == SIGINT ? "INT" : number == SIGTERM ? "TERM" : "HUP");
}

}  // namespace maru::daemon::provision
