// Copying a payload into a pool. Large ones go past the caches: they are read by other processes, later, and would only
// push out what the caller is working with. That is also the fastest way to write them.
#pragma once

#include <cstddef>

namespace maru::client {

// As memcpy, and finished (visible in order with later stores) when it returns. `to` is aligned to a cache line.
void copy_payload(void* to, const void* from, size_t bytes);

}  // namespace maru::client
