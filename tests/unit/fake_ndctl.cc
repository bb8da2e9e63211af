#include "tests/unit/fake_devices.h"

#include "daemon/tools/provision/namespace_notes.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon::provision {
namespace {

ndctl_namespace* raw_namespace(const std::string& block_device) {
  for (auto& region : fake().nvdimms.regions)
    for (auto& one : region.namespaces)
      if (one.is_active && (one.is_raw || !one.has_notes) && "pmem" + one.name.substr(9) == block_device) return &one;
  return nullptr;
}

}  // namespace

// In place of namespace_notes.cc's.
int exchange_notes(const std::string& block_device, NamespaceNotes& ret_notes) {
  ndctl_namespace* one = raw_namespace(block_device);
  if (!one) return -ENOENT;
  ret_notes.assign(1, one->has_notes ? 'n' : '0');
  if (fake().fails()) return -EIO;
  one->has_notes = false;
  return 0;
}
int write_notes(const std::string& block_device, const NamespaceNotes& notes) {
  ndctl_namespace* one = raw_namespace(block_device);
  if (!one) return -ENOENT;
  if (fake().fails()) return -EIO;
  one->has_notes = notes[0] == 'n';
  return 0;
}

}  // namespace maru::daemon::provision

using maru::daemon::provision::fake;
using maru::daemon::provision::first_in;
using maru::daemon::provision::hide_dax_region;
using maru::daemon::provision::next_in;
using maru::daemon::provision::show_dax_region;

namespace {

void start(ndctl_namespace* one) {
  one->is_active = true;
  if (one->has_notes && !one->is_raw) show_dax_region(one, nullptr, one->bytes, one->content);
}

int stop(ndctl_namespace* one) {
  if (one->is_active && one->has_notes && !one->is_raw) one->content = hide_dax_region(one, nullptr);
  one->is_active = false;
  if (one->region->dax.space == one) one->region->dax.space = nullptr;
  return 0;
}

}  // namespace

extern "C" {
int ndctl_new(ndctl_ctx** context) { return *context = reinterpret_cast<ndctl_ctx*>(&fake()), 0; }
ndctl_ctx* ndctl_unref(ndctl_ctx*) { return nullptr; }
ndctl_bus* ndctl_bus_get_first(ndctl_ctx*) { return &fake().nvdimms; }
ndctl_bus* ndctl_bus_get_next(ndctl_bus*) { return nullptr; }
ndctl_region* ndctl_region_get_first(ndctl_bus* bus) { return first_in(bus->regions); }
ndctl_region* ndctl_region_get_next(ndctl_region* region) { return next_in(region->bus->regions, region); }
const char* ndctl_region_get_devname(ndctl_region* region) { return region->name.c_str(); }
ndctl_namespace* ndctl_namespace_get_first(ndctl_region* region) { return first_in(region->namespaces); }
ndctl_namespace* ndctl_namespace_get_next(ndctl_namespace* one) { return next_in(one->region->namespaces, one); }
const char* ndctl_namespace_get_devname(ndctl_namespace* one) { return one->name.c_str(); }
unsigned long long ndctl_namespace_get_size(ndctl_namespace* one) { return one->bytes; }
bool ndctl_namespace_is_active(ndctl_namespace* one) { return one->is_active; }
int ndctl_namespace_is_configuration_idle(ndctl_namespace* one) { return !one->is_active; }
ndctl_namespace* ndctl_region_get_namespace_seed(ndctl_region*) { return nullptr; }
ndctl_dax* ndctl_region_get_dax_seed(ndctl_region* region) { return &region->dax; }
ndctl_dimm* ndctl_region_get_first_dimm(ndctl_region* region) { return first_in(region->dimms); }
ndctl_dimm* ndctl_region_get_next_dimm(ndctl_region* region, ndctl_dimm* dimm) { return next_in(region->dimms, dimm); }
const char* ndctl_dimm_get_devname(ndctl_dimm* dimm) { return dimm->name.c_str(); }
int ndctl_dimm_is_active(ndctl_dimm* dimm) { return dimm->region->is_enabled; }
ndctl_namespace_mode ndctl_namespace_get_enforce_mode(ndctl_namespace* one) { return one->enforced; }
const char* ndctl_namespace_get_block_device(ndctl_namespace* one) {
  static std::string name;
  name = "pmem" + one->name.substr(9);
  return name.c_str();
}
ndctl_cmd* ndctl_dimm_read_label_index(ndctl_dimm* dimm) { return reinterpret_cast<ndctl_cmd*>(dimm); }
void ndctl_cmd_unref(ndctl_cmd*) {}

int ndctl_dimm_init_labels(ndctl_dimm* dimm, ndctl_namespace_version) {
  if (fake().fails()) return -EIO;
  dimm->has_labels = true;
  return 1;
}
int ndctl_dimm_zero_labels(ndctl_dimm* dimm) {
  if (fake().fails()) return -EIO;
  dimm->has_labels = false;
  return 0;
}
int ndctl_dimm_disable(ndctl_dimm* dimm) { return fake().fails() ? -EIO : (dimm->is_enabled = false, 0); }
int ndctl_dimm_enable(ndctl_dimm* dimm) { return fake().fails() ? -EIO : (dimm->is_enabled = true, 0); }
int ndctl_region_enable(ndctl_region* region) {
  if (fake().fails()) return -EIO;
  if (region->is_enabled) return 0;
  const auto works = [](const ndctl_dimm& dimm) { return dimm.is_enabled; };
  if (!std::all_of(region->dimms.begin(), region->dimms.end(), works)) return -ENXIO;
  region->is_enabled = true;
  region->namespaces.clear();
  const bool has_labels = region->dimms.front().has_labels;
  auto& one = region->namespaces.emplace_back(ndctl_namespace{"namespace0.0", region, has_labels ? 0 : region->bytes});
  if (!has_labels) start(&one);
  return 0;
}
int ndctl_region_disable_invalidate(ndctl_region* region) {
  if (fake().fails()) return -EIO;
  region->is_enabled = false;
  region->namespaces.clear();
  return 0;
}

int ndctl_namespace_enable(ndctl_namespace* one) {
  if (fake().fails()) return -EIO;
  if (!one->is_active) start(one);
  return 0;
}
int ndctl_namespace_disable_safe(ndctl_namespace* one) { return fake().fails() ? -EIO : stop(one); }
int ndctl_namespace_disable_invalidate(ndctl_namespace* one) {
  one->is_active = false;  // it was raw
  return 0;
}
int ndctl_namespace_set_raw_mode(ndctl_namespace* one, int is_raw) { return one->is_raw = is_raw != 0, 0; }
int ndctl_namespace_set_enforce_mode(ndctl_namespace* one, ndctl_namespace_mode mode) {
  return one->enforced = mode, 0;
}
int ndctl_namespace_delete(ndctl_namespace* one) {
  if (fake().fails()) return -EIO;
  if (one->is_active || one->region->dax.space == one) return -EBUSY;
  one->bytes = 0;
  one->label.clear();
  return 0;
}
int ndctl_namespace_set_uuid(ndctl_namespace* one, unsigned char*) {
  return fake().fails() ? -EIO : (one->has_uuid = true, 0);
}
int ndctl_namespace_set_alt_name(ndctl_namespace* one, const char* name) {
  return fake().fails() ? -EIO : (one->label = name, 0);
}
int ndctl_namespace_set_size(ndctl_namespace* one, unsigned long long bytes) {
  if (fake().fails()) return -EIO;
  one->bytes = bytes;
  one->content = "a former user's";
  const auto is_empty = [](const ndctl_namespace& other) { return other.bytes == 0; };
  auto& all = one->region->namespaces;
  if (std::none_of(all.begin(), all.end(), is_empty))
    all.push_back({"namespace0." + std::to_string(all.size()), one->region});
  return 0;
}
int ndctl_dax_set_uuid(ndctl_dax*, unsigned char*) { return fake().fails() ? -EIO : 0; }
int ndctl_dax_set_location(ndctl_dax*, ndctl_pfn_loc) { return fake().fails() ? -EIO : 0; }
int ndctl_dax_set_align(ndctl_dax* dax, unsigned long align) { return fake().fails() ? -EIO : (dax->align = align, 0); }
int ndctl_dax_set_namespace(ndctl_dax* dax, ndctl_namespace* one) {
  return fake().fails() ? -EIO : (dax->space = one, 0);
}
int ndctl_dax_enable(ndctl_dax* dax) {
  if (fake().fails()) return -EIO;
  if (!dax->space || dax->space->bytes == 0) return -ENXIO;
  dax->space->has_notes = true;
  start(dax->space);
  return 0;
}
daxctl_region* ndctl_dax_get_daxctl_region(ndctl_dax* dax) {
  for (auto& region : fake().dax_regions)
    if (region.space == dax->space) return &region;
  return nullptr;
}
}
