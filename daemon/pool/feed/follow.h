// The descriptors and the answer for a follower of a pool.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "maru/format/wire.h"

namespace maru::daemon {

struct FollowGrant {
  wire::FollowReply reply = {};
  FileDescriptor feed;
  FileDescriptor control;  // to read only; of a pool in one piece it has the pages, too
  FileDescriptor pages;    // to read only; none of a pool in one piece
};

}  // namespace maru::daemon
