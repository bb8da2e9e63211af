// Descriptors that travel beside the bytes of a message over a Unix socket (SCM_RIGHTS).
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <cstddef>
#include <sys/socket.h>
#include <vector>

namespace maru::wire {

// Room for one of them: what attach_descriptor needs.
struct OneDescriptor {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

// The message carries `fd` along when it is sent, and `room` must live until then. The descriptor stays the caller's.
void attach_descriptor(msghdr& message, OneDescriptor& room, int fd);

// All that came along with a message that was received; the caller owns them. They are close-on-exec if the message was
// received with MSG_CMSG_CLOEXEC.
std::vector<FileDescriptor> take_descriptors(msghdr& message);

}  // namespace maru::wire
