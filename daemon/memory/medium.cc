#include "daemon/memory/medium.h"

#include "daemon/memory/dax_device.h"
#include "daemon/memory/split_device.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace maru::daemon {

const char* medium_of(const Device& device) {
  if (device.kind() == "dax") return "devdax";
  struct statfs file_system = {};
  const bool is_known = ::fstatfs(device.fd(), &file_system) == 0;
  const bool is_huge = is_known && file_system.f_type == HUGETLBFS_MAGIC;
  if (device.kind() == "memory") return is_huge ? "hugetlb" : "memory";
  if (is_huge) return "hugetlbfs";
  if (is_known && file_system.f_type == TMPFS_MAGIC) return "tmpfs";
  struct statx attributes = {};
  const bool is_dax =
      ::statx(device.fd(), "", AT_EMPTY_PATH, 0, &attributes) == 0 && (attributes.stx_attributes & STATX_ATTR_DAX) != 0;
  return is_dax ? "fsdax" : "file";
}

bool is_persistent(const Device& device) {
  if (const auto* dax = dynamic_cast<const DaxDevice*>(&device)) return dax->description().is_persistent;
  if (const auto* split = dynamic_cast<const SplitDevice*>(&device))
    return is_persistent(split->control_device()) && is_persistent(split->pages_device());
  return device.kind() == "file" && device.map_sync() == kMapSyncGranted;
}

}  // namespace maru::daemon
