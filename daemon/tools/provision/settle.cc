#include "daemon/tools/provision/settle.h"

#include <cerrno>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::daemon::provision {

void wait_for_udev() {
  const char* const arguments[] = {"udevadm", "settle", "--timeout=30", nullptr};
  pid_t pid = 0;
  if (::posix_spawnp(&pid, arguments[0], nullptr, nullptr, const_cast<char* const*>(arguments), ::environ) != 0) return;
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace maru::daemon::provision
