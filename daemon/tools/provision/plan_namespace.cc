// Namespaces. A table finds its namespace again by the label.
#include "daemon/base/size_text.h"
#include "daemon/tools/provision/plan_state.h"

#include <algorithm>

namespace maru::daemon::provision {
namespace {

// Whether the region is in the way of a table for another reason than its size; the reason.
std::string unfit(const NvdimmRegion& region, bool force) {
  if (!region.is_enabled) return "is disabled (health: " + region.health + ")";
  if (region.is_read_only) return "is read-only";
  if (region.has_labels) return "";
  if (!region.can_have_labels) return "has modules without room for labels, so that its namespaces have no names";
  if (!region.is_blank && !force)
    return "has no labels and holds something, which writing labels would cut off from its reader; --force does it";
  return "";
}

// Checks a namespace with the right label: is it as the table asks?
void check_namespace(PlanState& state, const Wish& wish, const Namespace& one) {
  const NvdimmRegion* region = find_named(state.machine.nvdimm_regions, one.region);
  if (one.mode != "devdax")
    return state.refuse(wish, "name",
                        "found " + one.name + " of that name in mode " + one.mode +
                            ", expected devdax; choose another name, or remove it with ndctl destroy-namespace");
  if (wish.bytes != 0 && wish.bytes != one.bytes)
    return state.refuse(wish, "size",
                        "found " + one.name + " with " + size_text(one.bytes) + ", expected " + size_text(wish.bytes) +
                            "; a namespace is not resized: release \"" + wish.name +
                            "\" and apply, which loses its content, or write the size that it has");
  if (wish.align != 0 && wish.align != one.align)
    return state.refuse(wish, "align",
                        "found " + one.name + " aligned to " + size_text(one.align) + ", expected " +
                            size_text(wish.align) + "; release \"" + wish.name + "\" and apply");
  if (!is_place(wish, one.region, region ? region->numa_node : kNoNode))
    return state.refuse(wish, "region",
                        "found " + one.name + " of that name on " + one.region + ", expected " + wish.region +
                            "; choose another name, or write the region that it is on");
  state.claimed.insert(one.name);
  Step step;
  step.wish = wish.name;
  if (!one.is_enabled) {
    step.kind = Step::Kind::kEnableNamespace;
    step.target = one.name;
    step.why = "it is disabled";
    state.add(step);
    return;
  }
  const DaxDeviceFacts* device = find_named(state.machine.dax_devices, one.device);
  if (device) state.claimed.insert(device->name);
  if (!device || device->mode == DaxMode::kDevdax)
    return state.settle(wish,
                        one.name + " is there (" + size_text(one.bytes) + (device ? ", " + device->name : "") + ")");
  step.target = device->name;
  if (device->mode == DaxMode::kDisabled) {
    step.kind = Step::Kind::kEnableDevice;
    step.why = "it is disabled";
  } else {
    if (const std::string why = reason_against(*device, state.force); !why.empty())
      return state.refuse(wish, "name", why);
    step.kind = Step::Kind::kTakeFromKernel;
    step.kernel_use = use_of(*device);
    step.why = "it is memory of the kernel, and --force was given";
    step.loses_content = true;
  }
  state.add(step);
}

}  // namespace

void plan_namespace(PlanState& state, const Wish& wanted) {
  Wish wish = wanted;
  if (wish.region.starts_with(kCxlPrefix)) {
    const auto place = state.cxl_places.find(wish.region);
    if (place == state.cxl_places.end()) return;  // the region's own problem was reported
    wish.region = place->second;
  }
  for (const Namespace& one : state.machine.namespaces)
    if (one.label == wish.name) return check_namespace(state, wish, one);

  // Takes the first region that has room; else reports the obstacle of each region that the table allows.
  std::string against, key = "region";
  for (NvdimmRegion& region : state.machine.nvdimm_regions) {
    if (!is_place(wish, region.name, region.numa_node)) continue;
    const auto no = [&](const char* about, const std::string& text) {
      against += (against.empty() ? "" : "; ") + region.name + " " + text;
      key = about;
    };
    if (const std::string why = unfit(region, state.force); !why.empty()) {
      no("region", why);
      continue;
    }
    const uint64_t align = std::max(region.align, wish.align);
    const uint64_t free_bytes = region.has_labels ? region.free_extent_bytes : region.bytes;
    const uint64_t bytes = wish.bytes != 0 ? wish.bytes : down_to(free_bytes, align);
    if (align != 0 && bytes % align != 0) {
      no("size",
         "gives multiples of " + size_text(align) + " only, such as " + size_text(down_to(bytes, align) + align));
      continue;
    }
    if (bytes > free_bytes || bytes < kNamespaceBytesMin) {
      no("size", "has " + size_text(free_bytes) + " free in one piece (" + size_text(region.free_bytes) + " in all)");
      continue;
    }
    Step step;
    step.wish = wish.name;
    step.target = region.name;
    if (!region.has_labels) {
      step.kind = Step::Kind::kMakeLabels;
      step.why = region.is_blank ? "without labels a region is one namespace without a name"
                                 : "without labels a region is one namespace without a name, and --force was given";
      step.loses_content = !region.is_blank;
      state.add(step);
      region.has_labels = true;
      region.free_bytes = region.free_extent_bytes = region.bytes;
      // The kernel shows a whole region without labels as a namespace. No program made it.
      std::erase_if(state.machine.namespaces, [&](const Namespace& one) { return one.region == region.name; });
    }
    step.kind = Step::Kind::kMakeNamespace;
    step.why = "no namespace has that name";
    step.loses_content = false;
    step.bytes = bytes;
    step.align = wish.align;
    state.add(step);
    region.free_bytes -= bytes;
    region.free_extent_bytes -= bytes;
    return;
  }
  const std::string expected = wish.bytes ? size_text(wish.bytes) : "at least " + size_text(kNamespaceBytesMin);
  if (against.empty())
    return state.refuse(wish, "region",
                        "found no region of persistent memory there, expected " +
                            (wish.region.empty() ? std::string("one") : wish.region) +
                            "; marud-provision list shows what there is");
  state.refuse(wish, key.c_str(), "found that " + against + ", expected " + expected);
}

}  // namespace maru::daemon::provision
