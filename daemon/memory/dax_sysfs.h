// DAX devices as the kernel lists them in sysfs: the facts that marud needs before it opens one. Only read here;
// marud-provision and administrators change a device's mode and size.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::daemon {

// Where devices are looked for. Anything but the defaults is for tests on machines without such devices: there files stand in,
// found in sysfs by their names instead of their numbers.
struct DaxRules {
  std::string sysfs = "/sys";
  std::string dev = "/dev";
  bool must_be_character_device = true;
};

enum class DaxMode : uint8_t {
  kDevdax,     // a device to be mapped
  kSystemRam,  // the kernel uses it as memory
  kDisabled,   // no driver has it
};
const char* dax_mode_text(DaxMode mode);  // as ndctl and daxctl call them

struct DaxDescription {
  std::string name;  // "dax0.0"
  std::string path;  // "/dev/dax0.0"
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  int node = -1;  // NUMA node of the memory; -1: sysfs does not say
  DaxMode mode = DaxMode::kDisabled;
  bool is_persistent = false;  // on a persistent region: content outlives power
  bool is_cxl = false;

  std::string text() const;  // "/dev/dax0.0 (126 GiB, alignment 2 MiB, NUMA node 1, devdax, volatile, CXL)"
};

// Every device on the kernel's dax bus, by name. A device with unreadable attributes is left out. Empty where the
// kernel has no such bus.
std::vector<DaxDescription> list_dax_devices(const DaxRules& rules);

// The device behind a path, which may be a link. Errors, each with the found value and the expected one: ENOENT, ENODEV
// it is no DAX device, EACCES, EIO sysfs lacks a needed attribute.
Result<DaxDescription> describe_dax_device(const std::string& path, const DaxRules& rules);

}  // namespace maru::daemon
