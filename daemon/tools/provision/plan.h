// Makes a plan from facts and wishes: the steps, in order, each with its reason, that give the machine the memory that the
// configuration describes; or the obstacle. This code reads and changes no machine, so tests can try machines of every kind.
//
// A namespace is known again by its label, a CXL region by its memory. A DAX device of a dynamic region has neither. So the
// record of apply (record.h) says which table a device belongs to. A device that fits and belongs to no table is taken as it
// is.
#pragma once

#include "daemon/config/config.h"
#include "daemon/tools/provision/machine.h"
#include "daemon/tools/provision/wish.h"

#include <string>
#include <vector>

namespace maru::daemon::provision {

// The kernel's use of a device's memory before the plan takes it away.
enum class KernelUse : uint8_t { kMovable, kUnmovable, kOffline };

struct Step {
  enum class Kind : uint8_t {
    kMakeCxlRegion,    // target: the window; memories, is_divided
    kRemoveCxlRegion,  // target: the region
    kMakeLabels,       // target: an NVDIMM region
    kMakeNamespace,    // target: an NVDIMM region, or "cxl:NAME": the region that the table NAME made; bytes, align
    kRemoveNamespace,  // target: the namespace, whose region is `region`; its bytes, align
    kEnableNamespace,  // target: the namespace
    kMakeDevice,       // target: a DAX region, or "cxl:NAME" as above; bytes, align
    kResizeDevice,     // target: the device; bytes, before
    kRemoveDevice,     // target: the device, whose region is `region`; its bytes, align, start
    kTakeFromKernel,   // target: the device; system-ram -> devdax
    kGiveToKernel,     // target: the device, or "" for the device that the same table made; devdax -> system-ram
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
  // The earlier state, for undoing:
  bool was_disabled = false;                   // kRemoveDevice, kResizeDevice, kGiveToKernel
  KernelUse kernel_use = KernelUse::kMovable;  // kTakeFromKernel
};

// A thing that apply made, for release and for the next plan.
struct Made {
  std::string wish;
  WishKind kind = WishKind::kDevice;
  std::string name;    // of the device, namespace or CXL region
  uint64_t start = 0;  // kDevice: its physical address
  // Making it failed half-way, and it could not be removed: it may hold the earlier content of its memory.
  bool is_unfinished = false;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<std::string> settled;  // of wishes that need nothing: "kv: namespace0.0 is there (64 GiB, dax0.0)"
  std::vector<ConfigProblem> problems;
};

// `force` lets steps take memory that the kernel uses, and end pools.
Plan make_plan(const Machine& machine, const std::vector<Wish>& wishes, const std::vector<Made>& made, bool force);

// Plans the release of everything that was made under that name.
Plan plan_release(const Machine& machine, const std::string& name, const std::vector<Made>& made, bool force);

// "make namespace \"kv\" on region0: 64 GiB, devdax, aligned to 2 MiB"
std::string step_text(const Step& step);
// Whether the memory that this step makes is cleared before any process gets it.
bool clears(const Step& step);

}  // namespace maru::daemon::provision
