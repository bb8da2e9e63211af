#pragma once

#include <algorithm>
#include <cstdint>
#include <sched.h>

namespace maru::adapters {

// How many processors the calling thread may use; at least one.
inline uint32_t processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? uint32_t(std::max(CPU_COUNT(&set), 1)) : 1;
}

}  // namespace maru::adapters
