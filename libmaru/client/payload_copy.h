// Copying a payload into a pool. The first large copies of a process find out which way of copying is the fastest on this
// machine; of equally fast ones those are preferred that leave the caches to what the caller is working with: a payload is
// read by other processes, later.
#pragma once

#include <cstddef>

namespace maru::client {

// As memcpy, and finished (visible in order with later stores) when it returns. Any thread may call it.
void copy_payload(void* to, const void* from, size_t bytes);

}  // namespace maru::client
