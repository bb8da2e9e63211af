// Copying a payload into a pool. The first large copies of a process find out which way of copying is the fastest on this
// machine. Among equally fast ways it prefers a way that leaves the caches to the caller's own data: other processes read the
// payload later.
#pragma once

#include <cstddef>

namespace maru::client {

// As memcpy, and finished (visible in order with later stores) when it returns. Any thread may call it.
void copy_payload(void* to, const void* from, size_t bytes);

}  // namespace maru::client
