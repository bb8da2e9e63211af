#include "daemon/tools/provision/cxl_sysfs.h"
#include "tests/unit/fake_devices.h"

#include <cerrno>

namespace maru::daemon::provision {
namespace {

cxl_region* make_region(cxl_decoder* window, bool is_volatile) {
  if (fake().fails()) return nullptr;
  auto& region = window->regions.emplace_back(cxl_region{"region" + std::to_string(window->regions.size()), window});
  region.is_volatile = is_volatile;
  return &region;
}

}  // namespace

// In place of cxl_sysfs.cc's.
bool can_make_volatile_region(const std::string&) { return true; }
Result<std::string> make_volatile_region(const std::string& window) {
  cxl_region* region = make_region(&fake().cxl.port.decoders.front(), true);
  if (!region) return failure(EIO, "make a region in " + window);
  return region->name;
}
Result<void> delete_region(const std::string&, const std::string& name) {
  if (fake().fails()) return failure(EIO, "delete " + name);
  fake().cxl.port.decoders.front().regions.remove_if([&](const cxl_region& one) { return one.name == name; });
  return {};
}

}  // namespace maru::daemon::provision

using maru::daemon::provision::fake;
using maru::daemon::provision::first_in;
using maru::daemon::provision::hide_dax_region;
using maru::daemon::provision::next_in;
using maru::daemon::provision::show_dax_region;

extern "C" {
int cxl_new(cxl_ctx** context) { return *context = reinterpret_cast<cxl_ctx*>(&fake()), 0; }
void cxl_unref(cxl_ctx*) {}
cxl_bus* cxl_bus_get_first(cxl_ctx*) { return &fake().cxl; }
cxl_bus* cxl_bus_get_next(cxl_bus*) { return nullptr; }
cxl_port* cxl_bus_get_port(cxl_bus* bus) { return &bus->port; }
cxl_decoder* cxl_decoder_get_first(cxl_port* port) { return first_in(port->decoders); }
cxl_decoder* cxl_decoder_get_next(cxl_decoder* decoder) { return next_in(decoder->port->decoders, decoder); }
const char* cxl_decoder_get_devname(cxl_decoder* decoder) { return decoder->name.c_str(); }
unsigned long long cxl_decoder_get_dpa_size(cxl_decoder* decoder) { return decoder->bytes; }
unsigned cxl_decoder_get_interleave_granularity(cxl_decoder*) { return 256; }
cxl_memdev* cxl_memdev_get_first(cxl_ctx*) { return first_in(fake().cxl_memories); }
cxl_memdev* cxl_memdev_get_next(cxl_memdev* memory) { return next_in(fake().cxl_memories, memory); }
const char* cxl_memdev_get_devname(cxl_memdev* memory) { return memory->name.c_str(); }
cxl_endpoint* cxl_memdev_get_endpoint(cxl_memdev* memory) { return &memory->endpoint; }
cxl_port* cxl_endpoint_get_port(cxl_endpoint* endpoint) { return &endpoint->port; }
cxl_region* cxl_region_get_first(cxl_decoder* window) { return first_in(window->regions); }
cxl_region* cxl_region_get_next(cxl_region* region) { return next_in(region->window->regions, region); }
const char* cxl_region_get_devname(cxl_region* region) { return region->name.c_str(); }
unsigned cxl_region_get_interleave_ways(cxl_region* region) { return region->ways; }
int cxl_region_is_enabled(cxl_region* region) { return region->is_enabled; }
int cxl_region_decode_is_committed(cxl_region* region) { return region->is_committed; }
cxl_decoder* cxl_region_get_target_decoder(cxl_region* region, int position) {
  return size_t(position) < region->targets.size() ? region->targets[size_t(position)] : nullptr;
}

cxl_region* cxl_decoder_create_pmem_region(cxl_decoder* window) {
  return maru::daemon::provision::make_region(window, false);
}
int cxl_decoder_set_mode(cxl_decoder* decoder, cxl_decoder_mode mode) {
  return fake().fails() ? -EIO : (decoder->mode = mode, 0);
}
int cxl_decoder_set_dpa_size(cxl_decoder* decoder, unsigned long long bytes) {
  return fake().fails() ? -EIO : (decoder->bytes = bytes, 0);
}
int cxl_region_set_interleave_ways(cxl_region* region, unsigned ways) {
  return fake().fails() ? -EIO : (region->ways = ways, region->targets.resize(ways), 0);
}
int cxl_region_set_interleave_granularity(cxl_region* region, unsigned bytes) {
  return fake().fails() ? -EIO : (region->granularity = bytes, 0);
}
int cxl_region_set_uuid(cxl_region*, unsigned char*) { return fake().fails() ? -EIO : 0; }
int cxl_region_set_size(cxl_region* region, unsigned long long bytes) {
  return fake().fails() ? -EIO : (region->bytes = bytes, 0);
}
int cxl_region_set_target(cxl_region* region, int position, cxl_decoder* decoder) {
  if (fake().fails()) return -EIO;
  if (decoder->bytes == 0) return -ENXIO;
  region->targets[size_t(position)] = decoder;
  return 0;
}
int cxl_region_clear_target(cxl_region* region, int position) {
  if (fake().fails()) return -EIO;
  if (region->is_committed) return -EBUSY;
  region->targets[size_t(position)] = nullptr;
  return 0;
}
int cxl_region_decode_commit(cxl_region* region) {
  if (fake().fails()) return -EIO;
  for (const cxl_decoder* target : region->targets)
    if (!target) return -ENXIO;
  region->is_committed = true;
  return 0;
}
int cxl_region_decode_reset(cxl_region* region) {
  if (fake().fails()) return -EIO;
  if (region->is_enabled) return -EBUSY;
  region->is_committed = false;
  return 0;
}
int cxl_region_enable(cxl_region* region) {
  if (fake().fails()) return -EIO;
  if (!region->is_committed) return -ENXIO;
  if (region->is_volatile) show_dax_region(nullptr, region, region->bytes, region->content);
  region->is_enabled = true;
  return 0;
}
int cxl_region_disable(cxl_region* region) {
  if (fake().fails()) return -EIO;
  if (region->is_volatile) region->content = hide_dax_region(nullptr, region);
  region->is_enabled = false;
  return 0;
}
int cxl_region_delete(cxl_region* region) {
  if (fake().fails()) return -EIO;
  if (region->is_committed) return -EBUSY;
  region->window->regions.remove_if([&](const cxl_region& one) { return &one == region; });
  return 0;
}
}
