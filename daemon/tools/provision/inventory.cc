#include "daemon/tools/provision/inventory.h"

#include "daemon/tools/provision/contexts.h"
#include "daemon/tools/provision/cxl_sysfs.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <linux/ndctl.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

std::string uuid_text(const unsigned char* uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

// The libraries say ULLONG_MAX for a size that they cannot read.
uint64_t known(unsigned long long bytes) { return bytes == ~0ull ? 0 : uint64_t(bytes); }
uint64_t known_long(unsigned long bytes) { return bytes == ~0ul ? 0 : uint64_t(bytes); }

std::string health_of(ndctl_dimm* dimm) {
  std::string wrong;
  const auto add = [&](const char* text) { wrong += (wrong.empty() ? "" : ", ") + std::string(text); };
  if (ndctl_dimm_locked(dimm) == 1) add("locked");
  if (ndctl_dimm_failed_save(dimm) == 1) add("last save failed");
  if (ndctl_dimm_failed_arm(dimm) == 1) add("cannot save");
  if (ndctl_dimm_failed_restore(dimm) == 1) add("restore failed");
  if (ndctl_dimm_failed_map(dimm) == 1) add("not mapped");
  if (ndctl_dimm_failed_flush(dimm) == 1) add("last flush failed");
  bool is_known = false;
  if (ndctl_dimm_is_cmd_supported(dimm, ND_CMD_SMART)) {
    if (ndctl_cmd* command = ndctl_dimm_cmd_new_smart(dimm)) {
      if (ndctl_cmd_submit_xlat(command) >= 0 && (ndctl_cmd_smart_get_flags(command) & ND_SMART_HEALTH_VALID)) {
        is_known = true;
        const unsigned health = ndctl_cmd_smart_get_health(command);
        if (health & ND_SMART_FATAL_HEALTH)
          add("fatal");
        else if (health & ND_SMART_CRITICAL_HEALTH)
          add("critical");
        else if (health & ND_SMART_NON_CRITICAL_HEALTH)
          add("warning");
      }
      ndctl_cmd_unref(command);
    }
  }
  return !wrong.empty() ? wrong : is_known ? "ok" : "unknown";
}

std::string health_of(cxl_memdev* memory) {
  cxl_cmd* command = cxl_cmd_new_get_health_info(memory);
  if (!command) return "unknown";
  std::string health = "unknown";
  if (cxl_cmd_submit(command) == 0 && cxl_cmd_get_mbox_status(command) == 0) {
    health = cxl_cmd_health_info_get_hw_replacement_needed(command) == 1  ? "needs replacement"
             : cxl_cmd_health_info_get_media_not_ready(command) == 1      ? "not ready"
             : cxl_cmd_health_info_get_media_data_lost(command) == 1      ? "data lost"
             : cxl_cmd_health_info_get_maintenance_needed(command) == 1   ? "needs maintenance"
             : cxl_cmd_health_info_get_performance_degraded(command) == 1 ? "degraded"
             : cxl_cmd_health_info_get_media_normal(command) == 1         ? "ok"
                                                                          : "unknown";
  }
  cxl_cmd_unref(command);
  return health;
}

const char* mode_name(ndctl_namespace_mode mode) {
  switch (mode) {
    case NDCTL_NS_MODE_FSDAX: return "fsdax";
    case NDCTL_NS_MODE_SECTOR: return "sector";
    case NDCTL_NS_MODE_DEVDAX: return "devdax";
    case NDCTL_NS_MODE_RAW: return "raw";
    default: return "unknown";
  }
}

// A region without labels is one namespace: whether its beginning, where every file system and volume manager writes, is zeros.
bool begins_blank(ndctl_namespace* one) {
  const std::string path = "/dev/" + text_of(ndctl_namespace_get_block_device(one));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::vector<char> first(1u << 20);
  const ssize_t got = ::read(fd, first.data(), first.size());
  ::close(fd);
  return got > 0 && std::all_of(first.begin(), first.begin() + got, [](char byte) { return byte == 0; });
}

bool has_room_for_labels(ndctl_region* region) {
  unsigned modules = 0;
  ndctl_dimm* dimm;
  ndctl_dimm_foreach_in_region(region, dimm) {
    ++modules;
    for (const int command : {ND_CMD_GET_CONFIG_SIZE, ND_CMD_GET_CONFIG_DATA, ND_CMD_SET_CONFIG_DATA})
      if (!ndctl_dimm_is_cmd_supported(dimm, command)) return false;
  }
  return modules != 0 && modules == ndctl_region_get_mappings(region);
}

void read_namespaces(ndctl_region* region, NvdimmRegion& out, Machine& machine) {
  ndctl_namespace* one;
  ndctl_namespace_foreach(region, one) {
    Namespace found;
    found.bytes = known(ndctl_namespace_get_size(one));
    if (found.bytes == 0) continue;  // the place where the next one is made
    found.name = text_of(ndctl_namespace_get_devname(one));
    found.region = out.name;
    found.mode = mode_name(ndctl_namespace_get_mode(one));
    found.is_enabled = ndctl_namespace_is_active(one);
    if (out.has_labels) found.label = text_of(ndctl_namespace_get_alt_name(one));
    unsigned char uuid[16] = {};
    ndctl_namespace_get_uuid(one, uuid);
    found.uuid = uuid_text(uuid);
    if (ndctl_dax* dax = ndctl_namespace_get_dax(one)) {
      found.align = known_long(ndctl_dax_get_align(dax));
      if (daxctl_region* dax_region = ndctl_dax_get_daxctl_region(dax))
        if (daxctl_dev* device = daxctl_dev_get_first(dax_region))
          found.device = text_of(daxctl_dev_get_devname(device));
    } else {
      found.block_device = text_of(ndctl_namespace_get_block_device(one));
      if (!out.has_labels) out.is_blank = found.mode == "raw" && begins_blank(one);
    }
    machine.namespaces.push_back(found);
  }
}

void read_nvdimms(ndctl_ctx* context, Machine& machine) {
  for_each_nvdimm_region(context, [&](ndctl_bus* bus, ndctl_region* region) {
    if (ndctl_region_get_type(region) != ND_DEVICE_REGION_PMEM) return;
    NvdimmRegion out;
    out.name = text_of(ndctl_region_get_devname(region));
    out.provider = text_of(ndctl_bus_get_provider(bus));
    out.bytes = known(ndctl_region_get_size(region));
    out.free_bytes = known(ndctl_region_get_available_size(region));
    const unsigned long long extent = ndctl_region_get_max_available_extent(region);
    out.free_extent_bytes = extent == ~0ull ? out.free_bytes : extent;
    out.align = known_long(ndctl_region_get_align(region));
    out.numa_node = ndctl_region_get_target_node(region);
    if (out.numa_node < 0) out.numa_node = ndctl_region_get_numa_node(region);
    out.is_enabled = ndctl_region_is_enabled(region) == 1;
    out.is_read_only = ndctl_region_get_ro(region) == 1;
    out.has_labels = ndctl_region_get_nstype(region) == ND_DEVICE_NAMESPACE_PMEM;
    out.can_have_labels = out.has_labels || has_room_for_labels(region);
    ndctl_dimm* dimm;
    ndctl_dimm_foreach_in_region(region, dimm) {
      const std::string health = health_of(dimm);
      if (out.health.empty() || out.health == "ok" || (out.health == "unknown" && health != "ok")) out.health = health;
    }
    if (out.health.empty()) out.health = "unknown";
    read_namespaces(region, out, machine);
    machine.nvdimm_regions.push_back(out);
  });
}

// The kernel divides only regions that say how much is free.
bool is_dynamic(daxctl_region* region) {
  const std::string path = text_of(daxctl_region_get_path(region));
  return ::access((path + "/dax_region/available_size").c_str(), F_OK) == 0 ||
         ::access((path + "/available_size").c_str(), F_OK) == 0;
}

void read_dax(daxctl_ctx* context, Machine& machine) {
  daxctl_region* region;
  daxctl_region_foreach(context, region) {
    DaxRegion out;
    out.name = dax_region_name(region);
    out.bytes = known(daxctl_region_get_size(region));
    out.align = known_long(daxctl_region_get_align(region));
    out.is_dynamic = is_dynamic(region);
    if (out.is_dynamic) out.free_bytes = known(daxctl_region_get_available_size(region));
    out.is_cxl = text_of(daxctl_region_get_path(region)).find("ACPI0017") != std::string::npos;  // the CXL root device
    out.cxl_region = cxl_region_of(region);
    daxctl_dev* device;
    daxctl_dev_foreach(region, device) {
      if (out.numa_node < 0) out.numa_node = daxctl_dev_get_target_node(device);
      DaxDeviceFacts found;
      found.bytes = known(daxctl_dev_get_size(device));
      if (found.bytes == 0) continue;  // given back
      found.name = text_of(daxctl_dev_get_devname(device));
      found.region = out.name;
      found.start = known(daxctl_dev_get_resource(device));
      found.align = known_long(daxctl_dev_get_align(device));
      found.numa_node = daxctl_dev_get_target_node(device);
      if (daxctl_memory* memory = daxctl_dev_get_memory(device)) {
        found.mode = DaxMode::kSystemRam;
        found.is_online = daxctl_memory_is_online(memory) > 0;
        found.is_movable = found.is_online && daxctl_memory_is_movable(memory) == 1;
      } else if (daxctl_dev_is_enabled(device)) {
        found.mode = DaxMode::kDevdax;
      }
      machine.dax_devices.push_back(found);
    }
    machine.dax_regions.push_back(out);
  }
}

void read_window(cxl_decoder* window, Machine& machine) {
  CxlWindow out;
  out.name = text_of(cxl_decoder_get_devname(window));
  out.free_bytes = known(cxl_decoder_get_max_available_extent(window));
  out.takes_persistent = cxl_decoder_is_pmem_capable(window);
  out.takes_volatile = cxl_decoder_is_volatile_capable(window);
  out.makes_volatile = can_make_volatile_region(out.name);
  cxl_memdev* memory;
  cxl_memdev_foreach(cxl_decoder_get_ctx(window), memory) if (cxl_decoder_get_target_by_memdev(window, memory))
      out.memories.push_back(text_of(cxl_memdev_get_devname(memory)));
  cxl_region* region;
  cxl_region_foreach(window, region) {
    CxlRegion found;
    found.name = text_of(cxl_region_get_devname(region));
    found.window = out.name;
    found.bytes = known(cxl_region_get_size(region));
    found.is_enabled = cxl_region_is_enabled(region) == 1;
    cxl_memdev_mapping* mapping;
    cxl_mapping_foreach(region, mapping) {
      cxl_decoder* target = cxl_mapping_get_decoder(mapping);
      found.is_persistent |= cxl_decoder_get_mode(target) == CXL_DECODER_MODE_PMEM;
      if (cxl_memdev* behind = cxl_decoder_get_memdev(target))
        found.memories.push_back(text_of(cxl_memdev_get_devname(behind)));
    }
    machine.cxl_regions.push_back(found);
  }
  machine.cxl_windows.push_back(out);
}

std::string kernel_release() {
  utsname name = {};
  return ::uname(&name) == 0 ? name.release : "of an unknown version";
}

void read_cxl(cxl_ctx* context, Machine& machine) {
  cxl_memdev* memory;
  cxl_memdev_foreach(context, memory) {
    CxlMemory out;
    out.name = text_of(cxl_memdev_get_devname(memory));
    out.host = text_of(cxl_memdev_get_host(memory));
    out.serial = cxl_memdev_get_serial(memory);
    out.persistent_bytes = known(cxl_memdev_get_pmem_size(memory));
    out.volatile_bytes = known(cxl_memdev_get_ram_size(memory));
    out.numa_node = cxl_memdev_get_numa_node(memory);
    out.is_enabled = cxl_memdev_is_enabled(memory);
    out.health = health_of(memory);
    machine.cxl_memories.push_back(out);
  }
  cxl_bus* bus;
  cxl_bus_foreach(context, bus) {
    cxl_decoder* window;
    cxl_decoder_foreach(cxl_bus_get_port(bus), window) read_window(window, machine);
  }
}

}  // namespace

Result<Machine> read_machine() {
  Machine machine;
  machine.kernel = kernel_release();
  const NdctlContext nvdimms = open_ndctl();
  const DaxctlContext dax = open_daxctl();
  const CxlContext cxl = open_cxl();
  if (!nvdimms || !dax || !cxl) return failure(ENOMEM, "start libndctl, libdaxctl and libcxl");
  read_nvdimms(nvdimms.get(), machine);
  read_dax(dax.get(), machine);
  read_cxl(cxl.get(), machine);
  probe_devices(machine.dax_devices);
  return machine;
}

}  // namespace maru::daemon::provision
