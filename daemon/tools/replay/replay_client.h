// One client of the replay: a process that attaches, waits for the common start, and does its share of the requests.
#pragma once

#include "daemon/tools/replay/board.h"
#include "daemon/tools/replay/options.h"
#include "daemon/tools/trace/trace.h"

namespace maru::replay {

// The descriptors with which a client process is started.
inline constexpr int kBoardDescriptor = 3;
inline constexpr int kStartDescriptor = 4;  // read end of a pipe; its end of file is the common start
inline constexpr int kAliveDescriptor =
    5;  // write end of a pipe: a byte when attached, end of file when the process is gone

// Runs until the share is done. Errors go to the board; the result is the process's exit status.
int run_client(const Options& options);

}  // namespace maru::replay
