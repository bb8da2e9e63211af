// The setting that denies a process an io_uring, and the advice to change it. marud's event loop is an io_uring, and default
// profiles of container engines forbid it.
#pragma once

#include <optional>
#include <string>

namespace maru::daemon {

struct IoUringSettings {
  std::optional<int> disabled;      // kernel.io_uring_disabled: 0 allows all processes, 1 a group, 2 none
  bool has_seccomp_filter = false;  // of the process that asked
};
IoUringSettings read_io_uring_settings(const std::string& root = "");  // "" for this machine

struct IoUringDenial {
  std::string found;   // the setting
  std::string advice;  // how to change it
};

// `code`: the errno of the denial. Nothing when that says something else than that it is denied.
std::optional<IoUringDenial> io_uring_denial(int code, const IoUringSettings& settings);

// Asks the kernel for one and gives it back: 0, or the errno.
int try_io_uring();

}  // namespace maru::daemon
