// Waiting for udev, which names devices and gives them away a while after the kernel has found them.
#pragma once

namespace maru::daemon::provision {

// Returns when udev has handled the kernel's reports so far, or half a minute later: `udevadm settle`. Without udev, returns at
// once. When `udevadm` gives up, its message goes to standard error.
void wait_for_udev();

}  // namespace maru::daemon::provision
