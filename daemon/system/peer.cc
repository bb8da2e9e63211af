#include "daemon/system/peer.h"

#include "daemon/base/log.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(SO_PEERPIDFD)
#define SO_PEERPIDFD 77  // Linux 6.5; the headers of Debian 12 are older
#endif

namespace maru::daemon {
namespace {

// Errors: ESRCH there is no such process. Any other says nothing about the process: no descriptor left, for one.
Result<std::string> read_proc(pid_t pid, const char* file) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + file;
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[1024];
  const ssize_t got = fd.is_open() ? ::read(fd.get(), buffer, sizeof(buffer)) : -1;
  if (got > 0) return std::string(buffer, size_t(got));
  return failure(got == 0 ? EIO : errno == ENOENT ? ESRCH : errno, "read " + path);
}

// The shift of the time since boot in marud's time namespace: time_namespaces(7).
int64_t boot_time_offset() {
  static const int64_t known = [] {
    std::ifstream file("/proc/self/timens_offsets");
    std::string clock;
    for (int64_t seconds = 0, nanoseconds = 0; file >> clock >> seconds >> nanoseconds;)
      if (clock == "boottime") {
        const int64_t ticks = ::sysconf(_SC_CLK_TCK);
        return seconds * ticks + nanoseconds * ticks / 1'000'000'000;
      }
    return int64_t(0);  // a kernel without them
  }();
  return known;
}

int open_pidfd(pid_t pid) { return int(::syscall(SYS_pidfd_open, pid, 0)); }

// Proof: a pidfd becomes readable when its process ends.
bool has_ended(int pidfd) {
  pollfd entry = {pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

Result<ucred> credentials_of(int socket) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return failure(errno, "ask for the peer's credentials");
  return credentials;
}

// A process that lives and is not in /proc, or may not be looked at there, is hidden: proc(5), hidepid.
bool is_hidden(const Error& error) { return error.code == ESRCH || error.code == EACCES || error.code == EPERM; }

tl::unexpected<Error> hidden(const std::string& doing) {
  return failure(EACCES, doing +
                             " (found it hidden: /proc is mounted with hidepid; expected marud to be in the group of "
                             "its option gid, see HIDDEN PROCESSES in marud(8))");
}

std::vector<gid_t> groups_of(int socket) {
  std::vector<gid_t> groups(64);
  for (int attempt = 0; attempt < 2; ++attempt) {
    socklen_t bytes = socklen_t(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
      groups.resize(bytes / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE) break;
    groups.resize(bytes / sizeof(gid_t));
  }
  return {};
}

}  // namespace

Result<uint64_t> start_time_of(pid_t pid) {
  const Result<std::string> stat = read_proc(pid, "stat");
  if (!stat) return tl::unexpected(stat.error());
  const auto unreadable = failure(EIO, "understand /proc/" + std::to_string(pid) + "/stat");
  // The name in parentheses may contain anything, also parentheses: fields are counted from the last one.
  const size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos) return unreadable;
  const char* at = stat->c_str() + name_end + 1;
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (!at) return unreadable;
  }
  char* end = nullptr;
  const uint64_t value = std::strtoull(at + 1, &end, 10);
  if (end == at + 1) return unreadable;
  return value - uint64_t(boot_time_offset());
}

Result<uid_t> user_of_process(pid_t pid) {
  const Result<std::string> status = read_proc(pid, "status");
  if (!status) return tl::unexpected(status.error());
  unsigned real = 0, effective = 0;
  const size_t at = status->find("\nUid:");
  if (at == std::string::npos || std::sscanf(status->c_str() + at, "\nUid: %u %u", &real, &effective) != 2)
    return failure(EIO, "understand /proc/" + std::to_string(pid) + "/status");
  return uid_t(effective);
}

std::string command_of(pid_t pid) {
  std::string name = read_proc(pid, "comm").value_or("");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return printable(name);
}

Result<FileDescriptor> open_process(pid_t pid, uint64_t start_time) {
  if (pid <= 0) return failure(ESRCH, "watch process " + std::to_string(pid));
  FileDescriptor pidfd(open_pidfd(pid));
  if (!pidfd.is_open()) return failure(errno, "watch process " + std::to_string(pid));
  const auto found = start_time_of(pid);
  if ((found && !is_same_start(*found, start_time)) || has_ended(pidfd.get()))
    return failure(ESRCH, "watch process " + std::to_string(pid));
  if (!found)
    return is_hidden(found.error()) ? hidden("watch process " + std::to_string(pid))
                                    : failure(found.error().code, found.error().doing);
  return pidfd;
}

Result<void> end_process(int pidfd) {
  // A process that has ended and that its parent has not yet asked after would take the signal without a word.
  if (has_ended(pidfd)) return failure(ESRCH, "end a process");
  if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) != 0) return failure(errno, "end a process");
  return {};
}

Result<uid_t> user_of_peer(int socket) {
  const auto credentials = credentials_of(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  return credentials->uid;
}

Result<Peer> identify_peer(int socket) {
  const auto known = credentials_of(socket);
  if (!known) return tl::unexpected(known.error());
  const ucred& credentials = *known;
  if (credentials.pid <= 0) return failure(ESRCH, "identify a peer outside marud's pid namespace");
  const std::string doing = "identify process " + std::to_string(credentials.pid);

  Peer peer;
  peer.who.pid = credentials.pid;
  peer.who.uid = credentials.uid;
  peer.who.gid = credentials.gid;
  int pidfd = -1;
  socklen_t bytes = sizeof(pidfd);
  const bool kernel_knows = ::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0;
  // EINVAL: it has ended, and its parent has asked after it (Linux 6.5 to 6.15).
  if (!kernel_knows && errno != ENOPROTOOPT) return failure(errno == EINVAL ? ESRCH : errno, doing);
  const auto before = start_time_of(credentials.pid);
  if (!kernel_knows) pidfd = open_pidfd(credentials.pid);
  peer.pidfd.reset(pidfd);
  if (!peer.pidfd.is_open()) return failure(errno, doing);
  const auto after = start_time_of(credentials.pid);
  // Alive now, so the pid was this process's when its start time was read. Without SO_PEERPIDFD the pidfd could belong to a
  // process that took the pid before `before`; the kernel before 6.5 offers nothing better. But it must not be a process of
  // another user: otherwise a user could have marud take a lane, and end a process, in another's name.
  if (!kernel_knows) {
    const auto user = user_of_process(credentials.pid);
    if (!user) {
      const bool is_there = is_hidden(user.error()) && !has_ended(peer.pidfd.get());
      return is_there ? hidden(doing) : failure(user.error().code, doing);
    }
    if (*user != credentials.uid) return failure(ESRCH, doing);
  }
  if (has_ended(peer.pidfd.get())) return failure(ESRCH, doing);
  for (const auto* time : {&before, &after})
    if (!*time) return is_hidden((*time).error()) ? hidden(doing) : failure((*time).error().code, doing);
  if (*before != *after) return failure(ESRCH, doing);
  peer.who.start_time = *after;
  peer.command = command_of(credentials.pid);
  peer.groups = groups_of(socket);
  return peer;
}

uint64_t own_pid_namespace() {
  struct stat status = {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? uint64_t(status.st_ino) : 0;
}

Result<std::vector<uint64_t>> all_start_times() {
  constexpr uint64_t kInitialNamespace = 0xEFFF'FFFC;  // PROC_PID_INIT_INO of linux/proc_ns.h: above all others
  const auto not_all =
      failure(EXDEV,
              "look at all processes (found marud in a pid namespace, or beside a /proc, that does not "
              "show them, expected the machine's own)");
  // /proc may hide other users' processes.
  if (own_pid_namespace() != kInitialNamespace || !start_time_of(1)) return not_all;
  std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), ::closedir);
  if (!processes) return failure(errno, "list /proc");
  std::vector<uint64_t> times;
  const auto next = [&] {
    errno = 0;
    return ::readdir(processes.get());
  };
  while (const dirent* entry = next()) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const auto started = start_time_of(pid);
    if (started)
      times.push_back(*started);
    else if (started.error().code != ESRCH)
      return not_all;
  }
  if (errno != 0) return failure(errno, "list /proc");
  return times;
}

bool may_use(const Peer& peer, const std::vector<uid_t>& users, const std::vector<gid_t>& groups) {
  const uid_t uid = peer.who.uid;
  if (uid == 0 || uid == ::geteuid() || std::find(users.begin(), users.end(), uid) != users.end()) return true;
  return std::any_of(groups.begin(), groups.end(), [&](gid_t group) {
    return group == peer.who.gid || std::find(peer.groups.begin(), peer.groups.end(), group) != peer.groups.end();
  });
}

}  // namespace maru::daemon
