// The memory that the kernel lets a process have: the limits of its control group and of the groups above it. Only limits of
// version 2 are looked at. The memory of a pool is charged to the group of the process that touches it first; at the limit the
// kernel kills a process of the group.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <optional>
#include <string>

namespace maru::daemon {

struct MemoryLimit {
  std::string group;   // the group with the limit: "/system.slice/marud.service"; "/" in a container
  uint64_t bytes = 0;  // memory.max
  uint64_t taken = 0;  // memory that the kernel cannot reclaim: of programs, and shared memory
  uint64_t kills = 0;  // processes of the group that were killed at a limit

  uint64_t room() const { return bytes > taken ? bytes - taken : 0; }
};

// The limit with the least room among these groups; nothing where no group has a limit, or the process is gone. Reads files
// below `root` alone ("" for this machine).
std::optional<MemoryLimit> memory_limit(const std::string& root = "", const std::string& process = "self");

// Whether the memory of this descriptor counts. Ordinary memory and tmpfs do; huge pages and devices do not. The kernel can
// write a file on a disk there when memory is short.
bool is_charged(int fd);

// Of /proc/meminfo: MemTotal; 0 when it does not say.
uint64_t memory_of_machine(const std::string& root = "");

// Whether this process may take so many bytes of the descriptor's memory now, by the limits of its group and the free
// memory. If not, an error with the finding and the remedy: taking them would end the process without a word.
Result<void> check_memory_limit(int fd, uint64_t bytes, const std::string& what);

}  // namespace maru::daemon
