#include "daemon/memory/memory_trouble.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {

std::string memory_trouble(const FaultGuard& guard, uint64_t offset) {
  if (guard.has_fired()) return "memory errors, or the device is gone";
  const auto bad = guard.bad_memory();
  if (bad.empty()) return {};
  // Threads meet them in any order.
  const auto first =
      std::min_element(bad.begin(), bad.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return "a memory error at byte " + std::to_string(offset + first->offset);
}

// With many bad places all of a range counts as lost, too.
int memory_trouble_code(const FaultGuard& guard) { return guard.bad_memory().empty() ? EIO : EHWPOISON; }

}  // namespace maru::daemon
