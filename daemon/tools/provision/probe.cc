// Reads the content and the users of DAX devices, and clears devices.
#include "daemon/memory/memory_trouble.h"
#include "daemon/tools/provision/inventory.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "maru/format/control_region.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

constexpr const char* kFolder = "/dev/";

std::string uuid_text(const uint8_t* uuid) {
  char text[37];
  char* at = text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    at += std::snprintf(at, 3, "%02x", uuid[i]);
  }
  return text;
}

// Reads as far as marud looks for a label. A device that cannot be read counts as not blank.
void look_at_content(DaxDeviceFacts& device) {
  device.is_blank = false;
  FileDescriptor fd(::open((kFolder + device.name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open() || device.bytes < device.align || device.align < sizeof(format::Header)) return;
  constexpr uint64_t kLabelBytes = 128u << 10;
  const uint64_t bytes = std::min(device.bytes, std::max(kLabelBytes, device.align)) / device.align * device.align;
  auto mapped = Mapping::map_shared(fd.get(), 0, bytes, PROT_READ);
  if (!mapped) return;
  FaultGuard guard;  // memory that went bad must not end this program
  if (!guard.begin(mapped->data(), mapped->size(), device.align)) return;
  auto header = std::make_unique<format::Header>();
  std::memcpy(header.get(), mapped->data(), sizeof(*header));
  const bool is_header = memory_trouble(guard).empty();
  const std::byte* first = mapped->data();
  const bool is_zero =
      std::all_of(first, first + std::min(bytes, kLabelBytes), [](std::byte byte) { return byte == std::byte{0}; });
  device.is_blank = is_zero && memory_trouble(guard).empty();
  if (is_header && header->magic == format::kMagic) device.pool = uuid_text(header->uuid);
}

// Collects the names of the /dev/dax* devices that a process has open or mapped.
void collect_open(const std::string& process, std::map<std::string, std::string>& holders) {
  std::string names;
  const std::string folder = "/proc/" + process;
  std::vector<std::string> found;
  if (DIR* open = ::opendir((folder + "/fd").c_str())) {
    while (const dirent* entry = ::readdir(open)) {
      char target[64];
      const ssize_t length = ::readlink((folder + "/fd/" + entry->d_name).c_str(), target, sizeof(target));
      if (length > 0) found.emplace_back(target, size_t(length));
    }
    ::closedir(open);
  }
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find("/dev/dax"); at != std::string::npos) found.push_back(line.substr(at));
  for (const std::string& path : found) {
    if (!path.starts_with("/dev/dax")) continue;
    std::string command;
    std::getline(std::ifstream(folder + "/comm"), command);
    holders.emplace(path.substr(std::strlen(kFolder)), command + " (process " + process + ")");
  }
}

}  // namespace

void probe_devices(std::vector<DaxDeviceFacts>& devices) {
  if (devices.empty()) return;
  std::map<std::string, std::string> holders;
  const std::string self = std::to_string(::getpid());
  if (DIR* processes = ::opendir("/proc")) {
    while (const dirent* entry = ::readdir(processes))
      if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && self != entry->d_name)
        collect_open(entry->d_name, holders);
    ::closedir(processes);
  }
  for (DaxDeviceFacts& device : devices) {
    if (const auto holder = holders.find(device.name); holder != holders.end()) device.holder = holder->second;
    if (device.mode == DaxMode::kDevdax) look_at_content(device);
  }
}

Result<FileDescriptor> lock_device(const std::string& name) {
  const std::string path = kFolder + name;
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open() && (errno == ENXIO || errno == ENODEV || errno == ENOENT)) return fd;
  if (!fd.is_open()) return failure(errno, "open " + path + " to lock it");
  struct flock range = {};  // every byte, with the lanes' bytes: clients outlive a marud
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  if (::fcntl(fd.get(), F_OFD_SETLK, &range) == 0) return fd;
  if (errno == EAGAIN || errno == EACCES)
    return failure(
        EBUSY,
        "lock " + path +
            ": found that a marud has it, or a client of one, expected nobody; drain the device there first (marudctl "
            "device drain), or stop it");
  return failure(errno, "lock " + path);
}

Result<void> clear_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align) {
  const std::string path = kFolder + name;
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return failure(errno, "open " + path + " to clear it");
  // Mappings of a device begin and end on its alignment; a device that was resized may end its old part elsewhere.
  const uint64_t begin = align ? from / align * align : from;
  auto mapped = Mapping::map_shared(fd.get(), begin, to - begin, PROT_READ | PROT_WRITE);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + path + " to clear it");
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), align ? align : 4096)) return failure(ENFILE, "guard " + path);
  constexpr unsigned kThreadsMax = 8;  // one does not fill the memory's bandwidth
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  auto* first = reinterpret_cast<std::byte*>(mapped->data()) + (from - begin);
  const uint64_t bytes = to - from, share = (bytes / threads + 4095) / 4096 * 4096;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    const uint64_t at = std::min(bytes, share * i), end = std::min(bytes, share * (i + 1));
    if (at < end) workers.emplace_back([=] { std::memset(first + at, 0, end - at); });
  }
  for (std::thread& worker : workers) worker.join();
  if (const std::string why = memory_trouble(guard, begin); !why.empty())
    return failure(EIO, "clear " + path + ": part of its memory cannot be written (" + why + ")");
  return {};
}

}  // namespace maru::daemon::provision
