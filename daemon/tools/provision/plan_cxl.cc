// CXL regions. A table finds its region again by the region's memory.
#include "daemon/base/size_text.h"
#include "daemon/tools/provision/plan_state.h"

#include <algorithm>

namespace maru::daemon::provision {
namespace {

constexpr uint64_t kCxlSizeAlign = 256u << 20;  // of windows and of regions in them
constexpr uint64_t kDaxAlign = 2u << 20;        // of devices in a volatile region

void make_region(PlanState& state, const Wish& wish, CxlWindow& window, const std::vector<std::string>& memories,
                 uint64_t bytes) {
  const std::string name = kCxlPrefix + wish.name;
  window.free_bytes -= bytes;
  Step step;
  step.kind = Step::Kind::kMakeCxlRegion;
  step.wish = wish.name;
  step.target = window.name;
  step.why = "no region has this memory";
  step.bytes = bytes;
  step.memories = memories;
  step.is_persistent = wish.is_persistent;
  step.is_divided = state.divided.contains(name);
  state.add(step);
  CxlRegion region;
  region.name = name;
  region.is_persistent = wish.is_persistent;
  region.memories = memories;
  region.bytes = bytes;
  state.cxl_places[name] = name;
  state.machine.cxl_regions.push_back(region);
  if (wish.is_persistent) {
    NvdimmRegion later;
    later.name = name;
    later.bytes = later.free_bytes = later.free_extent_bytes = bytes;
    later.is_enabled = later.has_labels = true;
    later.align = kNamespaceBytesMin;
    state.machine.nvdimm_regions.push_back(later);
  } else if (step.is_divided) {
    DaxRegion later;
    later.name = later.cxl_region = name;
    later.bytes = later.free_bytes = bytes;
    later.align = kDaxAlign;
    later.is_dynamic = later.is_cxl = true;
    state.machine.dax_regions.push_back(later);
  }
}

}  // namespace

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
  const auto is_there = [&](const Made& made) { return find_named(state.machine.cxl_regions, made.name) != nullptr; };
  if (memories.empty()) {
    if (const Made* made = state.made_for(wish.name, WishKind::kCxlRegion, is_there))
      memories = find_named(state.machine.cxl_regions, made->name)->memories;
    else
      for (const CxlMemory& memory : state.machine.cxl_memories)
        if (memory.is_enabled && bytes_of(memory) != 0 && !region_of(memory.name)) memories.push_back(memory.name);
  }
  if (memories.empty()) {
    // Nothing is free. An existing region may be the wanted region, made before the record was lost.
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
    if (!wish.is_persistent && !window.makes_volatile)
      return state.refuse(wish, "type",
                          "found Linux " + state.machine.kernel + ", which makes no volatile region in " + window.name +
                              " (no create_ram_region), expected 6.3 or newer; boot a newer one, or have the firmware "
                              "make the region");
    return make_region(state, wish, window, memories, bytes);
  }
  state.refuse(wish, "memory",
               "found no CXL window with " + size_text(bytes) +
                   " free that leads to it, expected one; the "
                   "firmware makes windows");
}

void plan_whole_cxl_device(PlanState& state, const Wish& wish) {
  const auto place = state.cxl_places.find(kCxlPrefix + wish.name);
  if (wish.is_persistent || place == state.cxl_places.end() || state.divided.contains(place->first)) return;
  for (const DaxDeviceFacts& device : state.machine.dax_devices) {
    const DaxRegion* region = find_named(state.machine.dax_regions, device.region);
    if (!region || region->cxl_region != place->second || region->bytes != device.bytes) continue;
    if (device.mode == DaxMode::kDevdax || !state.claimed.insert(device.name).second) return;
    Step step;
    step.wish = wish.name;
    step.target = device.name;
    if (device.mode == DaxMode::kDisabled) {
      step.kind = Step::Kind::kEnableDevice;
      step.why = "it is disabled";
    } else {
      if (const std::string why = reason_against(device, state.force); !why.empty())
        return state.refuse(wish, "name",
                            why + "; or a table of kind \"device\" and mode \"system-ram\" in \"" + place->first +
                                "\" leaves it there");
      step.kind = Step::Kind::kTakeFromKernel;
      step.kernel_use = use_of(device);
      step.why = device.is_online ? "it is memory of the kernel, and --force was given"
                                  : "it is in mode system-ram, with nothing online";
      step.loses_content = true;
    }
    state.add(step);
    return;
  }
}

}  // namespace maru::daemon::provision
