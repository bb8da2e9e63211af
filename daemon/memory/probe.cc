#include "daemon/memory/probe.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {

Result<std::vector<BadMemory>> probe_memory(const Device& device, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kLine = 64;
  const uint64_t alignment = device.map_alignment();
  const uint64_t start = offset / alignment * alignment;
  const uint64_t end = std::min((offset + bytes + alignment - 1) / alignment * alignment, device.bytes());
  if (offset >= end) return failure(EINVAL, "read beyond the end of " + device.name());
  auto mapped = Mapping::map_shared(device.fd(), off_t(start), end - start, PROT_READ);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + device.name());
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), alignment)) return failure(ENFILE, "guard " + device.name());
  const auto* lines = reinterpret_cast<const volatile unsigned char*>(mapped->data());
  for (uint64_t at = offset - start; at < std::min(offset + bytes, end) - start; at += kLine) (void)lines[at];
  if (guard.has_fired()) return failure(EIO, "read " + device.name() + ", which has lost its memory there");
  std::vector<BadMemory> bad = guard.bad_memory();
  for (BadMemory& one : bad) one.offset += start;
  return bad;
}

}  // namespace maru::daemon
