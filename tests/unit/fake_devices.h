// A machine behind libdaxctl, libndctl and libcxl: their functions, as far as marud-provision calls them, on data. Each call
// that changes something is counted, and can be made to fail; the kernel's rules about the order of changes hold here, too.
#pragma once

#include "daemon/tools/provision/plan.h"
#include "libmaru/base/file_descriptor.h"

#include <cstdint>
#include <cxl/libcxl.h>
#include <daxctl/libdaxctl.h>
#include <list>
#include <map>
#include <ndctl/libndctl.h>
#include <string>
#include <vector>

struct daxctl_memory {
  daxctl_dev* device;
};
struct daxctl_dev {
  enum class Driver { kNone, kDevdax, kKmem };
  std::string name;
  daxctl_region* region;
  uint64_t bytes = 0, align = 2u << 20;
  Driver driver = Driver::kNone;
  maru::daemon::provision::KernelUse use = maru::daemon::provision::KernelUse::kOffline;
  std::string content = "";  // "": zeros
  int looks_left = 0;        // until its memory is online
  uint64_t own_bytes = 0;    // what nobody else had since, though it may have been given back
  daxctl_memory memory = {};
};
struct daxctl_region {
  int id;
  std::string path;
  uint64_t bytes;
  std::list<daxctl_dev> devices = {};
  ndctl_namespace* space = nullptr;  // of that namespace
  cxl_region* cxl = nullptr;         // of that volatile region
};

struct ndctl_dimm {
  std::string name;
  ndctl_region* region;
  bool has_labels = false, is_enabled = true;
};
struct ndctl_dax {
  ndctl_namespace* space = nullptr;
  uint64_t align = 2u << 20;
};
struct ndctl_namespace {
  std::string name;
  ndctl_region* region;
  uint64_t bytes = 0;
  std::string label = "", content = "";
  bool has_uuid = false, is_active = false, has_notes = false, is_raw = false;
  ndctl_namespace_mode enforced = NDCTL_NS_MODE_UNKNOWN;
};
struct ndctl_region {
  std::string name;
  ndctl_bus* bus;
  uint64_t bytes;
  bool is_enabled = true;
  std::list<ndctl_dimm> dimms = {};
  std::list<ndctl_namespace> namespaces = {};
  ndctl_dax dax = {};
};
struct ndctl_bus {
  std::list<ndctl_region> regions = {};
};

struct cxl_region {
  std::string name;
  cxl_decoder* window;
  bool is_volatile = false;
  unsigned ways = 0, granularity = 0;
  uint64_t bytes = 0;
  std::vector<cxl_decoder*> targets = {};
  bool is_committed = false, is_enabled = false;
  std::string content = "a former user's";
};
struct cxl_decoder {
  std::string name;
  cxl_port* port;
  cxl_decoder_mode mode = CXL_DECODER_MODE_NONE;
  uint64_t bytes = 0;
  std::list<cxl_region> regions = {};  // of a window
};
struct cxl_port {
  std::list<cxl_decoder> decoders = {};
};
struct cxl_bus {
  cxl_port port = {};
};
struct cxl_endpoint {
  cxl_port port = {};
};
struct cxl_memdev {
  std::string name;
  cxl_endpoint endpoint = {};
};

namespace maru::daemon::provision {

struct FakeMachine {
  std::list<daxctl_region> dax_regions;
  ndctl_bus nvdimms;
  cxl_bus cxl;
  std::list<cxl_memdev> cxl_memories;
  bool has_kmem = false;  // loaded: it takes the device of a new volatile region

  int looks_until_online = 0;  // of its memory, which the kernel puts online by itself; 0: the memory stays offline

  bool puts_online = false;                     // the kernel, as soon as it has memory
  std::map<std::string, FileDescriptor> locks;  // by device: the other end of the lock that was taken last
  std::string marud_takes;                      // the device that a marud has from its next lock on
  std::string unsafe;                           // what was done without the lock, or under it, that it must not be

  int calls = 0, fails_at = 0;  // the how-manieth change fails; 0: none
  bool fails_on = false;        // and all after it

  // Whether this change fails.
  bool fails();
  // All that an administrator can see, for comparison.
  std::string text() const;
};

// The one that the libraries' functions are about.
FakeMachine& fake();
void renew_fake();

// The DAX region of a namespace or of a volatile region, which appears with it and goes with it.
void show_dax_region(ndctl_namespace* space, cxl_region* cxl, uint64_t bytes, const std::string& content);
std::string hide_dax_region(const ndctl_namespace* space, const cxl_region* cxl);

// Whether somebody holds the lock of a device.
bool is_locked(const std::string& name);

daxctl_dev* fake_device(const std::string& name);

// The libraries list by "first" and "next".
template <typename T>
T* next_in(std::list<T>& all, const T* one) {
  for (auto at = all.begin(); at != all.end(); ++at)
    if (&*at == one) return ++at == all.end() ? nullptr : &*at;
  return nullptr;
}
template <typename T>
T* first_in(std::list<T>& all) {
  return all.empty() ? nullptr : &all.front();
}

}  // namespace maru::daemon::provision
