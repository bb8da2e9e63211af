// The first thing that a program of ours does, before it opens anything: it takes numbers 0, 1 and 2. A library of others
// would get them otherwise, and messages that the program prints would go into the files of that library.
#pragma once

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace maru {

// Reading from 0 and writing to 1 or 2 fails as before, so that a program can say that its output went nowhere.
inline void hold_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number, which is this one.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) >= 0) continue;
    (void)::open("/", O_PATH | O_DIRECTORY);  // where there is no /dev
  }
}

}  // namespace maru
