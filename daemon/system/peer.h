// The process at the other end of a connection, as the kernel says, and whether it still lives.
//
// A pid alone can belong to another process a moment later. A pidfd cannot, and the pair of pid and start time cannot
// within one boot. So a process is known by both: the start time is read while the pidfd says that the process is
// alive.
#pragma once

#include "daemon/system/client_identity.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::daemon {

struct Peer {
  ClientIdentity who;
  std::vector<gid_t> groups;  // supplementary
  std::string command;        // for logs and listings only: the process chose it
  FileDescriptor pidfd;
};

// Errors: ESRCH the process is gone or is not visible from marud's pid namespace.
Result<Peer> identify_peer(int socket);
// The user that connected, known at once. Errors: none but a descriptor that is no connection.
Result<uid_t> user_of_peer(int socket);

// A pidfd of the process with this pid and start time. Errors: ESRCH there is no such process any more; any other proves
// nothing.
Result<FileDescriptor> open_process(pid_t pid, uint64_t start_time);

// When each process of the machine started, in no order. Errors: EXDEV marud does not see all processes.
Result<std::vector<uint64_t>> all_start_times();
// Whether two start times may belong to one process: the kernel gives them in ticks, and rounded in other time namespaces.
constexpr bool is_same_start(uint64_t a, uint64_t b) { return (a > b ? a - b : b - a) <= 1; }

// Inode number of marud's pid namespace; 0: not known.
uint64_t own_pid_namespace();

// SIGKILL to the process behind a pidfd and to no other. Errors: ESRCH it has ended already; EPERM marud may not.
Result<void> end_process(int pidfd);

// Field 22 of /proc/PID/stat, clock ticks since boot, as outside of all time namespaces. Errors: as open_process().
Result<uint64_t> start_time_of(pid_t pid);
std::string command_of(pid_t pid);
// The effective user that a process has now. Errors: as open_process().
Result<uid_t> user_of_process(pid_t pid);

bool may_use(const Peer& peer, const std::vector<uid_t>& users, const std::vector<gid_t>& groups);

}  // namespace maru::daemon
