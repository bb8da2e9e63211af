// DAX devices: finds the device of a table, and the steps that it needs.
#include "daemon/base/size_text.h"
#include "daemon/tools/provision/plan_state.h"

#include <algorithm>

namespace maru::daemon::provision {
namespace {

const char* place_key(const Wish& wish) { return wish.device.empty() ? "region" : "device"; }

// Resizes and switches an existing device until it is as the table asks.
void settle_device(PlanState& state, const Wish& wish, DaxDeviceFacts& device, DaxRegion* region) {
  if (!state.claimed.insert(device.name).second)
    return state.refuse(wish, place_key(wish),
                        "found " + device.name + " taken by another table, expected a device of its own");
  const DaxMode wanted = wish.is_system_ram ? DaxMode::kSystemRam : DaxMode::kDevdax;
  if (wish.align != 0 && wish.align != device.align)
    return state.refuse(wish, "align",
                        "found " + device.name + " aligned to " + size_text(device.align) + ", expected " +
                            size_text(wish.align) + "; give it back, and make one of that alignment");
  const bool resizes = wish.bytes != 0 && wish.bytes != device.bytes;
  if (!resizes && device.mode == wanted)
    return state.settle(
        wish, device.name + " is there (" + size_text(device.bytes) + ", " + dax_mode_text(device.mode) + ")");
  Step step;
  step.wish = wish.name;
  step.target = device.name;
  if (resizes) {
    if (!region || !region->is_dynamic)
      return state.refuse(wish, "size",
                          "found " + device.name + " with " + size_text(device.bytes) +
                              " in a region that is not "
                              "divided, expected a dynamic one to resize it; write the size that it has, or none");
    const uint64_t align = std::max(device.align, region->align);
    if (align != 0 && wish.bytes % align != 0)
      return state.refuse(wish, "size",
                          "found " + size_text(wish.bytes) + ", expected a multiple of " + size_text(align));
    if (wish.bytes > device.bytes && wish.bytes - device.bytes > region->free_bytes)
      return state.refuse(wish, "size",
                          "found " + size_text(region->free_bytes) + " free in " + region->name + ", expected " +
                              size_text(wish.bytes - device.bytes) + " more for " + device.name);
  }
  // A device that only grows keeps its content; no process may have it open.
  const bool keeps_content = device.mode != DaxMode::kSystemRam && !wish.is_system_ram &&
                             (!resizes || (device.mode == DaxMode::kDevdax && wish.bytes >= device.bytes));
  DaxDeviceFacts judged = device;
  if (keeps_content) {
    judged.pool.clear();
    judged.is_blank = true;
    judged.mode = DaxMode::kDevdax;
  }
  if (const std::string why = reason_against(judged, state.force); !why.empty())
    return state.refuse(wish, place_key(wish), why);
  if (device.mode == DaxMode::kSystemRam) {
    step.kind = Step::Kind::kTakeFromKernel;
    step.kernel_use = use_of(device);
    step.why = device.is_online ? "it is memory of the kernel, and --force was given"
                                : "it is in mode system-ram, with nothing online";
    step.loses_content = true;
    step.bytes = device.bytes;
    state.add(step);
  } else if (device.mode == DaxMode::kDisabled && !resizes && !wish.is_system_ram) {
    step.kind = Step::Kind::kEnableDevice;
    step.why = "it is disabled";
    state.add(step);
  }
  step.loses_content = false;
  step.was_disabled = device.mode == DaxMode::kDisabled;
  if (resizes) {
    step.kind = Step::Kind::kResizeDevice;
    step.before = device.bytes;
    step.bytes = wish.bytes;
    step.why = "the table says another size";
    step.loses_content = wish.bytes < device.bytes && !(device.is_blank && device.pool.empty());
    state.add(step);
    region->free_bytes = region->free_bytes + device.bytes - wish.bytes;
    device.bytes = wish.bytes;
    step.was_disabled = false;  // for the next step
  }
  if (wanted == DaxMode::kSystemRam) {
    step.kind = Step::Kind::kGiveToKernel;
    step.why = "the table says system-ram";
    step.loses_content |= device.mode == DaxMode::kDevdax && !(device.is_blank && device.pool.empty());
    state.add(step);
  }
  device.mode = wanted;
}

// The kernel tells addresses to root alone. Other users find a device by its name.
bool is_it(const Made& made, const DaxDeviceFacts& device) {
  return made.name == device.name && (made.start == device.start || device.start == 0);
}

// The device of a table that names a region: the device that apply made for it, else the first free device that fits.
DaxDeviceFacts* find_device(PlanState& state, const Wish& wish) {
  const auto is_there = [&](const Made& made) {
    const DaxDeviceFacts* device = find_named(state.machine.dax_devices, made.name);
    return device && is_it(made, *device) && is_place(wish, device->region, device->numa_node);
  };
  if (const Made* made = state.made_for(wish.name, WishKind::kDevice, is_there))
    return find_named(state.machine.dax_devices, made->name);
  for (DaxDeviceFacts& device : state.machine.dax_devices) {
    const bool is_others = std::any_of(state.made.begin(), state.made.end(),
                                       [&](const Made& made) { return is_it(made, device) && made.wish != wish.name; });
    if (is_others || state.claimed.contains(device.name)) continue;
    if (!is_place(wish, device.region, device.numa_node)) continue;
    const DaxRegion* region = find_named(state.machine.dax_regions, device.region);
    if (!region || !region->is_dynamic) continue;  // namespaces have their own kind
    if (std::find(wish.replace.begin(), wish.replace.end(), device.name) != wish.replace.end()) continue;
    if (wish.align != 0 && wish.align != device.align) continue;
    // "all" means the free memory. When nothing is free, it means the device that has all of the region.
    if (wish.bytes != 0 ? wish.bytes == device.bytes : region->free_bytes == 0 && device.bytes == region->bytes)
      return &device;
  }
  return nullptr;
}

// Plans to remove the devices that the table names in `replace`. False: an obstacle.
bool give_back(PlanState& state, const Wish& wish) {
  for (const std::string& name : wish.replace) {
    DaxDeviceFacts* device = find_named(state.machine.dax_devices, name);
    if (!device) continue;  // it went the last time
    DaxRegion* region = find_named(state.machine.dax_regions, device->region);
    if (!region || !region->is_dynamic || state.claimed.contains(name)) {
      state.refuse(wish, "replace",
                   "found " + name +
                       (region && region->is_dynamic ? " taken by another table" : " in a region that is not divided") +
                       ", expected a device that can be given back");
      return false;
    }
    if (const std::string why = reason_against(*device, state.force); !why.empty())
      return state.refuse(wish, "replace", why), false;
    Step step;
    step.wish = wish.name;
    step.target = name;
    step.why = "the table says so, for its memory";
    step.region = device->region;
    step.bytes = device->bytes;
    step.align = device->align;
    step.start = device->start;
    step.loses_content = !(device->is_blank && device->pool.empty());
    if (device->mode == DaxMode::kSystemRam) {
      step.kind = Step::Kind::kTakeFromKernel;
      step.kernel_use = use_of(*device);
      state.add(step);
    }
    step.kind = Step::Kind::kRemoveDevice;
    step.was_disabled = device->mode == DaxMode::kDisabled;
    state.add(step);
    region->free_bytes += device->bytes;
    std::erase_if(state.machine.dax_devices, [&](const DaxDeviceFacts& one) { return one.name == name; });
  }
  return true;
}

}  // namespace

void plan_device(PlanState& state, const Wish& wanted) {
  Wish wish = wanted;
  if (wish.region.starts_with(kCxlPrefix)) {
    const auto place = state.cxl_places.find(wish.region);
    if (place == state.cxl_places.end()) return;  // the region's own problem was reported
    const auto& regions = state.machine.dax_regions;
    const auto region = std::find_if(regions.begin(), regions.end(),
                                     [&](const DaxRegion& one) { return one.cxl_region == place->second; });
    if (region == regions.end())
      return state.refuse(wish, "region",
                          "found no DAX device in " + place->second +
                              ", expected the one that the kernel's module dax_cxl makes; load that module");
    wish.region = region->name;
  }
  if (!wish.device.empty()) {
    DaxDeviceFacts* device = find_named(state.machine.dax_devices, wish.device);
    if (!device)
      return state.refuse(wish, "device",
                          "found no " + wish.device + ", expected one; marud-provision list shows what there is");
    return settle_device(state, wish, *device, find_named(state.machine.dax_regions, device->region));
  }
  if (DaxDeviceFacts* device = find_device(state, wish)) {
    // A pool that is there by now was made from the device's old content.
    const bool is_unfinished =
        device->pool.empty() && std::any_of(state.made.begin(), state.made.end(), [&](const Made& made) {
          return made.is_unfinished && is_it(made, *device);
        });
    if (is_unfinished)
      return state.refuse(wish, place_key(wish),
                          "found " + device->name +
                              ", which was made for this table by an apply that failed and could not clear or remove "
                              "it, expected none; release it first (marud-provision release " +
                              wish.name + ")");
    return settle_device(state, wish, *device, find_named(state.machine.dax_regions, device->region));
  }
  if (!give_back(state, wish)) return;

  std::string against;
  const char* key = "region";
  for (DaxRegion& region : state.machine.dax_regions) {
    if (!is_place(wish, region.name, region.numa_node)) continue;
    const auto no = [&](const char* about, const std::string& text) {
      against += (against.empty() ? "" : "; ") + region.name + " " + text;
      key = about;
    };
    if (!region.is_dynamic) {
      if (!wish.region.empty()) no("region", "is not divided into devices (it belongs to a namespace)");
      continue;
    }
    const uint64_t align = std::max(region.align, wish.align);
    const uint64_t bytes = wish.bytes != 0 ? wish.bytes : align ? region.free_bytes / align * align : region.free_bytes;
    if (align != 0 && bytes % align != 0) {
      no("size", "gives multiples of " + size_text(align) + " only");
      continue;
    }
    if (bytes == 0 || bytes > region.free_bytes) {
      std::string owners;
      for (const DaxDeviceFacts& device : state.machine.dax_devices)
        if (device.region == region.name) owners += (owners.empty() ? ", the rest is in " : ", ") + device.name;
      no("size", "has " + size_text(region.free_bytes) + " free" + owners);
      continue;
    }
    Step step;
    step.kind = Step::Kind::kMakeDevice;
    step.wish = wish.name;
    step.target = region.name;
    step.why = "no device is the one of this table";
    step.bytes = bytes;
    step.align = wish.align;
    state.add(step);
    region.free_bytes -= bytes;
    if (wish.is_system_ram) {
      step.kind = Step::Kind::kGiveToKernel;
      step.target.clear();
      step.why = "the table says system-ram";
      state.add(step);
    }
    return;
  }
  if (against.empty())
    return state.refuse(wish, "region",
                        "found no DAX region of several devices there, expected " +
                            (wish.region.empty() ? std::string("one") : wish.region) +
                            "; marud-provision list shows what there is");
  state.refuse(wish, key,
               "found that " + against + ", expected " + (wish.bytes ? size_text(wish.bytes) : std::string("some")) +
                   "; replace = [\"dax0.0\"] gives a device back first");
}

}  // namespace maru::daemon::provision
