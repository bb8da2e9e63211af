// CXL regions and namespaces: what is found again by its memory and by its label.
#include "daemon/provision/plan_state.h"
#include "daemon/size_text.h"

#include <algorithm>

namespace maru::daemon::provision {
namespace {

constexpr uint64_t kNamespaceBytesMin = 16u << 20;  // the kernel makes no smaller one
constexpr uint64_t kCxlSizeAlign = 256u << 20;      // of windows and of what is made in them

uint64_t down_to(uint64_t bytes, uint64_t align) { return align ? bytes / align * align : bytes; }

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

// A namespace of that label is there: is it the one that is wanted?
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
  const DaxDevice* device = find_named(state.machine.dax_devices, one.device);
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
    if (place == state.cxl_places.end()) return;  // what is wrong with that region was said
    wish.region = place->second;
  }
  for (const Namespace& one : state.machine.namespaces)
    if (one.label == wish.name) return check_namespace(state, wish, one);

  // The first region that can give it; else what is wrong with each that was asked for.
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
      // What the kernel shows of a region without labels is no namespace that anybody made.
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

void plan_cxl_region(PlanState& state, const Wish& wish) {
  const auto bytes_of = [&](const CxlMemory& memory) {
    return wish.is_persistent ? memory.persistent_bytes : memory.volatile_bytes;
  };
  const auto region_of = [&](const std::string& memory) -> const CxlRegion* {
    for (const CxlRegion& region : state.machine.cxl_regions)
      if (region.is_persistent == wish.is_persistent &&
          std::find(region.memories.begin(), region.memories.end(), memory) != region.memories.end())
        return &region;
    return nullptr;
  };
  const auto settle_on = [&](const CxlRegion& region) { state.cxl_places[kCxlPrefix + wish.name] = region.name; };
  std::vector<std::string> memories = wish.memories;
  for (const std::string& name : memories) {
    const CxlMemory* memory = find_named(state.machine.cxl_memories, name);
    if (!memory)
      return state.refuse(wish, "memory",
                          "found no CXL memory device " + name +
                              ", expected one; marud-provision list shows "
                              "what there is");
    if (!memory->is_enabled || bytes_of(*memory) == 0)
      return state.refuse(wish, "memory",
                          "found " + name + (memory->is_enabled ? "" : " disabled") + " with " +
                              size_text(bytes_of(*memory)) + (wish.is_persistent ? " persistent" : " volatile") +
                              " memory, expected some");
  }
  // Without names: a region that this table made, or all memory that is in none.
  const Made* made = state.made_for(wish.name);
  if (memories.empty()) {
    const CxlRegion* region = made ? find_named(state.machine.cxl_regions, made->name) : nullptr;
    if (region)
      memories = region->memories;
    else
      for (const CxlMemory& memory : state.machine.cxl_memories)
        if (memory.is_enabled && bytes_of(memory) != 0 && !region_of(memory.name)) memories.push_back(memory.name);
  }
  if (memories.empty()) {
    // Nothing is free; what there is may be what was wanted, made before the record was lost.
    for (const CxlRegion& region : state.machine.cxl_regions)
      if (region.is_persistent == wish.is_persistent) {
        settle_on(region);
        return state.settle(wish,
                            "no CXL memory is free; " + region.name + " has it (" + size_text(region.bytes) + ")");
      }
    return state.refuse(
        wish, "memory",
        std::string("found no ") + (wish.is_persistent ? "persistent" : "volatile") + " CXL memory, expected some");
  }
  std::sort(memories.begin(), memories.end());
  if (const CxlRegion* region = region_of(memories.front())) {
    std::vector<std::string> theirs = region->memories;
    std::sort(theirs.begin(), theirs.end());
    if (theirs != memories || (wish.bytes != 0 && wish.bytes != region->bytes))
      return state.refuse(wish, "memory",
                          "found " + memories.front() + " in " + region->name + " (" + size_text(region->bytes) + ", " +
                              std::to_string(theirs.size()) +
                              " devices), expected it free; remove that region, or write what it has");
    settle_on(*region);
    return state.settle(wish, region->name + " is there (" + size_text(region->bytes) + ")");
  }
  uint64_t least = UINT64_MAX;
  for (const std::string& name : memories)
    least = std::min(least, bytes_of(*find_named(state.machine.cxl_memories, name)));
  const uint64_t ways = memories.size();
  if ((ways & (ways - 1)) != 0)
    return state.refuse(wish, "memory",
                        "found " + std::to_string(ways) +
                            " devices, expected 1, 2, 4, 8 or 16: a region "
                            "interleaves over a power of two; name those that go together");
  const uint64_t bytes = wish.bytes != 0 ? wish.bytes : down_to(least, kCxlSizeAlign) * ways;
  if (bytes == 0 || bytes % (kCxlSizeAlign * ways) != 0 || bytes / ways > least)
    return state.refuse(wish, "size",
                        "found " + size_text(bytes) + ", expected a multiple of " + size_text(kCxlSizeAlign * ways) +
                            " up to " + size_text(down_to(least, kCxlSizeAlign) * ways));
  for (CxlWindow& window : state.machine.cxl_windows) {
    const bool leads = std::all_of(memories.begin(), memories.end(), [&](const std::string& name) {
      return std::find(window.memories.begin(), window.memories.end(), name) != window.memories.end();
    });
    if (!leads || window.free_bytes < bytes || !(wish.is_persistent ? window.takes_persistent : window.takes_volatile))
      continue;
    window.free_bytes -= bytes;
    Step step;
    step.kind = Step::Kind::kMakeCxlRegion;
    step.wish = wish.name;
    step.target = window.name;
    step.why = "no region has this memory";
    step.bytes = bytes;
    step.memories = memories;
    step.is_persistent = wish.is_persistent;
    state.add(step);
    CxlRegion region;
    region.name = kCxlPrefix + wish.name;
    region.is_persistent = wish.is_persistent;
    region.memories = memories;
    region.bytes = bytes;
    settle_on(region);
    state.machine.cxl_regions.push_back(region);
    if (wish.is_persistent) {
      NvdimmRegion later;
      later.name = kCxlPrefix + wish.name;
      later.bytes = later.free_bytes = later.free_extent_bytes = bytes;
      later.is_enabled = later.has_labels = true;
      later.align = kNamespaceBytesMin;
      state.machine.nvdimm_regions.push_back(later);
    }
    return;
  }
  state.refuse(wish, "memory",
               "found no CXL window with " + size_text(bytes) +
                   " free that leads to it, expected one; the "
                   "firmware makes windows");
}

}  // namespace maru::daemon::provision
