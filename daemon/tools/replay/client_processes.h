// Starts the client processes and says when they are ready, running and gone.
#pragma once

#include "daemon/tools/replay/options.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <sys/types.h>
#include <vector>

namespace maru::replay {

class ClientProcesses {
 public:
  // Starts options.clients processes of this program with the same arguments; each finds the board at kBoardDescriptor.
  static Result<ClientProcesses> start(const Options& options, int argc, char** argv, int board_descriptor);
  ClientProcesses(ClientProcesses&&) = default;
  // Kills the remaining processes and collects them.
  ~ClientProcesses();

  // Blocks until each process has attached or ended. False: at least one ended.
  bool wait_until_attached();
  // Lets them all go at once.
  void release();
  // Waits for at most timeout_ms; true when every process is gone.
  bool wait_until_gone(int timeout_ms);
  // After wait_until_gone: how many did not end with status 0.
  uint32_t failed_count();

 private:
  ClientProcesses() = default;
  FileDescriptor start_;  // write end; closing it is the start
  FileDescriptor alive_;  // read end; its end of file says that every process is gone
  std::vector<pid_t> pids_;
};

}  // namespace maru::replay
