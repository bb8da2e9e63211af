#include "daemon/hosting/power_loss.h"

#include "daemon/base/log.h"
#include "daemon/hosting/state_file.h"
#include "libmaru/shm/region/control_region.h"

#include <cerrno>

namespace maru::daemon {
namespace {

struct Left {
  bool is_clean = false;
  bool is_this_boot = false;
};

Result<Left> read_host_record(Device &device, const DeviceLabel &label, uint64_t pool_bytes) {
  if (auto mapped = device.map_control(label.header.control_bytes); !mapped) return tl::unexpected(mapped.error());
  shm::ControlRegion region;
  if (const char *problem = shm::ControlRegion::attach(device.control(), pool_bytes, &region))
    return failure(EBADMSG, "use " + device.name() + ": found " + label.found + "; " + problem);
  uint64_t boot[2] = {};
  current_boot_words(boot);
  const format::HostRecord &host = region.host(0);
  const Left left = {host.clean.load_relaxed() == 1,  // no process writes: the device is locked
                     host.boot_id_lo.load_relaxed() == boot[0] && host.boot_id_hi.load_relaxed() == boot[1]};
  if (device.is_lost()) return failure(EIO, "read the control region on " + device.name() + " (a memory error)");
  return left;
}

}  // namespace

Result<Belief> judge_pool(const PoolSpec &spec, Device &device, const DeviceLabel &label, uint64_t pool_bytes,
                          bool outlives_power) {
  // Other hosts may be at work in a shared pool, even where the configuration takes it for a pool of this host. Then it is
  // refused later, and nothing is done to it.
  const bool is_shared = (label.header.incompat_flags & format::kIncompatShared) != 0;
  if (spec.pool.sharing.is_shared || is_shared) return Belief::kAdopt;
  const auto left = read_host_record(device, label, pool_bytes);
  if (!left) return tl::unexpected(left.error());
  if (left->is_this_boot || (left->is_clean && outlives_power)) return Belief::kAdopt;
  const bool has_checksums = (label.header.compat_flags & format::kCompatChecksums) != 0;
  const char *why = left->is_clean ? "volatile memory of another boot" : "cut off in another boot";
  if (spec.after_power_loss == AfterPowerLoss::kVerify && has_checksums) {
    log_warning("pool \"{}\" on {} is {}: every block is verified before it serves", spec.pool.name, device.name(),
                why);
    return Belief::kVerify;
  }
  log_warning(
      "pool \"{}\" on {} is {}, and {}: it is formatted anew, its "
      "blocks are lost",
      spec.pool.name, device.name(), why,
      has_checksums ? "after_power_loss = \"format\"" : "its blocks have no checksums to be verified by");
  return Belief::kFormat;
}

}  // namespace maru::daemon
