#include "daemon/tools/replay/client_processes.h"

#include "daemon/tools/replay/replay_client.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace maru::replay {
namespace {

// Descriptors below this are where the client processes find theirs, so nothing else may lie there when they are moved.
constexpr int kFirstOwnDescriptor = 16;

struct Pipe {
  FileDescriptor read_end, write_end;
};

Result<FileDescriptor> moved_up(FileDescriptor low) {
  FileDescriptor high(::fcntl(low.get(), F_DUPFD_CLOEXEC, kFirstOwnDescriptor));
  if (!high.is_open()) return failure(errno, "duplicate a descriptor");
  return high;
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return failure(errno, "create a pipe");
  FileDescriptor read_end(ends[0]), write_end(ends[1]);
  Result<FileDescriptor> high_read = moved_up(std::move(read_end));
  Result<FileDescriptor> high_write = moved_up(std::move(write_end));
  if (!high_read) return tl::unexpected<Error>(high_read.error());
  if (!high_write) return tl::unexpected<Error>(high_write.error());
  return Pipe{std::move(*high_read), std::move(*high_write)};
}

}  // namespace

Result<ClientProcesses> ClientProcesses::start(const Options& options, int argc, char** argv, int board_descriptor) {
  Result<Pipe> start = make_pipe();
  Result<Pipe> alive = make_pipe();
  if (!start) return tl::unexpected<Error>(start.error());
  if (!alive) return tl::unexpected<Error>(alive.error());
  FileDescriptor board(::fcntl(board_descriptor, F_DUPFD_CLOEXEC, kFirstOwnDescriptor));
  if (!board.is_open()) return failure(errno, "duplicate a descriptor");

  // By its own path and not by the link, so that the processes keep the program's name.
  char program[4096] = {};
  if (::readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) return failure(errno, "find this program");

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, board.get(), kBoardDescriptor);
  ::posix_spawn_file_actions_adddup2(&actions, start->read_end.get(), kStartDescriptor);
  ::posix_spawn_file_actions_adddup2(&actions, alive->write_end.get(), kAliveDescriptor);

  ClientProcesses processes;
  int error = 0;
  for (uint32_t i = 0; i < options.clients && error == 0; ++i) {
    std::string index = std::to_string(i);
    std::string index_option = "--client-index";
    std::vector<char*> arguments(argv, argv + argc);
    arguments.insert(arguments.begin() + 1, {index_option.data(), index.data()});
    arguments.push_back(nullptr);
    pid_t pid = 0;
    error = ::posix_spawn(&pid, program, &actions, nullptr, arguments.data(), environ);
    if (error == 0) processes.pids_.push_back(pid);
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return failure(error, "start a client process");
  processes.start_ = std::move(start->write_end);
  processes.alive_ = std::move(alive->read_end);
  return processes;
}

ClientProcesses::~ClientProcesses() {
  for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
  for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
}

bool ClientProcesses::wait_until_attached() {
  // Each process writes one byte when it has attached. When a process ends instead, the pipe stays open as long as others live.
  // So the loop checks the processes between the bytes.
  size_t attached = 0;
  while (attached < pids_.size()) {
    pollfd poll_entry{alive_.get(), POLLIN, 0};
    if (::poll(&poll_entry, 1, 50) > 0) {
      char bytes[64];
      const ssize_t got = ::read(alive_.get(), bytes, sizeof(bytes));
      if (got == 0) return false;
      if (got > 0) attached += size_t(got);
    }
    for (const pid_t pid : pids_) {
      siginfo_t info{};
      if (::waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid) return false;
    }
  }
  return true;
}

void ClientProcesses::release() { start_.reset(); }

bool ClientProcesses::wait_until_gone(int timeout_ms) {
  pollfd poll_entry{alive_.get(), POLLIN, 0};
  if (::poll(&poll_entry, 1, timeout_ms) <= 0) return false;
  char byte;
  return ::read(alive_.get(), &byte, 1) == 0;
}

uint32_t ClientProcesses::failed_count() {
  uint32_t failed = 0;
  for (const pid_t pid : pids_) {
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  pids_.clear();
  return failed;
}

}  // namespace maru::replay
