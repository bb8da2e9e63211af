// marud's unit gives it a priority (Nice= of systemd/marud.service), and a thread inherits the priority of its starter. The
// priority is for the threads that answer in microseconds: the deciding thread, and the heartbeat that other hosts wait for. A
// thread that may be busy at length, or works for any process that connects, gives its own up. Threads that wait for disks keep
// it.
#pragma once

#include <sys/resource.h>

namespace maru::daemon {

// Of the calling thread. Nothing where it has none; it needs no privilege and cannot fail otherwise.
inline void give_up_priority() {
  constexpr id_t kThisThread = 0;
  if (::getpriority(PRIO_PROCESS, kThisThread) < 0) ::setpriority(PRIO_PROCESS, kThisThread, 0);
}

}  // namespace maru::daemon
