// The process of a client, as the kernel names it: never as the process names itself.
#pragma once

#include <cstdint>
#include <sys/types.h>

namespace maru::daemon {

struct ClientIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  uint64_t start_time = 0;  // /proc/PID/stat field 22
};

}  // namespace maru::daemon
