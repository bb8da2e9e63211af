#include "daemon/tools/provision/changes.h"
#include "daemon/tools/provision/contexts.h"
#include "daemon/tools/provision/device_executor.h"
#include "daemon/tools/provision/inventory.h"

#include <algorithm>
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

// The most empty devices that are made to get a device of a certain name. No known machine has more.
constexpr int kNewDevicesMax = 256;

// The devices without memory of a region, which have no driver either.
Result<std::vector<std::string>> empty_devices(const std::string& region_name) {
  const DaxctlContext context = open_daxctl();
  daxctl_region* region = context ? find_region(context.get(), region_name) : nullptr;
  if (!region) return absent(region_name);
  std::vector<std::string> names;
  daxctl_dev* device;
  daxctl_dev_foreach(region, device) {
    if (daxctl_dev_get_size(device) == 0 && !daxctl_dev_is_enabled(device))
      names.push_back(text_of(daxctl_dev_get_devname(device)));
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int make_empty_device(const std::string& region_name) {
  const DaxctlContext context = open_daxctl();
  daxctl_region* region = context ? find_region(context.get(), region_name) : nullptr;
  return region ? daxctl_region_create_dev(region) : -ENODEV;
}

// An empty device is as good as none. The kernel keeps the first one of a region.
void drop_if_empty(const std::string& name) {
  const OpenDevice open(name);
  if (open.device && daxctl_dev_get_size(open.device) == 0) daxctl_region_destroy_dev(open.region, open.device);
}

// The device without memory of a region: the kernel keeps such a device at times, otherwise it makes a new device. `wanted`:
// the wanted name, if it can be had; "": any.
//
// The kernel gives a new device the lowest free number, and keeps the first device of a region, empty. So new devices are made
// until the wanted name is among them; the others go again.
Result<std::string> empty_device(const std::string& region_name, const std::string& wanted) {
  const auto before = empty_devices(region_name);
  if (!before) return tl::unexpected<Error>(before.error());
  auto now = before;
  const auto is_found = [&] { return wanted.empty() ? !now->empty() : has(*now, wanted); };
  int wrong = 0;
  for (int tries = 0; tries < kNewDevicesMax && !is_found(); ++tries) {
    if (!now->empty() && OpenDevice(wanted).device) break;  // another program made a device of that name meanwhile
    if (wrong = make_empty_device(region_name); wrong != 0) break;
    now = empty_devices(region_name);
    if (!now) return tl::unexpected<Error>(now.error());
  }
  if (now->empty() && wrong != 0) return failed(wrong, "make a device in " + region_name);
  if (now->empty()) return failure(ENODEV, "find the device that was made in " + region_name);
  const std::string chosen = has(*now, wanted) ? wanted : now->front();
  for (const std::string& name : *now)
    if (name != chosen && !has(*before, name)) drop_if_empty(name);
  return chosen;
}

// Makes one change to a device in a fresh context: a context does not see the changes of other contexts.
template <typename Change>
int change(const std::string& name, Change how) {
  const OpenDevice open(name);
  return open.device ? how(open.device) : -ENODEV;
}

int enable_devdax(const std::string& name) {
  return change(
      name, [](daxctl_dev* device) { return daxctl_dev_is_enabled(device) ? 0 : daxctl_dev_enable_devdax(device); });
}
int disable(const std::string& name) { return change(name, daxctl_dev_disable); }
int give_size(const std::string& name, uint64_t bytes) {
  return change(name, [&](daxctl_dev* device) { return daxctl_dev_set_size(device, bytes); });
}

// How many blocks of its memory the kernel uses.
int is_online(const std::string& name) {
  return change(name, [](daxctl_dev* device) {
    daxctl_memory* memory = daxctl_dev_get_memory(device);
    return memory ? daxctl_memory_is_online(memory) : -EIO;
  });
}

// Has the kernel use the memory of a device in mode system-ram like this, or puts back how it used it.
int use_memory(const std::string& name, KernelUse use) {
  return change(name, [&](daxctl_dev* device) {
    daxctl_memory* memory = daxctl_dev_get_memory(device);
    if (!memory) return -EIO;
    const bool is_online = daxctl_memory_is_online(memory) > 0;
    switch (use) {
      case KernelUse::kMovable: return daxctl_memory_online(memory);
      case KernelUse::kUnmovable: return daxctl_memory_online_no_movable(memory);
      case KernelUse::kOffline: return is_online ? daxctl_memory_offline(memory) : 0;
    }
    return -EINVAL;
  });
}

// How the kernel uses the memory of a device now.
KernelUse use_of(daxctl_memory* memory) {
  if (daxctl_memory_is_online(memory) <= 0) return KernelUse::kOffline;
  return daxctl_memory_is_movable(memory) == 1 ? KernelUse::kMovable : KernelUse::kUnmovable;
}

const char* kNobodys = " is disabled";

}  // namespace

StepResult make_device(const std::string& region, uint64_t bytes, uint64_t align, const std::string& wanted) {
  const auto found = empty_device(region, wanted);
  if (!found) return tl::unexpected<Error>(found.error());
  const std::string& name = *found;
  uint64_t align_before = 0;
  change(name, [&](daxctl_dev* device) { return align_before = daxctl_dev_get_align(device), 0; });
  const auto give_align = [&](uint64_t to) {
    return change(name, [&](daxctl_dev* device) { return daxctl_dev_set_align(device, to); });
  };
  Changes changes;
  if (align != 0 && align != align_before)
    changes.attempt(
        "give " + name + " an alignment", [&] { return give_align(align); }, name + " has another alignment",
        [&] { return give_align(align_before); });
  changes.attempt(
      "give " + name + " its memory", [&] { return give_size(name, bytes); }, name + " has memory and is disabled",
      [&] { return give_size(name, 0); });
  changes.attempt("enable " + name, [&] { return enable_devdax(name); });
  const bool is_made = changes.is_good();
  auto made = changes.finish(name);
  if (is_made) return made;
  drop_if_empty(name);
  if (change(name, [](daxctl_dev* device) { return daxctl_dev_get_size(device) != 0; }) == 1) made.error().there = name;
  return made;
}

StepResult remove_device(const std::string& name) {
  const OpenDevice open(name);
  if (!open.device) return absent(name);
  Changes changes;
  if (daxctl_dev_is_enabled(open.device))
    changes.attempt(
        "disable " + name, [&] { return daxctl_dev_disable(open.device); }, name + kNobodys,
        [&] { return enable_devdax(name); });
  changes.attempt("give back the memory of " + name, [&] { return daxctl_dev_set_size(open.device, 0); });
  // The kernel keeps the first device of a region, empty; that is as good.
  if (changes.is_good()) daxctl_region_destroy_dev(open.region, open.device);
  return changes.finish(name);
}

StepResult enable_device(const std::string& name) {
  Changes changes;
  changes.attempt("enable " + name + " as devdax", [&] { return enable_devdax(name); });
  return changes.finish(name);
}

StepResult disable_device(const std::string& name) {
  Changes changes;
  changes.attempt("disable " + name, [&] { return disable(name); });
  return changes.finish(name);
}

StepResult resize_device(const std::string& name, uint64_t bytes, bool is_disabled_after) {
  bool was_enabled = false;
  uint64_t bytes_before = 0;
  {
    const OpenDevice open(name);
    if (!open.device) return absent(name);
    was_enabled = daxctl_dev_is_enabled(open.device);
    bytes_before = daxctl_dev_get_size(open.device);
  }
  Changes changes;
  if (was_enabled)
    changes.attempt(
        "disable " + name, [&] { return disable(name); }, name + kNobodys, [&] { return enable_devdax(name); });
  changes.attempt(
      "resize " + name, [&] { return give_size(name, bytes); }, name + " has its new size",
      [&] { return give_size(name, bytes_before); });
  if (!is_disabled_after) changes.attempt("enable " + name + " after resizing it", [&] { return enable_devdax(name); });
  return changes.finish(name);
}

StepResult take_from_kernel(const std::string& name) {
  KernelUse use = KernelUse::kOffline;
  {
    const OpenDevice open(name);
    if (!open.device) return absent(name);
    daxctl_memory* memory = daxctl_dev_get_memory(open.device);
    if (!memory) return failure(EINVAL, "take " + name + " from the kernel, which does not have it");
    use = use_of(memory);
  }
  Changes changes;
  const auto back = [&] { return use_memory(name, use); };
  const std::string left =
      "part of the memory of " + name + " stays offline: marud-provision apply --force tries again";
  if (use != KernelUse::kOffline)
    changes.attempt(
        "take the memory of " + name +
            " from the kernel, which cannot move what lies there elsewhere; free memory, or restart the machine "
            "without it online",
        [&] {
          const int wrong = use_memory(name, KernelUse::kOffline);
          if (wrong >= 0 && is_online(name) == 0) return 0;
          // Part of it may be offline now; the kernel gets all of it back.
          if (back() < 0) changes.leave(left);
          return -EBUSY;
        },
        left, back);
  changes.attempt(
      "take " + name + " from the kernel", [&] { return disable(name); }, name + kNobodys,
      [&] {
        return change(
            name, [](daxctl_dev* device) { return daxctl_dev_get_memory(device) ? 0 : daxctl_dev_enable_ram(device); });
      });
  changes.attempt("enable " + name + " as devdax", [&] { return enable_devdax(name); });
  return changes.finish(name);
}

StepResult give_to_kernel(const std::string& name, KernelUse use) {
  bool was_ram = false, was_enabled = false;
  uint64_t bytes = 0, align = 0;
  KernelUse before = KernelUse::kOffline;
  {
    const OpenDevice open(name);
    if (!open.device) return absent(name);
    if (daxctl_memory* memory = daxctl_dev_get_memory(open.device)) was_ram = true, before = use_of(memory);
    was_enabled = !was_ram && daxctl_dev_is_enabled(open.device);
    bytes = daxctl_dev_get_size(open.device);
    align = daxctl_dev_get_align(open.device);
  }
  Changes changes;
  bool was_used = false;  // by the kernel, which may have put it online by itself
  if (!was_ram)
    changes.attempt(
        "disable " + name, [&] { return was_enabled ? disable(name) : 0; },
        name + " is disabled, or holds what the kernel left there",
        [&] {
          if (!was_enabled && !was_used) return 0;
          int wrong = enable_devdax(name);
          if (wrong >= 0 && was_used) wrong = code_of(clear_part_of_device(name, 0, bytes, align));
          return wrong >= 0 && !was_enabled ? disable(name) : wrong;
        });
  const std::string left = name + " stays the kernel's";
  if (!was_ram)
    changes.attempt(
        "give " + name + " to the kernel (module kmem; it takes whole blocks of memory only, of 128 MiB or more)",
        [&] { return change(name, daxctl_dev_enable_ram); }, left,
        [&] {
          was_used = is_online(name) > 0;
          if (const int wrong = was_used ? use_memory(name, KernelUse::kOffline) : 0; wrong < 0) return wrong;
          return disable(name);
        });
  changes.attempt(
      use == KernelUse::kOffline ? "take the memory of " + name + " offline" : "put the memory of " + name + " online",
      [&] {
        const int wrong = use_memory(name, use);
        if (wrong < 0 && was_ram && use_memory(name, before) < 0) changes.leave(left);
        return wrong;
      });
  return changes.finish(name);
}

Result<void> clear_part_of_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align) {
  const auto lock = lock_device(name);
  if (!lock) return tl::unexpected<Error>(lock.error());
  return clear_device(name, from, to, align);
}

Result<void> clear_whole_device(const std::string& name) {
  uint64_t bytes = 0, align = 0;
  {
    const OpenDevice open(name);
    if (!open.device) return absent(name);
    bytes = daxctl_dev_get_size(open.device);
    align = daxctl_dev_get_align(open.device);
  }
  return clear_part_of_device(name, 0, bytes, align);
}

}  // namespace maru::daemon::provision
