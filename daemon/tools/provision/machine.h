// The memory of a machine, as the kernel describes it: the facts behind a plan. Plain data, so that tests can describe any
// machine; inventory.cc reads a real machine. Lists are in the kernel's order.
#pragma once

#include "daemon/memory/dax_sysfs.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::daemon::provision {

inline constexpr int kNoNode = -1;  // of the memory, as it is or would be in mode system-ram

// A CXL memory device ("mem0"). Its memory is reachable only through a CXL region.
struct CxlMemory {
  std::string name;
  std::string host;  // the PCI device
  uint64_t serial = 0;
  uint64_t persistent_bytes = 0, volatile_bytes = 0;
  int numa_node = kNoNode;
  bool is_enabled = false;
  std::string health;  // "ok", "unknown", or the fault
};

// A window of physical addresses that the firmware gave to CXL ("decoder0.0"), where regions are made.
struct CxlWindow {
  std::string name;
  uint64_t free_bytes = 0;  // in one piece
  bool takes_persistent = false, takes_volatile = false;
  std::vector<std::string> memories;  // that it leads to
  bool makes_volatile = true;         // the kernel can, from Linux 6.3 on
};

struct CxlRegion {
  std::string name;  // "region0"; a persistent one appears as the NVDIMM region of the same name
  std::string window;
  bool is_persistent = false, is_enabled = false;
  uint64_t bytes = 0;
  std::vector<std::string> memories;
};

// Persistent memory in one piece ("region0"), divided into namespaces by labels on its modules.
struct NvdimmRegion {
  std::string name;
  std::string provider;  // "ACPI.NFIT", "CXL"
  uint64_t bytes = 0, free_bytes = 0;
  uint64_t free_extent_bytes = 0;  // the largest piece
  uint64_t align = 0;              // of namespaces' sizes
  int numa_node = kNoNode;
  bool is_enabled = false, is_read_only = false;
  bool has_labels = false;       // otherwise the whole region is one namespace
  bool can_have_labels = false;  // its modules have room for them
  bool is_blank = false;         // without labels: nothing is stored there
  std::string health;
};

struct Namespace {
  std::string name;   // "namespace0.0"
  std::string label;  // the name that it was given; survives a restart of the machine
  std::string region, uuid;
  std::string mode;  // "devdax", "fsdax", "sector", "raw"
  uint64_t bytes = 0, align = 0;
  bool is_enabled = false;
  std::string device;        // DAX device, "dax0.0"
  std::string block_device;  // "pmem0"
};

// Memory that DAX devices are made of ("dax0" for the devices dax0.0, dax0.1 ...).
struct DaxRegion {
  std::string name;
  uint64_t bytes = 0, free_bytes = 0, align = 0;
  int numa_node = kNoNode;
  bool is_dynamic = false;  // devices can be made, resized and given back
  bool is_cxl = false;
  std::string cxl_region;  // volatile CXL memory: the region that it is ("region0")
};

struct DaxDeviceFacts {
  std::string name, region;
  uint64_t start = 0;  // physical address; with `bytes`, it tells a device from a later device of its name
  uint64_t bytes = 0, align = 0;
  int numa_node = kNoNode;
  DaxMode mode = DaxMode::kDisabled;
  bool is_online = false;   // system-ram: the kernel uses some of it
  bool is_movable = false;  // system-ram: only for pages that the kernel can move elsewhere
  std::string holder;       // the process that has it open: "marud (process 812)"; empty: none
  std::string pool;         // uuid of the pool that lies there
  bool is_blank = true;     // devdax: its beginning could be read and is zeros; unknown in other modes
};

struct Machine {
  std::string kernel;  // its release
  std::vector<CxlMemory> cxl_memories;
  std::vector<CxlWindow> cxl_windows;
  std::vector<CxlRegion> cxl_regions;
  std::vector<NvdimmRegion> nvdimm_regions;
  std::vector<Namespace> namespaces;
  std::vector<DaxRegion> dax_regions;
  std::vector<DaxDeviceFacts> dax_devices;
};

// The element of that name, or null.
template <typename T>
auto* find_named(std::vector<T>& all, const std::string& name) {
  for (T& one : all)
    if (one.name == name) return &one;
  return static_cast<T*>(nullptr);
}
template <typename T>
const T* find_named(const std::vector<T>& all, const std::string& name) {
  for (const T& one : all)
    if (one.name == name) return &one;
  return nullptr;
}

}  // namespace maru::daemon::provision
