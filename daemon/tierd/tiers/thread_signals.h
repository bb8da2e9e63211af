// The signals of maru-tierd are its main thread's.
#pragma once

#include <csignal>

namespace maru::tierd {

// Blocks all signals of the calling thread.
inline void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace maru::tierd
