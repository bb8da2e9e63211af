// Room that a file system gives a file. The size of a file is a promise alone: a page gets room when a process first touches
// it, and a full file system sends that process SIGBUS. So marud takes room here, by calls that say ENOSPC.
#pragma once

#include "daemon/memory/device_content.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::daemon {

// Why the file system may need new room for a page that has room: it writes each change to another place. Empty: it is not
// known to do so.
std::string why_no_promise(int fd);
// Asks btrfs to write changes of a new and empty file to the same place. Other file systems are not asked.
void write_in_place(int fd);

// How many bytes of the file have no room. UINT64_MAX: the kernel does not say.
uint64_t lacking_room(int fd);

struct FileRange {
  uint64_t offset = 0, bytes = 0;
};
// The ranges of these bytes that may have no room. A file system that reports reserved and unwritten room as a hole gets the
// same answer for both.
Result<std::vector<FileRange>> bare_ranges(int fd, uint64_t offset, uint64_t bytes);

// Takes room for these bytes, which begin and end with an OS page, and changes none of them. Blocks; any thread.
// Errors: ENOSPC, with advice; EOPNOTSUPP the file system has no call for it; ECANCELED.
Result<void> reserve_room(int fd, uint64_t offset, uint64_t bytes, const std::string& name,
                          const Progress& progress = {});
// The same; a file system without such a call has each page touched, under a guard.
Result<void> take_room(int fd, uint64_t offset, uint64_t bytes, const std::string& name);

}  // namespace maru::daemon
