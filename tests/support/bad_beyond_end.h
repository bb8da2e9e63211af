// Bad memory in a file that stands in for a device: what is mapped beyond its end. A real access meets it, in whichever mapping
// the code under test has made by then, and FaultGuard's handler is told what the kernel would tell it.
#pragma once

#include "daemon/memory/fault_guard.h"

#include <csignal>
#include <stdexcept>

namespace maru::test {

class BadBeyondEnd {
 public:
  BadBeyondEnd() {
    struct sigaction action = {};
    action.sa_sigaction = tell_of_bad_memory;
    action.sa_flags = SA_SIGINFO;
    if (!daemon::FaultGuard::install() || ::sigaction(SIGBUS, &action, &before_) != 0)
      throw std::runtime_error("cannot take SIGBUS");
  }
  ~BadBeyondEnd() { ::sigaction(SIGBUS, &before_, nullptr); }
  BadBeyondEnd(const BadBeyondEnd&) = delete;
  BadBeyondEnd& operator=(const BadBeyondEnd&) = delete;

 private:
  static void tell_of_bad_memory(int number, siginfo_t* info, void* context) {
    siginfo_t told = *info;
    if (told.si_code == BUS_ADRERR) {
      told.si_code = BUS_MCEERR_AR;
      told.si_addr_lsb = 12;
    }
    before_.sa_sigaction(number, &told, context);
  }
  static inline struct sigaction before_;
};

}  // namespace maru::test
