#include "daemon/memory/device.h"

#include "daemon/system/control_group.h"
#include "libmaru/base/map_sync.h"

#include <algorithm>
#include <cerrno>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; not yet in the C library's header
#endif

namespace maru::daemon {

Result<void> Device::map_control(uint64_t bytes) {
  if (bytes == 0 || bytes > control_room())
    return failure(EINVAL, "map " + std::to_string(bytes) + " bytes of " + name_ + ", which has " +
                               std::to_string(control_room()));
  const uint64_t alignment = control_alignment();
  const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  auto mapped = map_shared_synchronously(control_fd(), rounded, PROT_READ | PROT_WRITE, alignment);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + name_);
  if (advise_huge_) ::madvise(mapped->data(), rounded, MADV_HUGEPAGE);  // a wish; the kernel's settings decide
  ::madvise(mapped->data(), rounded, MADV_DONTFORK);
  guard_.end();
  control_ = std::move(*mapped);
  control_bytes_ = bytes;
  if (!guard_.begin(control_.data(), rounded, alignment)) {
    control_.reset();
    control_bytes_ = 0;
    return failure(ENFILE, "guard the control region of " + name_);
  }
  return {};
}

Result<void> Device::write_out_control(const void* begin, size_t bytes) const {
  if (kind() != "file") return {};  // DAX devices refuse: there is no cache of files before them
  const auto address = reinterpret_cast<uint64_t>(begin), os_page = uint64_t(::sysconf(_SC_PAGESIZE));
  const uint64_t before = address % os_page;
  if (::msync(reinterpret_cast<void*>(address - before), bytes + before, MS_SYNC) == 0) return {};
  return failure(errno, "write the control region of " + name_ + " to its disk");
}

uint64_t Device::collapse_control() {
  constexpr uint64_t kHugePage = 2ull << 20;
  const uint64_t bytes = control_bytes_ / kHugePage * kHugePage;
  struct sysinfo machine = {};
  if (!advise_huge_ || bytes == 0 || ::sysinfo(&machine) != 0) return 0;
  // Collapsed memory is taken, used or not: a control region that is laid out for more memory than the machine has stays
  // sparse.
  if (bytes > uint64_t(machine.freeram) * machine.mem_unit / 2) return 0;
  if (const auto limit = memory_limit(); limit && bytes > limit->room() / 2) return 0;
  const uint64_t os_page = 4096;
  for (uint64_t at = 0; at < bytes; at += kHugePage)
    if (::madvise(control_.data() + at, os_page, MADV_POPULATE_WRITE) != 0) return 0;  // a hole cannot be collapsed
  return ::madvise(control_.data(), bytes, MADV_COLLAPSE) == 0 ? bytes : 0;
}

}  // namespace maru::daemon
