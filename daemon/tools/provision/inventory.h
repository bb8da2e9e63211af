// Reads the memory of this machine and its users, through libndctl, libdaxctl and libcxl.
#pragma once

#include "daemon/tools/provision/machine.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

namespace maru::daemon::provision {

// Errors: the libraries cannot start. Facts that the kernel does not tell stay empty: users other than root see less.
Result<Machine> read_machine();

// Reads the beginning of each device, and finds the process that has it open. probe.cc.
void probe_devices(std::vector<DaxDeviceFacts>& devices);
// Takes the lock that marud takes on the device of a pool. A closed descriptor: no process can open it without a driver.
// probe.cc.
Result<FileDescriptor> lock_device(const std::string& name);
// Zeros in [from, to) of a device that the caller has locked; several threads. probe.cc.
Result<void> clear_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align);

}  // namespace maru::daemon::provision
