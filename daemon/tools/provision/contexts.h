// The libraries' contexts, owned. A context caches the machine's state, so each look and each change takes a fresh context.
#pragma once

#include <cxl/libcxl.h>
#include <daxctl/libdaxctl.h>
#include <memory>
#include <ndctl/libndctl.h>
#include <string>

namespace maru::daemon::provision {

struct ContextDeleter {
  void operator()(ndctl_ctx* context) const { ndctl_unref(context); }
  void operator()(daxctl_ctx* context) const { daxctl_unref(context); }
  void operator()(cxl_ctx* context) const { cxl_unref(context); }
};
using NdctlContext = std::unique_ptr<ndctl_ctx, ContextDeleter>;
using DaxctlContext = std::unique_ptr<daxctl_ctx, ContextDeleter>;
using CxlContext = std::unique_ptr<cxl_ctx, ContextDeleter>;

// Null when the library cannot start, for want of memory.
inline NdctlContext open_ndctl() {
  ndctl_ctx* context = nullptr;
  return ndctl_new(&context) == 0 ? NdctlContext(context) : nullptr;
}
inline DaxctlContext open_daxctl() {
  daxctl_ctx* context = nullptr;
  return daxctl_new(&context) == 0 ? DaxctlContext(context) : nullptr;
}
inline CxlContext open_cxl() {
  cxl_ctx* context = nullptr;
  return cxl_new(&context) == 0 ? CxlContext(context) : nullptr;
}

// The libraries return null for facts that the kernel does not tell.
inline std::string text_of(const char* text) { return text ? text : ""; }

template <typename Visit>
void for_each_nvdimm_region(ndctl_ctx* context, Visit visit) {
  ndctl_bus* bus;
  ndctl_bus_foreach(context, bus) {
    ndctl_region* region;
    ndctl_region_foreach(bus, region) visit(bus, region);
  }
}
template <typename Visit>
void for_each_dax_device(daxctl_ctx* context, Visit visit) {
  daxctl_region* region;
  daxctl_region_foreach(context, region) {
    daxctl_dev* device;
    daxctl_dev_foreach(region, device) visit(region, device);
  }
}
inline std::string dax_region_name(daxctl_region* region) {
  return "dax" + std::to_string(daxctl_region_get_id(region));
}
// The volatile CXL region that a DAX region is ("region0"), or nothing: ".../ACPI0017:00/root0/decoder0.0/region0/dax_region0".
// A persistent one has namespaces in between.
inline std::string cxl_region_of(daxctl_region* region) {
  const std::string path = text_of(daxctl_region_get_path(region));
  const size_t end = path.rfind("/dax_region");
  if (end == path.npos || path.find("/ACPI0017") == path.npos) return "";
  const size_t begin = path.rfind('/', end - 1) + 1;
  return path.substr(begin, end - begin);
}

}  // namespace maru::daemon::provision
