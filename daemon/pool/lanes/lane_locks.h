// A proof that no process can write a lane any more, in any pid namespace. For each client marud opens the control region
// anew, locks a byte of this life of the lane, and hands that open file description to the client.
//
// The kernel ends such a lock with the description, when its last descriptor is closed and its last mapping is gone. So the
// lock outlives a closed descriptor, and it outlives marud. A missing lock proves that nothing maps the control region through
// this description: docs/format.md, "The lock of a lane".
//
// Not every file system keeps locks so. Overlayfs maps another file than the opened one; a server of a network file system may
// lose its locks. begin() tries a lock, and asks for the kind of the file system. Without trust, lanes get no locks.
//
// Thread safety: one thread.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <string>

namespace maru::daemon {

class Device;

enum class LaneLock : uint8_t {
  kUnknown,  // the lane has no lock, or the kernel does not say
  kHeld,     // a process has the control region open or mapped by its client's description
  kFree,     // no process has
};

class LaneLocks {
 public:
  // `own_lane`: marud's own lane; a byte of this lane is locked for the trial.
  void begin(const Device& device, uint32_t own_lane);
  // Why lanes are given out without locks; empty: they have them.
  const std::string& why_none() const { return why_none_; }

  // An open file description for one client; closed where there are no locks. Errors: EMFILE, ENFILE.
  Result<FileDescriptor> open() const;
  // False: it could not be locked, and the lane has none.
  static bool lock(int control, uint32_t lane, uint32_t generation);
  LaneLock ask(uint32_t lane, uint32_t generation) const;

 private:
  std::string try_out(uint64_t map_bytes, uint32_t own_lane) const;

  // An open file description that no client ever gets: the kernel does not tell a description of its own locks.
  FileDescriptor asker_;
  std::string why_none_ = "they were not tried";
};

}  // namespace maru::daemon
