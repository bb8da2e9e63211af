// Whether a pool that lies there already can be believed. What one host stored and marud saw to an end is; so is what is of
// this boot, since memory and the kernel's cache of files are what every process saw. A pool that was cut off in another boot
// is whatever had reached its memory, or its file, by then: docs/format.md, "A pool that lost power".
#pragma once

#include "daemon/config/config.h"
#include "daemon/memory/device.h"
#include "daemon/memory/device_content.h"

#include <cstdint>

namespace maru::daemon {

enum class Belief : uint8_t {
  kAdopt,
  kVerify,  // before it serves: Pool::verify()
  kFormat,  // its blocks are lost
};

// Of the pool whose control region begins `device` and has this label; says in the log why it is not simply adopted.
// `outlives_power`: what was left in order is so after a boot, too.
Result<Belief> judge_pool(const PoolSpec& spec, Device& device, const DeviceLabel& label, uint64_t pool_bytes,
                          bool outlives_power);

}  // namespace maru::daemon
