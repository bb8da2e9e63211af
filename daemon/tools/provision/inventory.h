// Reads what this machine has, through libndctl, libdaxctl and libcxl, and who uses it.
#pragma once

#include "daemon/tools/provision/machine.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

namespace maru::daemon::provision {

// Errors: the libraries cannot start. What the kernel does not tell is left empty: users other than root see less.
Result<Machine> read_machine();

// What lies at the beginning of a device, and who has it open. probe.cc.
void probe_devices(std::vector<DaxDeviceFacts>& devices);
// The lock that marud takes on the device of a pool. Not open: nobody can have that device, which has no driver. probe.cc.
Result<FileDescriptor> lock_device(const std::string& name);
// Zeros in [from, to) of a device that the caller has locked; several threads. probe.cc.
Result<void> clear_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align);

}  // namespace maru::daemon::provision
