// Volatile CXL regions are made by libcxl from version 78 on. What older ones lack is this much, and the kernel's interface
// for it does not change, so it is asked directly under every libcxl; the library does the rest, as for a persistent region.
#pragma once

#include "libmaru/base/result.h"

#include <string>

namespace maru::daemon::provision {

// Whether the kernel makes volatile regions in that window ("decoder0.0"): Linux 6.3 and newer, where the window takes them.
bool can_make_volatile_region(const std::string& window);

// A volatile region without size and memory, which a context that is opened later knows; returns its name. Enters the kernel.
// Errors: EOPNOTSUPP the kernel makes none, EBUSY somebody else made a region meanwhile, or what else the kernel says.
Result<std::string> make_volatile_region(const std::string& window);

// For a region that no library knows.
Result<void> delete_region(const std::string& window, const std::string& name);

}  // namespace maru::daemon::provision
