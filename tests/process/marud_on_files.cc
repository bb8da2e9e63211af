// marud, except that files stand in for DAX devices: what it takes for /sys and /dev lies in the folder "dax" beside its
// configuration (tests/support/dax_stand_in.h). And a disk that does not answer can keep it from removing a file.
#include "daemon/options.h"

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

// Instead of the C library's. Where a pipe of the file's name and ".slow" lies beside it, this stands still until the pipe has
// no writer any more.
extern "C" int unlink(const char* path) noexcept {
  const int pipe = ::open((std::string(path) + ".slow").c_str(), O_RDONLY | O_CLOEXEC);
  char byte;
  if (pipe >= 0 && ::read(pipe, &byte, 1) >= 0) ::close(pipe);
  return int(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int main(int count, char** arguments) {
  maru::daemon::DaxRules rules;
  for (int i = 1; i + 1 < count; ++i)
    if (std::strcmp(arguments[i], "--config") == 0) {
      const std::string config = arguments[i + 1];
      const std::string root = config.substr(0, config.find_last_of('/')) + "/dax";
      rules = {root + "/sys", root + "/dev", false};
    }
  return maru::daemon::run(count, arguments, rules);
}
