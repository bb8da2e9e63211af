#include "daemon/dax/medium.h"

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

}  // namespace maru::daemon
