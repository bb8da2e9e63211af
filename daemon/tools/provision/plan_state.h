// The state of the planner: the machine after the steps so far, the claims of tables, and the problems.
#pragma once

#include "daemon/tools/provision/plan.h"

#include <map>
#include <set>
#include <string>

namespace maru::daemon::provision {

struct PlanState {
  Machine machine;
  const std::vector<Made>& made;
  bool force;
  Plan& plan;
  std::set<std::string> claimed;  // devices and namespaces that a table has
  // Where "cxl:NAME" is: the region's name, or "cxl:NAME" itself while it is to be made.
  std::map<std::string, std::string> cxl_places;
  std::set<std::string> divided;  // "cxl:NAME" in which tables want devices

  void refuse(const Wish& wish, const char* key, const std::string& text) {
    plan.problems.push_back({wish.line_of(key), "provision \"" + wish.name + "\": " + key + ": " + text});
  }
  Step& add(Step step) { return plan.steps.emplace_back(std::move(step)); }
  void settle(const Wish& wish, const std::string& text) { plan.settled.push_back(wish.name + ": " + text); }
  // The first thing of this kind that was made for this table and is still there, as `is_there` says. The record does not know
  // of things that another program removed.
  template <typename IsThere>
  const Made* made_for(const std::string& wish, WishKind kind, IsThere is_there) const {
    for (const Made& one : made)
      if (one.wish == wish && one.kind == kind && is_there(one)) return &one;
    return nullptr;
  }
};

inline constexpr uint64_t kNamespaceBytesMin = 16u << 20;  // the kernel makes no smaller one

inline uint64_t down_to(uint64_t bytes, uint64_t align) { return align ? bytes / align * align : bytes; }

// Whether the place that a table names ("region0", "node:1", nothing) is this one.
bool is_place(const Wish& wish, const std::string& name, int numa_node);
// Why this device may not be touched, or nothing: it is open; unless forced, that it holds a pool or that the kernel uses it.
std::string reason_against(const DaxDeviceFacts& device, bool force);
// Of a device in mode system-ram.
KernelUse use_of(const DaxDeviceFacts& device);

void plan_cxl_region(PlanState& state, const Wish& wish);
// After all devices: makes one device of a volatile region in which no table wants devices.
void plan_whole_cxl_device(PlanState& state, const Wish& wish);
void plan_namespace(PlanState& state, const Wish& wish);
void plan_device(PlanState& state, const Wish& wish);

}  // namespace maru::daemon::provision
