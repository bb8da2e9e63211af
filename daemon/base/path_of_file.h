// Whether a path still leads to a file that this process holds open. Device and inode tell: no other file has both numbers
// while this file is open. Another program's file at the path must be neither removed nor replaced.
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <cerrno>
#include <string>
#include <sys/stat.h>

namespace maru::daemon {

// 0; ESTALE where the path leads to another file; or the errno of a look at the path.
inline int why_another_file(const std::string& path, const FileDescriptor& file) {
  struct stat there = {}, held = {};
  if (::lstat(path.c_str(), &there) != 0 || ::fstat(file.get(), &held) != 0) return errno;
  return there.st_dev == held.st_dev && there.st_ino == held.st_ino ? 0 : ESTALE;
}

}  // namespace maru::daemon
