#include "daemon/provision/contexts.h"
#include "daemon/provision/device_executor.h"
#include "daemon/provision/inventory.h"

#include <cerrno>

namespace maru::daemon::provision {
namespace {

// A device and the context that it lives in.
struct OpenDevice {
  DaxctlContext context = open_daxctl();
  daxctl_region* region = nullptr;
  daxctl_dev* device = nullptr;

  explicit OpenDevice(const std::string& name) {
    if (!context) return;
    for_each_dax_device(context.get(), [&](daxctl_region* of, daxctl_dev* one) {
      if (name == text_of(daxctl_dev_get_devname(one))) region = of, device = one;
    });
  }
};

tl::unexpected<Error> absent(const std::string& name) { return failure(ENODEV, "find " + name); }
tl::unexpected<Error> failed(int negative, const std::string& doing) {
  return failure(negative < 0 ? -negative : EIO, doing);
}

// Of its own name ("dax0"), or of the volatile CXL region that it is.
daxctl_region* find_region(daxctl_ctx* context, const std::string& name) {
  daxctl_region* region;
  daxctl_region_foreach(context,
                        region) if (dax_region_name(region) == name || cxl_region_of(region) == name) return region;
  return nullptr;
}

// The device without memory of a region: the kernel keeps one at times, otherwise it makes one.
Result<std::string> empty_device(const std::string& region_name) {
  for (const bool is_second : {false, true}) {
    const DaxctlContext context = open_daxctl();
    daxctl_region* region = context ? find_region(context.get(), region_name) : nullptr;
    if (!region) return absent(region_name);
    daxctl_dev* device;
    daxctl_dev_foreach(region,
                       device) if (daxctl_dev_get_size(device) == 0 &&
                                   !daxctl_dev_is_enabled(device)) return text_of(daxctl_dev_get_devname(device));
    if (is_second) break;
    if (const int wrong = daxctl_region_create_dev(region); wrong != 0)
      return failed(wrong, "make a device in " + region_name);
  }
  return failure(ENODEV, "find the device that was made in " + region_name);
}

}  // namespace

Result<std::string> make_device(const std::string& region, uint64_t bytes, uint64_t align) {
  auto name = empty_device(region);
  if (!name) return name;
  const OpenDevice open(*name);
  if (!open.device) return absent(*name);
  std::string doing = "give " + *name + " an alignment";
  int wrong = align != 0 && align != daxctl_dev_get_align(open.device) ? daxctl_dev_set_align(open.device, align) : 0;
  if (wrong == 0) doing = "give " + *name + " its memory", wrong = daxctl_dev_set_size(open.device, bytes);
  if (wrong == 0) doing = "enable " + *name, wrong = daxctl_dev_enable_devdax(open.device);
  if (wrong == 0) return name;
  const auto removed = remove_device(*name);
  return failed(wrong, doing + (removed ? "" : " (and then " + removed.error().text() + ")"));
}

Result<std::string> remove_device(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  if (daxctl_dev_is_enabled(open.device))
    if (const int wrong = daxctl_dev_disable(open.device); wrong != 0) return failed(wrong, "disable " + name);
  if (const int wrong = daxctl_dev_set_size(open.device, 0); wrong != 0)
    return failed(wrong, "give back the memory of " + name);
  // The kernel keeps the first device of a region, empty; that is as good.
  daxctl_region_destroy_dev(open.region, open.device);
  return name;
}

Result<std::string> enable_device(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  if (const int wrong = daxctl_dev_enable_devdax(open.device); wrong != 0)
    return failed(wrong, "enable " + name + " as devdax");
  return name;
}

Result<std::string> disable_device(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  if (const int wrong = daxctl_dev_disable(open.device); wrong != 0) return failed(wrong, "disable " + name);
  return name;
}

Result<std::string> resize_device(const std::string& name, uint64_t bytes) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  const bool was_enabled = daxctl_dev_is_enabled(open.device);
  if (was_enabled)
    if (const int wrong = daxctl_dev_disable(open.device); wrong != 0) return failed(wrong, "disable " + name);
  const int wrong = daxctl_dev_set_size(open.device, bytes);
  // Enabled again whether it was resized or not.
  const int unusable = daxctl_dev_enable_devdax(open.device);
  if (wrong != 0) return failed(wrong, "resize " + name + (unusable ? " (and it cannot be enabled again)" : ""));
  if (unusable != 0) return failed(unusable, "enable " + name + " after resizing it");
  return name;
}

Result<std::string> take_from_kernel(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  daxctl_memory* memory = daxctl_dev_get_memory(open.device);
  if (!memory) return failure(EINVAL, "take " + name + " from the kernel, which does not have it");
  if (daxctl_memory_is_online(memory) > 0) {
    const int wrong = daxctl_memory_offline(memory);
    if (wrong < 0 || daxctl_memory_is_online(memory) > 0) {
      // Part of it may be offline now; the kernel gets all of it back.
      const int lost = daxctl_memory_online(memory);
      return failure(EBUSY, "take the memory of " + name +
                                " from the kernel, which cannot move what lies there elsewhere (" +
                                (lost < 0 ? "part of it stays offline: marud-provision apply --force tries again"
                                          : "all of it is the kernel's again") +
                                "); free memory, or restart the machine without it online");
    }
  }
  if (const int wrong = daxctl_dev_disable(open.device); wrong != 0) {
    daxctl_memory_online(memory);
    return failed(wrong, "take " + name + " from the kernel");
  }
  if (const int wrong = daxctl_dev_enable_devdax(open.device); wrong != 0) {
    const auto back = give_to_kernel(name);
    return failed(wrong, "enable " + name + " as devdax" + (back ? "" : " (and then " + back.error().text() + ")"));
  }
  return name;
}

Result<std::string> give_to_kernel(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  if (daxctl_dev_get_memory(open.device) == nullptr) {
    if (daxctl_dev_is_enabled(open.device))
      if (const int wrong = daxctl_dev_disable(open.device); wrong != 0) return failed(wrong, "disable " + name);
    if (const int wrong = daxctl_dev_enable_ram(open.device); wrong != 0) {
      daxctl_dev_enable_devdax(open.device);
      return failed(
          wrong,
          "give " + name + " to the kernel (module kmem; it takes whole blocks of memory only, of 128 MiB or more)");
    }
  }
  const OpenDevice again(name);  // its memory is known to a fresh context only
  daxctl_memory* memory = again.device ? daxctl_dev_get_memory(again.device) : nullptr;
  if (!memory) return failure(EIO, "find the memory of " + name + " in the kernel's");
  if (const int wrong = daxctl_memory_online(memory); wrong < 0)
    return failed(wrong, "put the memory of " + name + " online");
  return name;
}

Result<void> clear_whole_device(const std::string& name) {
  uint64_t bytes = 0, align = 0;
  {
    const OpenDevice open(name);
    if (!open.device) return absent(name);
    bytes = daxctl_dev_get_size(open.device);
    align = daxctl_dev_get_align(open.device);
  }
  return clear_device(name, 0, bytes, align);
}

}  // namespace maru::daemon::provision
