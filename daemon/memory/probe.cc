#include "daemon/memory/probe.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

// Maps whole units of the device around [offset, offset + bytes), under a guard, and has `look` look at these bytes as far as
// the device reaches. Returns the bad memory that the look met, with offsets from the start of the device.
template <typename Look>
Result<std::vector<BadMemory>> look_at(const Device& device, uint64_t offset, uint64_t bytes, Look&& look) {
  const uint64_t alignment = device.map_alignment();
  const uint64_t start = offset / alignment * alignment;
  const uint64_t end = std::min((offset + bytes + alignment - 1) / alignment * alignment, device.bytes());
  if (offset >= end) return failure(EINVAL, "read beyond the end of " + device.name());
  auto mapped = Mapping::map_shared(device.fd(), off_t(start), end - start, PROT_READ);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + device.name());
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), alignment)) return failure(ENFILE, "guard " + device.name());
  look(std::span<const std::byte>(mapped->data() + (offset - start), std::min(offset + bytes, end) - offset));
  if (guard.has_fired()) return failure(EIO, "read " + device.name() + ", which has lost its memory there");
  std::vector<BadMemory> bad = guard.bad_memory();
  for (BadMemory& one : bad) one.offset += start;
  return bad;
}

}  // namespace

Result<std::vector<BadMemory>> probe_memory(const Device& device, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kLine = 64;
  return look_at(device, offset, bytes, [](std::span<const std::byte> memory) {
    const auto* lines = reinterpret_cast<const volatile unsigned char*>(memory.data());
    for (uint64_t at = 0; at < memory.size(); at += kLine) (void)lines[at];
  });
}

Result<void> read_memory(const Device& device, uint64_t offset, uint64_t bytes,
                         const std::function<void(std::span<const AtomicU64>)>& read) {
  const auto bad = look_at(device, offset, (bytes + 7) / 8 * 8, [&](std::span<const std::byte> memory) {
    read({reinterpret_cast<const AtomicU64*>(memory.data()), memory.size() / 8});
  });
  if (!bad) return tl::unexpected(bad.error());
  if (!bad->empty())
    return failure(EIO, "read " + device.name() + ": found bad memory at byte " + std::to_string(bad->front().offset));
  return {};
}

}  // namespace maru::daemon
