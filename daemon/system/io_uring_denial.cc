#include "daemon/system/io_uring_denial.h"

#include <cerrno>
#include <fstream>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace maru::daemon {

IoUringSettings read_io_uring_settings(const std::string& root) {
  IoUringSettings settings;
  std::ifstream disabled(root + "/proc/sys/kernel/io_uring_disabled");
  if (int value = 0; disabled >> value) settings.disabled = value;
  constexpr int kFilter = 2;  // SECCOMP_MODE_FILTER
  std::ifstream status(root + "/proc/self/status");
  for (std::string word; status >> word;)
    if (int mode = 0; word == "Seccomp:" && status >> mode) settings.has_seccomp_filter = mode == kFilter;
  return settings;
}

std::optional<IoUringDenial> io_uring_denial(int code, const IoUringSettings& settings) {
  if (code != EPERM && code != EACCES && code != ENOSYS) return std::nullopt;
  const int disabled = settings.disabled.value_or(0);
  if (disabled != 0 && code == EPERM) {
    const std::string found = "kernel.io_uring_disabled = " + std::to_string(disabled);
    const std::string advice = "sysctl kernel.io_uring_disabled=0 on the machine";
    return IoUringDenial{found,
                         disabled == 1 ? advice + ", or the number of marud's group in kernel.io_uring_group" : advice};
  }
  if (settings.has_seccomp_filter)
    return IoUringDenial{"a seccomp filter of the container or service",
                         "allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile "
                         "(docs/containers.md)"};
  if (code == ENOSYS) return IoUringDenial{"a kernel without io_uring", "a kernel with CONFIG_IO_URING=y"};
  return IoUringDenial{"a security module that forbids it, and neither a seccomp filter nor kernel.io_uring_disabled",
                       "allow io_uring in the policy of the module (SELinux, AppArmor); the kernel's log names it"};
}

int try_io_uring() {
  io_uring_params parameters = {};
  const long fd = ::syscall(SYS_io_uring_setup, 1, &parameters);
  if (fd < 0) return errno;
  ::close(int(fd));
  return 0;
}

}  // namespace maru::daemon
