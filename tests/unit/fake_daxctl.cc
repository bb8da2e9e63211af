#include "tests/unit/fake_devices.h"

#include "daemon/tools/provision/inventory.h"

#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

std::unique_ptr<FakeMachine> machine;

const char* text_of(daxctl_dev::Driver driver) {
  return driver == daxctl_dev::Driver::kDevdax ? "devdax" : driver == daxctl_dev::Driver::kKmem ? "system-ram" : "off";
}

}  // namespace

FakeMachine& fake() { return *machine; }
void renew_fake() { machine = std::make_unique<FakeMachine>(); }

bool FakeMachine::fails() {
  ++calls;
  const bool does = fails_at != 0 && (calls == fails_at || (fails_on && calls > fails_at));
  if (does) errno = EIO;
  return does;
}

std::string FakeMachine::text() const {
  std::string out;
  const auto number = [](uint64_t value) { return " " + std::to_string(value); };
  for (const auto& region : dax_regions)
    for (const auto& one : region.devices) {
      if (one.bytes == 0) continue;  // the place of the next one
      out += one.name + number(one.bytes) + number(one.align) + " " + text_of(one.driver);
      if (one.driver == daxctl_dev::Driver::kKmem) out += number(unsigned(one.use));
      out += " \"" + one.content + "\"\n";
    }
  for (const auto& region : nvdimms.regions) {
    out += region.name + (region.is_enabled ? " on\n" : " off\n");
    for (const auto& one : region.dimms)
      out += one.name + (one.has_labels ? " labels" : "") + (one.is_enabled ? " on\n" : " off\n");
    for (const auto& one : region.namespaces)
      if (one.bytes != 0)
        out += one.name + number(one.bytes) + " " + one.label + (one.is_active ? " on" : " off") +
               (one.has_notes ? " devdax" : " raw") + " \"" + (one.is_active ? "" : one.content) + "\"\n";
  }
  for (const auto& window : cxl.port.decoders)
    for (const auto& one : window.regions)
      out += one.name + number(one.ways) + number(one.bytes) + number(one.targets.size()) +
             (one.is_committed ? " in force" : "") + (one.is_enabled ? " on\n" : " off\n");
  for (const auto& memory : cxl_memories)
    for (const auto& one : memory.endpoint.port.decoders) out += memory.name + number(one.bytes) + "\n";
  return out;
}

void show_dax_region(ndctl_namespace* space, cxl_region* cxl, uint64_t bytes, const std::string& content) {
  const int id = int(fake().dax_regions.size()) + 4;
  const std::string path = "/sys/devices/platform/ACPI0017:00/root0/decoder0.0/region" + std::to_string(id);
  auto& region = fake().dax_regions.emplace_back(
      daxctl_region{id,
                    cxl ? path.substr(0, path.rfind('/') + 1) + cxl->name + "/dax_region" + std::to_string(id) : path,
                    bytes,
                    {},
                    space,
                    cxl});
  // Named as before, so that two looks at the machine can be compared.
  const std::string name = "dax" + (space ? space->name.substr(9) : "9.0");
  auto& device = region.devices.emplace_back(daxctl_dev{name, &region, bytes});
  device.own_bytes = bytes;
  device.content = content;
  const bool is_ram = cxl && fake().has_kmem;
  device.driver = is_ram ? daxctl_dev::Driver::kKmem : daxctl_dev::Driver::kDevdax;
  device.looks_left = is_ram ? fake().looks_until_online : 0;
}

std::string hide_dax_region(const ndctl_namespace* space, const cxl_region* cxl) {
  std::string content;
  fake().dax_regions.remove_if([&](const daxctl_region& one) {
    if ((!space || one.space != space) && (!cxl || one.cxl != cxl)) return false;
    if (!one.devices.empty()) content = one.devices.front().content;
    return true;
  });
  return content;
}

daxctl_dev* fake_device(const std::string& name) {
  for (auto& region : fake().dax_regions)
    for (auto& device : region.devices)
      if (device.name == name) return &device;
  return nullptr;
}

bool is_locked(const std::string& name) {
  const auto lock = fake().locks.find(name);
  if (lock == fake().locks.end()) return false;
  pollfd one = {lock->second.get(), POLLIN, 0};
  return ::poll(&one, 1, 0) == 0;
}

// In place of probe.cc's. The lock is one end of a pipe: the other one tells when it is closed.
Result<FileDescriptor> lock_device(const std::string& name) {
  const daxctl_dev* device = fake_device(name);
  if (!device || device->driver != daxctl_dev::Driver::kDevdax) return FileDescriptor();
  if (name == fake().marud_takes || is_locked(name)) return failure(EBUSY, "lock " + name);
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return failure(errno, "make a pipe");
  fake().locks[name] = FileDescriptor(pair[0]);
  return FileDescriptor(pair[1]);
}
Result<void> clear_device(const std::string& name, uint64_t from, uint64_t, uint64_t) {
  daxctl_dev* device = fake_device(name);
  if (!device || device->driver != daxctl_dev::Driver::kDevdax) return failure(ENXIO, "open " + name);
  if (!is_locked(name)) fake().unsafe += name + " is cleared without its lock\n";
  if (fake().fails()) return failure(EIO, "clear " + name);
  device->content = from == 0 ? "" : device->content.substr(0, device->content.find('|'));
  return {};
}

}  // namespace maru::daemon::provision

using maru::daemon::provision::fake;
using maru::daemon::provision::first_in;
using maru::daemon::provision::KernelUse;
using maru::daemon::provision::next_in;
using Driver = daxctl_dev::Driver;

namespace {

unsigned id_of(const daxctl_dev& device) { return unsigned(std::stoul(device.name.substr(device.name.find('.') + 1))); }

uint64_t bytes_of(const daxctl_region& region) {
  uint64_t used = 0;
  for (const auto& one : region.devices) used += one.bytes;
  return used;
}

int use(daxctl_memory* memory, KernelUse how) {
  if (fake().fails()) return -EIO;
  memory->device->use = how;
  if (how != KernelUse::kOffline) memory->device->content = "the kernel's";
  return 0;
}

int bind(daxctl_dev* device, Driver driver) {
  if (fake().fails()) return -EIO;
  if (device->driver != Driver::kNone || device->bytes == 0) return -EBUSY;
  device->driver = driver;
  device->use = KernelUse::kOffline;
  return 0;
}

}  // namespace

extern "C" {
int daxctl_new(daxctl_ctx** context) { return *context = reinterpret_cast<daxctl_ctx*>(&fake()), 0; }
void daxctl_unref(daxctl_ctx*) {}
daxctl_region* daxctl_region_get_first(daxctl_ctx*) { return first_in(fake().dax_regions); }
daxctl_region* daxctl_region_get_next(daxctl_region* region) { return next_in(fake().dax_regions, region); }
int daxctl_region_get_id(daxctl_region* region) { return region->id; }
const char* daxctl_region_get_path(daxctl_region* region) { return region->path.c_str(); }
daxctl_dev* daxctl_dev_get_first(daxctl_region* region) { return first_in(region->devices); }
daxctl_dev* daxctl_dev_get_next(daxctl_dev* device) { return next_in(device->region->devices, device); }
const char* daxctl_dev_get_devname(daxctl_dev* device) { return device->name.c_str(); }
unsigned long long daxctl_dev_get_size(daxctl_dev* device) { return device->bytes; }
unsigned long daxctl_dev_get_align(daxctl_dev* device) { return device->align; }
int daxctl_dev_is_enabled(daxctl_dev* device) { return device->driver != Driver::kNone; }
daxctl_memory* daxctl_dev_get_memory(daxctl_dev* device) {
  device->memory.device = device;
  return device->driver == Driver::kKmem ? &device->memory : nullptr;
}
// The new one has the lowest id that is free.
int daxctl_region_create_dev(daxctl_region* region) {
  if (fake().fails()) return -EIO;
  if (bytes_of(*region) == region->bytes) return -ENOSPC;
  unsigned id = 0;
  auto next = region->devices.begin();
  for (; next != region->devices.end() && id_of(*next) == id; ++next) ++id;
  region->devices.insert(next, {"dax" + std::to_string(region->id) + "." + std::to_string(id), region});
  return 0;
}
// The first one is always there.
int daxctl_region_destroy_dev(daxctl_region* region, daxctl_dev* device) {
  if (fake().fails()) return -EIO;
  if (device->bytes != 0 || device->driver != Driver::kNone || id_of(*device) == 0) return -EBUSY;
  region->devices.remove_if([&](const daxctl_dev& one) { return &one == device; });
  return 0;
}
int daxctl_dev_set_align(daxctl_dev* device, unsigned long align) {
  if (fake().fails()) return -EIO;
  if (device->bytes != 0) return -EBUSY;
  device->align = align;
  return 0;
}
int daxctl_dev_set_size(daxctl_dev* device, unsigned long long bytes) {
  if (fake().fails()) return -EIO;
  if (device->driver != Driver::kNone) return -EBUSY;
  if (bytes_of(*device->region) - device->bytes + bytes > device->region->bytes) return -ENOSPC;
  if (bytes > device->bytes) {
    for (auto& one : device->region->devices)
      if (&one != device) one.own_bytes = one.bytes;
    if (device->own_bytes == 0)
      device->content = "a former user's";
    else if (bytes > device->own_bytes)
      device->content += "|a former user's";
    device->own_bytes = std::max<uint64_t>(device->own_bytes, bytes);
  }
  if (bytes < device->bytes) device->content = device->content.substr(0, device->content.find('|'));
  device->bytes = bytes;
  return 0;
}
int daxctl_dev_enable_devdax(daxctl_dev* device) { return bind(device, Driver::kDevdax); }
int daxctl_dev_enable_ram(daxctl_dev* device) {
  const int wrong = bind(device, Driver::kKmem);
  if (wrong == 0 && fake().puts_online) device->use = KernelUse::kMovable, device->content = "the kernel's";
  return wrong;
}
int daxctl_dev_will_auto_online_memory(daxctl_dev*) { return fake().looks_until_online > 0; }
int daxctl_memory_num_sections(daxctl_memory*) { return 1; }
int daxctl_dev_disable(daxctl_dev* device) {
  if (fake().fails()) return -EIO;
  if (device->driver == Driver::kKmem && device->looks_left > 0)
    fake().unsafe += device->name + " leaves kmem while its memory comes online\n";
  if (device->driver == Driver::kKmem && device->use != KernelUse::kOffline) return -EBUSY;
  if (maru::daemon::provision::is_locked(device->name)) fake().unsafe += device->name + " is disabled under its lock\n";
  if (device->name == fake().marud_takes && device->driver == Driver::kDevdax)
    fake().unsafe += device->name + " is taken from a marud\n";
  device->driver = Driver::kNone;
  return 0;
}
int daxctl_memory_online(daxctl_memory* memory) { return use(memory, KernelUse::kMovable); }
int daxctl_memory_online_no_movable(daxctl_memory* memory) { return use(memory, KernelUse::kUnmovable); }
int daxctl_memory_offline(daxctl_memory* memory) { return use(memory, KernelUse::kOffline); }
int daxctl_memory_is_online(daxctl_memory* memory) {
  daxctl_dev& device = *memory->device;
  if (device.looks_left > 0 && --device.looks_left == 0)
    device.use = KernelUse::kMovable, device.content = "the kernel's";
  return device.use != KernelUse::kOffline;
}
int daxctl_memory_is_movable(daxctl_memory* memory) { return memory->device->use == KernelUse::kMovable; }
}
