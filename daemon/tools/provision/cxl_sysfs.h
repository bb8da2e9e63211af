// libcxl makes volatile CXL regions from version 78 on. Older versions lack only these two calls. The kernel's interface for
// them does not change, so this file asks the kernel directly under every libcxl. The library does the rest, as for a
// persistent region.
#pragma once

#include "libmaru/base/result.h"

#include <string>

namespace maru::daemon::provision {

// Whether the kernel makes volatile regions in that window ("decoder0.0"): Linux 6.3 and newer, where the window takes them.
bool can_make_volatile_region(const std::string& window);

// Makes a volatile region without size and memory, and returns its name. A context that is opened later knows it. Enters the
// kernel. Errors: EOPNOTSUPP the kernel makes no such region, EBUSY another program made a region meanwhile, or the kernel's
// own.
Result<std::string> make_volatile_region(const std::string& window);

// For a region that no library knows.
Result<void> delete_region(const std::string& window, const std::string& name);

}  // namespace maru::daemon::provision
