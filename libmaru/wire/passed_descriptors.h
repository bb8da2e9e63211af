// Descriptors that travel beside the bytes of a message over a Unix socket (SCM_RIGHTS).
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <cstddef>
#include <sys/socket.h>
#include <vector>

namespace maru::wire {

// Room for three descriptors, for attach_descriptors.
struct DescriptorRoom {
  alignas(cmsghdr) char bytes[CMSG_SPACE(3 * sizeof(int))] = {};
};

// The message carries `fd` along when it is sent, and after it `second` and `third` unless they are negative; `room` must live
// until then. The descriptors stay the caller's.
void attach_descriptors(msghdr& message, DescriptorRoom& room, int fd, int second = -1, int third = -1);

// All that came along with a message that was received; the caller owns them. They are close-on-exec if the message was
// received with MSG_CMSG_CLOEXEC. One is not open where this process had only a number for it that is a standard stream's.
std::vector<FileDescriptor> take_descriptors(msghdr& message);

}  // namespace maru::wire
