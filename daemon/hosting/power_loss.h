// Whether an existing pool can be believed. A pool of one host that marud saw to its end can be. So can a pool of this boot,
// since every process saw its memory and the kernel's cache of its file. A pool that was cut off in another boot has only the
// bytes that had reached its memory, or its file, by then: docs/format.md, "A pool that lost power".
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

// Judges the pool whose control region begins `device` and has this label; logs why it is not simply adopted.
// `outlives_power`: a pool that was left in order is in order after a boot, too.
Result<Belief> judge_pool(const PoolSpec& spec, Device& device, const DeviceLabel& label, uint64_t pool_bytes,
                          bool outlives_power);

}  // namespace maru::daemon
