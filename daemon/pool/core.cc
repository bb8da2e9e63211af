#include "daemon/pool/core.h"

#include "libmaru/shm/region/flush.h"
#include "maru/format/wire.h"

#include <fmt/format.h>
#include <iterator>
#include <unistd.h>

namespace maru::daemon {
namespace {

const char* section_name(uint32_t section) {
  constexpr const char* kNames[] = {"hosts",   "regions",   "lane identities", "policy",   "tenants",  "blocks",
                                    "details", "key bytes", "key extents",     "registry", "overflow", "lanes"};
  static_assert(std::size(kNames) == format::kSectionCount);
  return section < std::size(kNames) ? kNames[section] : "header";
}

}  // namespace

std::string PoolCore::bad_control_memory() const {
  const std::vector<BadMemory> bad = device->bad_control_memory();
  if (bad.empty()) return {};
  uint32_t section = format::kSectionCount;  // the header
  for (uint32_t i = 0; i < format::kSectionCount; ++i)
    if (region.layout().sections[i].offset < bad.front().offset + bad.front().bytes) section = i;
  if (bad.front().offset < sizeof(format::Header)) section = format::kSectionCount;
  return fmt::format(
      "the machine reports bad memory at byte {} of {} ({} of it), in the part \"{}\" of the control region, which "
      "cannot be repaired in place",
      bad.front().offset, device->name(), bad.front().bytes, section_name(section));
}

void PoolCore::show_host(bool is_clean) {
  format::HostRecord& record = region.host(host);
  // For readers that only look; clients compare the epoch.
  if (shows_boot) {
    record.boot_id_lo.store_relaxed(boot_id[0]);
    record.boot_id_hi.store_relaxed(boot_id[1]);
  }
  record.serves.store_relaxed(epoch << 16 | wire::kMinorVersion);
  record.process.store_relaxed(uint64_t(::getpid()));
  record.heartbeat_ms.store_relaxed(now_ms);
  record.clean.store_relaxed(is_clean ? 1 : 0);
  record.epoch.store_release(epoch);
  shm::flush(region, record);
}

Result<void> PoolCore::write_out_host() const {
  return device->write_out_control(&region.host(host), sizeof(format::HostRecord));
}

}  // namespace maru::daemon
