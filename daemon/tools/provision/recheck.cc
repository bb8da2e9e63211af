#include "daemon/tools/provision/recheck.h"

#include <algorithm>
#include <utility>

namespace maru::daemon::provision {
namespace {

using Names = std::vector<std::string>;
using Facts = std::vector<std::pair<std::string, std::string>>;  // the name of a fact, and its value

void add(Names& names, const std::string& name) {
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

// The parts of the machine that a step concerns.
struct Scope {
  Names devices, namespaces, nvdimm_regions, cxl_regions, cxl_memories;

  void add_namespace(const Namespace& one) {
    add(namespaces, one.name);
    add(devices, one.device);
  }
};

void add_namespaces_of(Scope& scope, const std::string& region, const Machine& machine) {
  for (const Namespace& one : machine.namespaces)
    if (one.region == region) scope.add_namespace(one);
}

void add_scope(Scope& scope, const Step& step, const Machine& machine) {
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion:
      for (const std::string& memory : step.memories) add(scope.cxl_memories, memory);
      break;
    case Step::Kind::kRemoveCxlRegion:
      add(scope.cxl_regions, step.target);
      for (const DaxDeviceFacts& device : machine.dax_devices)
        if (const DaxRegion* region = find_named(machine.dax_regions, device.region))
          if (region->cxl_region == step.target) add(scope.devices, device.name);
      add_namespaces_of(scope, step.target, machine);
      break;
    case Step::Kind::kMakeLabels:
      add(scope.nvdimm_regions, step.target);
      add_namespaces_of(scope, step.target, machine);
      break;
    case Step::Kind::kRemoveNamespace:
    case Step::Kind::kEnableNamespace:
      add(scope.namespaces, step.target);
      if (const Namespace* one = find_named(machine.namespaces, step.target)) scope.add_namespace(*one);
      break;
    case Step::Kind::kMakeNamespace:
    case Step::Kind::kMakeDevice: break;  // of memory that is free: the kernel sees to that
    case Step::Kind::kResizeDevice:
    case Step::Kind::kRemoveDevice:
    case Step::Kind::kTakeFromKernel:
    case Step::Kind::kGiveToKernel:
    case Step::Kind::kEnableDevice: add(scope.devices, step.target); break;
  }
}

std::string bytes_text(uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Facts facts_of(const DaxDeviceFacts& device) {
  const bool is_ram = device.mode == DaxMode::kSystemRam;
  return {{"at the address", std::to_string(device.start)},
          {"with", bytes_text(device.bytes)},
          {"in the region", device.region},
          {"in the mode", dax_mode_text(device.mode)},
          {"as memory of the kernel", !is_ram            ? "not at all"
                                      : device.is_online ? "online"
                                                         : "offline"},
          {"holding", !device.pool.empty()                                 ? "the pool " + device.pool
                      : device.is_blank || device.mode != DaxMode::kDevdax ? "nothing"
                                                                           : "content that is no pool"}};
}

Facts facts_of(const Namespace& one) {
  return {{"with the uuid", one.uuid},
          {"named", "\"" + one.label + "\""},
          {"on", one.region},
          {"in the mode", one.mode},
          {"with", bytes_text(one.bytes)},
          {"", one.is_enabled ? "enabled" : "disabled"},
          {"as the device", one.device.empty() ? one.block_device : one.device}};
}

Facts facts_of(const NvdimmRegion& region) {
  return {{"with", bytes_text(region.bytes)},
          {"", region.is_enabled ? "enabled" : "disabled"},
          {"", region.is_read_only ? "read-only" : "writable"},
          {"", region.has_labels ? "with labels" : "without labels"},
          {"holding", region.has_labels || region.is_blank ? "nothing of its own" : "something"}};
}

Facts facts_of(const CxlRegion& region) {
  return {{"in", region.window},
          {"with", bytes_text(region.bytes)},
          {"", region.is_persistent ? "persistent" : "volatile"},
          {"", region.is_enabled ? "enabled" : "disabled"},
          {"made of", joined(region.memories)}};
}

Facts facts_of(const CxlMemory& memory) {
  return {{"with the serial number", std::to_string(memory.serial)}, {"", memory.is_enabled ? "enabled" : "disabled"}};
}

template <typename T>
std::string difference_of(const Names& names, const std::vector<T>& expected, const std::vector<T>& found) {
  for (const std::string& name : names) {
    const T* before = find_named(expected, name);
    const T* now = find_named(found, name);
    if (!before && !now) continue;
    if (!before) return "found " + name + ", which was not there, expected none of that name";
    if (!now) return "found no " + name + ", expected it as it was";
    const Facts was = facts_of(*before), is = facts_of(*now);
    for (size_t i = 0; i < is.size(); ++i) {
      if (was[i].second == is[i].second) continue;
      const std::string what = is[i].first.empty() ? "" : is[i].first + " ";
      return "found " + name + " " + what + is[i].second + ", expected " + what + was[i].second;
    }
  }
  return "";
}

template <typename T>
void replace(const Names& names, const std::vector<T>& found, std::vector<T>& expected) {
  for (const std::string& name : names) {
    std::erase_if(expected, [&](const T& one) { return one.name == name; });
    if (const T* now = find_named(found, name)) expected.push_back(*now);
  }
}

}  // namespace

Step undoing(const Step& step, const std::string& name) {
  Step back = step;
  back.target = name;
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion: back.kind = Step::Kind::kRemoveCxlRegion; break;
    case Step::Kind::kRemoveCxlRegion: back.kind = Step::Kind::kMakeCxlRegion; break;
    case Step::Kind::kMakeNamespace: back.kind = Step::Kind::kRemoveNamespace; break;
    case Step::Kind::kRemoveNamespace:
      back.kind = Step::Kind::kMakeNamespace;
      back.target = step.region;
      break;
    case Step::Kind::kMakeDevice: back.kind = Step::Kind::kRemoveDevice; break;
    case Step::Kind::kRemoveDevice:
      back.kind = Step::Kind::kMakeDevice;
      back.target = step.region;
      break;
    case Step::Kind::kTakeFromKernel: back.kind = Step::Kind::kGiveToKernel; break;
    case Step::Kind::kGiveToKernel: back.kind = Step::Kind::kTakeFromKernel; break;
    case Step::Kind::kMakeLabels:
    case Step::Kind::kEnableNamespace:
    case Step::Kind::kResizeDevice:
    case Step::Kind::kEnableDevice: break;
  }
  return back;
}

std::vector<std::string> devices_of(const Step& step, const Machine& machine) {
  Scope scope;
  add_scope(scope, step, machine);
  return scope.devices;
}

std::string difference(const Step& step, const Machine& expected, const Machine& found) {
  Scope scope;
  add_scope(scope, step, expected);
  add_scope(scope, step, found);
  for (const std::string& name : scope.devices) {
    const DaxDeviceFacts* device = find_named(found.dax_devices, name);
    if (device && device->mode != DaxMode::kSystemRam && !device->holder.empty())
      return "found " + name + " open in " + device->holder + ", expected nobody";
  }
  for (const std::string& text : {difference_of(scope.cxl_memories, expected.cxl_memories, found.cxl_memories),
                                  difference_of(scope.cxl_regions, expected.cxl_regions, found.cxl_regions),
                                  difference_of(scope.nvdimm_regions, expected.nvdimm_regions, found.nvdimm_regions),
                                  difference_of(scope.namespaces, expected.namespaces, found.namespaces),
                                  difference_of(scope.devices, expected.dax_devices, found.dax_devices)})
    if (!text.empty()) return text;
  return "";
}

void expect_from_now_on(const Step& step, const std::string& name, const Machine& found, Machine& expected) {
  Scope scope;
  for (const Machine* machine : {&std::as_const(expected), &found}) {
    add_scope(scope, step, *machine);
    add_scope(scope, undoing(step, name), *machine);
  }
  // A region that was made or taken apart appears under other names, too.
  for (const Names* names : {&scope.cxl_regions, &scope.nvdimm_regions}) {
    replace(*names, found.cxl_regions, expected.cxl_regions);
    replace(*names, found.nvdimm_regions, expected.nvdimm_regions);
  }
  expected.dax_regions = found.dax_regions;  // only say where devices are
  replace(scope.cxl_memories, found.cxl_memories, expected.cxl_memories);
  replace(scope.namespaces, found.namespaces, expected.namespaces);
  replace(scope.devices, found.dax_devices, expected.dax_devices);
  if (!clears(step)) return;
  for (const std::string& device : devices_of(undoing(step, name), found)) {
    DaxDeviceFacts* cleared = find_named(expected.dax_devices, device);
    if (!cleared) continue;
    cleared->pool.clear();
    cleared->is_blank = true;
  }
}

}  // namespace maru::daemon::provision
