// The socket that a service manager listened on before marud was started (systemd: marud.socket), so that clients may connect
// while marud is not there yet: they wait in its queue.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <map>
#include <string>

namespace maru::daemon {

// Takes the listening socket out of the descriptors that the service manager passed. Not open: none was passed. It must be of
// the kind that clients connect to, at `path`, and there may be only one; anything else is an error, because clients would wait
// at a socket that no process serves.
Result<FileDescriptor> take_listening_socket(std::map<std::string, FileDescriptor>& passed, const std::string& path);

}  // namespace maru::daemon
