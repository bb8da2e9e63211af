#include "daemon/tools/provision/plan.h"

#include "daemon/base/size_text.h"
#include "daemon/tools/provision/plan_state.h"

namespace maru::daemon::provision {

bool is_place(const Wish& wish, const std::string& name, int numa_node) {
  if (wish.region.empty()) return true;
  if (wish.region.starts_with(kNodePrefix)) return wish.region == kNodePrefix + std::to_string(numa_node);
  return wish.region == name;
}

std::string reason_against(const DaxDeviceFacts& device, bool force) {
  if (!device.holder.empty() && device.mode != DaxMode::kSystemRam)
    return "found " + device.name + " open in " + device.holder +
           ", expected nobody; end it, or drain the device there first";
  if (force) return "";
  if (device.mode == DaxMode::kSystemRam && device.is_online)
    return "found " + device.name + " (" + size_text(device.bytes) +
           ") in use as memory of the kernel, which would have to move what lies there elsewhere and can fail; --force "
           "tries";
  if (!device.pool.empty())
    return "found the pool " + device.pool + " on " + device.name + ", which would be lost; --force does it";
  if (device.mode == DaxMode::kDevdax && !device.is_blank)
    return "found content that is no pool on " + device.name +
           ", or that it cannot be read, and it would be lost; --force does it";
  if (device.mode == DaxMode::kDisabled)
    return "found " + device.name +
           " disabled, so that nobody can say what it holds, which would be lost; enable it (daxctl enable-device) to "
           "have it looked at, or --force does it";
  return "";
}

KernelUse use_of(const DaxDeviceFacts& device) {
  return !device.is_online ? KernelUse::kOffline : device.is_movable ? KernelUse::kMovable : KernelUse::kUnmovable;
}

Plan make_plan(const Machine& machine, const std::vector<Wish>& wishes, const std::vector<Made>& made, bool force) {
  Plan plan;
  PlanState state{machine, made, force, plan, {}, {}, {}};
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kDevice && wish.region.starts_with(kCxlPrefix)) state.divided.insert(wish.region);
  // CXL memory first: namespaces and devices lie on its regions.
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kCxlRegion) plan_cxl_region(state, wish);
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kNamespace) plan_namespace(state, wish);
  // Tables that name their device come before tables that take any device that fits.
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kDevice && !wish.device.empty()) plan_device(state, wish);
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kDevice && wish.device.empty()) plan_device(state, wish);
  for (const Wish& wish : wishes)
    if (wish.kind == WishKind::kCxlRegion) plan_whole_cxl_device(state, wish);
  return plan;
}

namespace {

Plan refused(const std::string& name, const std::string& text) {
  Plan plan;
  plan.problems.push_back({0, "release \"" + name + "\": " + text});
  return plan;
}

// The table that apply made this device for, or nothing.
std::string table_of(const DaxDeviceFacts& device, const std::vector<Made>& made) {
  for (const Made& one : made)
    if (one.kind == WishKind::kDevice && one.name == device.name && one.start == device.start) return one.wish;
  return "";
}

Step remove_device_step(const DaxDeviceFacts& device, const std::string& name, const std::string& why) {
  Step step;
  step.kind = Step::Kind::kRemoveDevice;
  step.wish = name;
  step.target = device.name;
  step.region = device.region;
  step.bytes = device.bytes;
  step.align = device.align;
  step.start = device.start;
  step.loses_content = true;
  step.was_disabled = device.mode == DaxMode::kDisabled;
  step.why = why;
  return step;
}

}  // namespace

Plan plan_release(const Machine& machine, const std::string& name, const std::vector<Made>& made, bool force) {
  Plan plan;
  Step step;
  step.wish = name;
  step.why = "release";
  step.loses_content = true;
  const auto give_back = [&](const DaxDeviceFacts& device) {
    if (device.mode != DaxMode::kSystemRam) return;
    Step take = step;
    take.kind = Step::Kind::kTakeFromKernel;
    take.target = device.name;
    take.why = "it is memory of the kernel";
    take.kernel_use = use_of(device);
    plan.steps.push_back(take);
  };
  // First the things that apply made for the table: a namespace of another program may have the same name.
  std::string gone;
  for (const Made& one : made) {
    if (one.wish != name) continue;
    if (one.kind == WishKind::kDevice) {
      const DaxDeviceFacts* device = find_named(machine.dax_devices, one.name);
      if (!device || device->start != one.start) {  // another device may have that name by now
        gone = one.name;
        continue;
      }
      if (const std::string why = reason_against(*device, force); !why.empty()) return refused(name, why);
      give_back(*device);
      plan.steps.push_back(remove_device_step(*device, name, "release"));
      return plan;
    }
    const CxlRegion* region = find_named(machine.cxl_regions, one.name);
    if (one.kind != WishKind::kCxlRegion || !region) continue;
    for (const Namespace& other : machine.namespaces)
      if (other.region == region->name && other.bytes != 0)
        return refused(name, "found the namespace " + (other.label.empty() ? other.name : "\"" + other.label + "\"") +
                                 " on " + region->name + ", expected none; release it first");
    for (const DaxDeviceFacts& device : machine.dax_devices) {
      const DaxRegion* of = find_named(machine.dax_regions, device.region);
      if (!of || of->cxl_region != region->name) continue;
      if (const std::string table = table_of(device, made); !table.empty())
        return refused(name, "found " + device.name + " of the table \"" + table + "\" in " + region->name +
                                 ", expected none; release it first");
      if (const std::string why = reason_against(device, force); !why.empty()) return refused(name, why);
      give_back(device);
    }
    step.kind = Step::Kind::kRemoveCxlRegion;
    step.target = region->name;
    step.bytes = region->bytes;
    plan.steps.push_back(step);
    return plan;
  }
  for (const Namespace& one : machine.namespaces) {
    if (one.label != name) continue;
    // People write labels, so a label may be there twice.
    for (const Namespace& other : machine.namespaces)
      if (other.label == name && other.name != one.name)
        return refused(name, "found that name on " + one.name + " and on " + other.name +
                                 ", expected one of them; remove the right one with ndctl destroy-namespace");
    const DaxDeviceFacts* device = find_named(machine.dax_devices, one.device);
    if (!device && !force)
      return refused(name, "found " + one.name + " " +
                               (one.mode == "devdax" ? "without a DAX device" : "in mode " + one.mode) +
                               ", so that nobody can say what it holds, which would be lost; --force does it");
    if (device) {
      if (const std::string why = reason_against(*device, force); !why.empty()) return refused(name, why);
      give_back(*device);
    }
    step.kind = Step::Kind::kRemoveNamespace;
    step.target = one.name;
    step.region = one.region;
    step.bytes = one.bytes;
    step.align = one.align;
    plan.steps.push_back(step);
    return plan;
  }
  if (!gone.empty())
    return refused(name, "found that " + gone + ", which was made under this name, is gone" +
                             (find_named(machine.dax_devices, gone) ? ", and another device has its name" : "") +
                             ", expected it as it was; there is nothing to give back");
  return refused(name,
                 "found nothing that was made under this name (marud-provision list shows what there is), expected a "
                 "table that was applied since this machine started, or the name of a namespace");
}

bool clears(const Step& step) {
  return step.kind == Step::Kind::kMakeNamespace || step.kind == Step::Kind::kMakeDevice ||
         step.kind == Step::Kind::kTakeFromKernel ||
         (step.kind == Step::Kind::kMakeCxlRegion && !step.is_persistent && !step.is_divided);
}

std::string step_text(const Step& step) {
  const std::string quoted = "\"" + step.wish + "\"";
  const std::string shape = size_text(step.bytes) + (step.align ? ", aligned to " + size_text(step.align) : "");
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion: {
      std::string from;
      for (const std::string& memory : step.memories) from += (from.empty() ? "" : ", ") + memory;
      return "make the CXL region " + quoted + " in " + step.target + ": " + shape +
             (step.is_persistent ? ", persistent" : ", volatile") + ", from " + from +
             (clears(step) ? "; one device: devdax, cleared" : "");
    }
    case Step::Kind::kRemoveCxlRegion: return "remove the CXL region " + step.target + " (" + shape + ")";
    case Step::Kind::kMakeLabels: return "write empty labels on the modules of " + step.target;
    case Step::Kind::kMakeNamespace:
      return "make the namespace " + quoted + " on " + step.target + ": devdax, " + shape + ", cleared";
    case Step::Kind::kRemoveNamespace:
      return "remove " + step.target + ", the namespace " + quoted + " (" + size_text(step.bytes) + ")";
    case Step::Kind::kEnableNamespace: return "enable " + step.target + ", the namespace " + quoted;
    case Step::Kind::kMakeDevice:
      return "make a device for " + quoted + " in " + step.target + ": " + shape + ", cleared";
    case Step::Kind::kResizeDevice:
      return "resize " + step.target + " from " + size_text(step.before) + " to " + size_text(step.bytes);
    case Step::Kind::kRemoveDevice: return "give back " + step.target + " (" + shape + ") to " + step.region;
    case Step::Kind::kTakeFromKernel: return "take " + step.target + " from the kernel: system-ram to devdax, cleared";
    case Step::Kind::kGiveToKernel:
      return "give " + (step.target.empty() ? "the device of " + quoted : step.target) +
             " to the kernel: devdax to system-ram";
    case Step::Kind::kEnableDevice: return "enable " + step.target + " as devdax";
  }
  return "";
}

}  // namespace maru::daemon::provision
