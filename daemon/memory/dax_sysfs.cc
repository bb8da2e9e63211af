#include "daemon/memory/dax_sysfs.h"

#include "daemon/base/size_text.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace maru::daemon {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::string text;
  if (!(stream >> text)) return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 0);
  return end != text.c_str() && *end == 0 ? std::optional(value) : std::nullopt;
}

// -1 where the kernel says so, or nothing.
int node_in(const fs::path& directory) {
  for (const char* attribute : {"target_node", "numa_node"}) {
    const auto value = number_in(directory / attribute);
    if (value && *value < 1024) return int(*value);
  }
  return -1;
}

DaxMode mode_of(const fs::path& directory) {
  std::error_code error;
  const std::string driver = fs::read_symlink(directory / "driver", error).filename();
  if (driver == "kmem") return DaxMode::kSystemRam;
  return driver.empty() ? DaxMode::kDisabled : DaxMode::kDevdax;
}

// Persistent memory hangs below a bus of the NVDIMM subsystem. Memory of CXL hangs below the device that represents CXL
// (ACPI0017) or below a device of the CXL bus. Memory that the firmware merely set aside hangs below "hmem".
void place(const fs::path& resolved, DaxDescription& description) {
  for (const fs::path& part : resolved) {
    const std::string name = part;
    description.is_persistent |= name.starts_with("ndbus");
    description.is_cxl |= name.starts_with("ACPI0017") || name.starts_with("cxl") || name.starts_with("nvdimm-bridge");
  }
}

Result<DaxDescription> read_attributes(const fs::path& directory, const DaxRules& rules) {
  std::error_code error;
  const fs::path resolved = fs::canonical(directory, error);
  if (error) return failure(error.value(), "inspect " + directory.string());
  DaxDescription description;
  description.name = resolved.filename();
  description.path = rules.dev + "/" + description.name;
  const auto bytes = number_in(resolved / "size");
  auto alignment = number_in(resolved / "align");
  if (!alignment) alignment = number_in(resolved / "device/align");  // kernels before 5.10
  if (!bytes || !alignment || !std::has_single_bit(*alignment))
    return failure(EIO, "read size and alignment in " + resolved.string());
  description.bytes = *bytes;
  description.alignment = *alignment;
  description.node = node_in(resolved);
  description.mode = mode_of(resolved);
  place(resolved, description);
  return description;
}

}  // namespace

const char* dax_mode_text(DaxMode mode) {
  switch (mode) {
    case DaxMode::kDevdax: return "devdax";
    case DaxMode::kSystemRam: return "system-ram";
    case DaxMode::kDisabled: break;
  }
  return "disabled";
}

std::string DaxDescription::text() const {
  return path + " (" + size_text(bytes) + ", alignment " + size_text(alignment) +
         (node < 0 ? "" : ", NUMA node " + std::to_string(node)) + ", " + dax_mode_text(mode) +
         (is_persistent ? ", persistent" : ", volatile") + (is_cxl ? ", CXL)" : ")");
}

std::vector<DaxDescription> list_dax_devices(const DaxRules& rules) {
  std::vector<DaxDescription> devices;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(rules.sysfs + "/bus/dax/devices", error))
    if (auto described = read_attributes(entry.path(), rules)) devices.push_back(std::move(*described));
  // dax2.0 before dax10.0: by length, then by letters.
  std::sort(devices.begin(), devices.end(), [](const DaxDescription& a, const DaxDescription& b) {
    return a.name.size() != b.name.size() ? a.name.size() < b.name.size() : a.name < b.name;
  });
  return devices;
}

Result<DaxDescription> describe_dax_device(const std::string& path, const DaxRules& rules) {
  const std::string quoted = "\"" + path + "\"";
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) return failure(errno, "inspect " + quoted);
    std::string there;
    for (const DaxDescription& device : list_dax_devices(rules)) there += (there.empty() ? "" : ", ") + device.text();
    return failure(ENOENT, "find " + quoted + ": found " + (there.empty() ? "no DAX device at all" : there) +
                               ", expected one of this name; a pool is found under any name with "
                               "device = \"uuid:...\"");
  }
  fs::path directory;
  if (rules.must_be_character_device) {
    if (!S_ISCHR(status.st_mode))
      return failure(ENODEV, "use " + quoted + " as a DAX device: found " +
                                 (S_ISREG(status.st_mode)   ? "a file, expected a character device; for a file say "
                                                              "backend = \"file\""
                                  : S_ISBLK(status.st_mode) ? "a block device, expected a character device; have the "
                                                              "namespace changed to the mode devdax"
                                                            : "neither a file nor a device, expected a character "
                                                              "device"));
    directory = rules.sysfs + "/dev/char/" + std::to_string(major(status.st_rdev)) + ":" +
                std::to_string(minor(status.st_rdev));
    std::error_code error;
    const fs::path subsystem = fs::read_symlink(directory / "subsystem", error).filename();
    if (error || subsystem != "dax")
      return failure(ENODEV, "use " + quoted + " as a DAX device: found a character device of another kind" +
                                 (subsystem.empty() ? "" : " (" + subsystem.string() + ")") +
                                 ", expected one such as /dev/dax0.0");
  } else {
    directory = fs::path(rules.sysfs + "/bus/dax/devices") / fs::path(path).filename();
  }
  auto described = read_attributes(directory, rules);
  if (!described) return described;
  described->path = path;
  return described;
}

}  // namespace maru::daemon
