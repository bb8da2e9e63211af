// The trouble that a look at memory under a guard met, for people.
#pragma once

#include "daemon/memory/fault_guard.h"

#include <string>

namespace maru::daemon {

// "a memory error at byte 2097152" of the device, whose byte `offset` the guarded range begins with; or that all of the
// range is lost. Empty: all reads gave the memory's content, and all writes are there now.
std::string memory_trouble(const FaultGuard& guard, uint64_t offset = 0);
// The errno value for it: EHWPOISON for bad memory, which time alone does not mend, or EIO.
int memory_trouble_code(const FaultGuard& guard);

}  // namespace maru::daemon
