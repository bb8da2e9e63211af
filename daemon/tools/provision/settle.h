// Waiting for udev, which names devices and gives them away a while after the kernel has found them.
#pragma once

namespace maru::daemon::provision {

// Returns when udev has handled what the kernel reported so far, or half a minute later: `udevadm settle`. Without udev, at
// once; what it says when it gives up goes to standard error.
void wait_for_udev();

}  // namespace maru::daemon::provision
