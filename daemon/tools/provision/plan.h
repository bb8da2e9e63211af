// From facts and wishes to steps: what has to be done so that the machine has what the configuration says, in order, each step
// with its reason; or what stands in the way. Nothing is looked at or changed here, so machines of every kind can be tried.
//
// A namespace is known again by its label, a CXL region by its memory. A DAX device of a dynamic region has neither; the record
// of what apply made (record.h) says which one is whose, and a device that fits and belongs to nobody is taken as it is.
#pragma once

#include "daemon/config/config.h"
#include "daemon/tools/provision/machine.h"
#include "daemon/tools/provision/wish.h"

#include <string>
#include <vector>

namespace maru::daemon::provision {

// What the kernel did with the memory of a device before it was taken from it.
enum class KernelUse : uint8_t { kMovable, kUnmovable, kOffline };

struct Step {
  enum class Kind : uint8_t {
    kMakeCxlRegion,    // target: the window; memories, is_divided
    kRemoveCxlRegion,  // target: the region
    kMakeLabels,       // target: an NVDIMM region
    kMakeNamespace,    // target: an NVDIMM region, or "cxl:NAME": the region that the table NAME made; bytes, align
    kRemoveNamespace,  // target: the namespace, whose region is `region`; bytes, align: what it has
    kEnableNamespace,  // target: the namespace
    kMakeDevice,       // target: a DAX region, or "cxl:NAME" as above; bytes, align
    kResizeDevice,     // target: the device; bytes, before
    kRemoveDevice,     // target: the device, whose region is `region`; bytes, align, start: what it has
    kTakeFromKernel,   // target: the device; system-ram -> devdax
    kGiveToKernel,     // target: the device, or "" for the one that the same table made; devdax -> system-ram
    kEnableDevice,     // target: the device; disabled -> devdax
  };
  Kind kind;
  std::string wish;  // the table that wants it
  std::string target;
  std::string why;
  std::string region;  // see kRemoveDevice
  uint64_t bytes = 0, align = 0, before = 0, start = 0;
  std::vector<std::string> memories;
  bool is_persistent = true;   // kMakeCxlRegion
  bool is_divided = false;     // kMakeCxlRegion, volatile: other steps make its devices; otherwise it is one
  bool loses_content = false;  // cannot be undone completely
  // For putting back what was there:
  bool was_disabled = false;                   // kRemoveDevice, kResizeDevice, kGiveToKernel
  KernelUse kernel_use = KernelUse::kMovable;  // kTakeFromKernel
};

// What apply made, for release and for the next plan.
struct Made {
  std::string wish;
  WishKind kind = WishKind::kDevice;
  std::string name;    // of the device, namespace or CXL region
  uint64_t start = 0;  // kDevice: its physical address
  // Making it failed half-way, and it could not be removed: it may hold what its memory held before.
  bool is_unfinished = false;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<std::string> settled;  // of wishes that need nothing: "kv: namespace0.0 is there (64 GiB, dax0.0)"
  std::vector<ConfigProblem> problems;
};

// `force` lets steps take memory that the kernel uses, and end pools.
Plan make_plan(const Machine& machine, const std::vector<Wish>& wishes, const std::vector<Made>& made, bool force);

// Gives back what was made under that name.
Plan plan_release(const Machine& machine, const std::string& name, const std::vector<Made>& made, bool force);

// "make namespace \"kv\" on region0: 64 GiB, devdax, aligned to 2 MiB"
std::string step_text(const Step& step);
// The memory that this step made is cleared before anybody gets it.
bool clears(const Step& step);

}  // namespace maru::daemon::provision
