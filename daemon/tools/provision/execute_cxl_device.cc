// The DAX devices of a volatile CXL region. The kernel makes one device of the whole region when the region is enabled. If the
// driver kmem is loaded, the kernel gives it the device and uses the memory itself. It may put the memory online then, block by
// block. A device that leaves kmem meanwhile keeps its memory until the machine is started again.
#include "daemon/tools/provision/changes.h"
#include "daemon/tools/provision/contexts.h"
#include "daemon/tools/provision/device_executor.h"
#include "daemon/tools/provision/machine.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace maru::daemon::provision {
namespace {

// udev loads the modules dax_cxl, which makes the device, and kmem, when the kernel asks for them.
constexpr int kLooksMax = 150;
constexpr std::chrono::milliseconds kPause(200);

struct FoundDevice {
  std::string name;
  DaxMode mode = DaxMode::kDisabled;
  bool comes_online = false;  // the kernel is about to put its memory online, or some of it
};

bool comes_online(daxctl_dev* device) {
  daxctl_memory* memory = daxctl_dev_get_memory(device);
  return memory && daxctl_dev_will_auto_online_memory(device) > 0 &&
         daxctl_memory_is_online(memory) < std::max(1, daxctl_memory_num_sections(memory));
}

std::vector<FoundDevice> devices_of(const std::string& cxl_region) {
  std::vector<FoundDevice> found;
  const DaxctlContext context = open_daxctl();
  if (!context) return found;
  for_each_dax_device(context.get(), [&](daxctl_region* region, daxctl_dev* device) {
    if (cxl_region_of(region) != cxl_region || daxctl_dev_get_size(device) == 0) return;
    found.push_back({text_of(daxctl_dev_get_devname(device)),
                     daxctl_dev_get_memory(device)   ? DaxMode::kSystemRam
                     : daxctl_dev_is_enabled(device) ? DaxMode::kDevdax
                                                     : DaxMode::kDisabled,
                     comes_online(device)});
  });
  return found;
}

}  // namespace

StepResult settle_cxl_device(const std::string& cxl_region) {
  std::string wrong;
  for (int look = 0; look < kLooksMax; ++look) {
    if (look != 0) std::this_thread::sleep_for(kPause);
    const auto found = devices_of(cxl_region);
    if (found.empty()) continue;
    if (found[0].mode == DaxMode::kDevdax) return found[0].name;
    if (found[0].comes_online && look + 1 < kLooksMax) continue;
    // A driver that is loaded just now may take it in between: then the next look sees that.
    const auto settled =
        found[0].mode == DaxMode::kSystemRam ? take_from_kernel(found[0].name) : enable_device(found[0].name);
    if (!settled && found[0].mode == DaxMode::kSystemRam) return settled;
    if (!settled) wrong = "; " + settled.error().text();
  }
  return failure(ENODEV, "find the DAX device of " + cxl_region +
                             ": found none in mode devdax, expected the one that the kernel's module dax_cxl makes; "
                             "load that module" +
                             wrong);
}

tl::expected<std::vector<std::string>, StepError> disable_cxl_devices(const std::string& cxl_region,
                                                                      bool takes_memory) {
  auto found = devices_of(cxl_region);
  for (FoundDevice& device : found)
    if (takes_memory && device.mode == DaxMode::kSystemRam && take_from_kernel(device.name))
      device.mode = DaxMode::kDevdax;
  for (const FoundDevice& device : found)
    if (device.mode == DaxMode::kSystemRam)
      return failure(EBUSY, "give back " + cxl_region + ": found " + device.name +
                                " in mode system-ram, expected it taken from the kernel before");
  std::vector<std::string> names;
  Changes changes;
  for (const FoundDevice& device : found) {
    if (device.mode != DaxMode::kDevdax) continue;
    const std::string& name = device.name;
    changes.attempt(
        "disable " + name, [&] { return code_of(disable_device(name)); }, name + " is disabled",
        [name] { return code_of(enable_device(name)); });
    names.push_back(name);
  }
  if (const auto done = changes.finish(cxl_region); !done) return tl::unexpected<StepError>(done.error());
  return names;
}

}  // namespace maru::daemon::provision
