// The part of systemd's protocols that marud uses, without its library: telling the service manager how it goes, and
// leaving the memory of pools with it while marud restarts.
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <cstdint>
#include <map>
#include <string>

namespace maru::daemon {

// Sends one datagram to $NOTIFY_SOCKET, such as "READY=1"; with a descriptor when `fd` is not negative. Returns false
// when there is no service manager or it did not take it.
bool notify(const std::string& state, int fd = -1);

// Half of $WATCHDOG_USEC when it is meant for this process, in milliseconds; 0: no watchdog.
uint64_t watchdog_interval_ms();

// Descriptors that the service manager kept or listens on ($LISTEN_FDS, $LISTEN_FDNAMES), by name. Takes them over: a
// second call returns nothing. Of several with one name the last is kept.
std::map<std::string, FileDescriptor> take_stored_descriptors();

}  // namespace maru::daemon
