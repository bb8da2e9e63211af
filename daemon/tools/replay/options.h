// The options of maru-replay.
#pragma once

#include "daemon/tools/replay/recorded_calls.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::replay {

struct Options {
  std::string trace_path;
  std::vector<std::string> recordings;  // in the place of a trace
  std::string export_path;              // empty: they are played
  uint32_t lct_schema = 2;              // of a trace of LMCache that is exported
  Order order = Order::kDependency;     // of their calls
  double speed = 1;
  std::string socket_path;  // empty: where libmaru looks by itself
  std::string pool;         // empty: the default pool
  uint32_t clients = 4;
  uint64_t payload_bytes = 16384;     // of a block
  uint64_t recorded_payload_max = 0;  // of a recorded block; 0: as recorded
  uint64_t requests_max = 0;          // 0: the whole trace
  std::string tier_path;              // of maru-tierd's socket; empty: there is no tier
  uint32_t compute_us = 0;            // an engine's time for each block that was not found
  bool verify_afterwards = false;
  bool json = false;
  bool progress = true;

  bool help = false;
  bool version = false;

  // Set when this process is one of the clients, which the program starts of itself.
  bool is_client = false;
  uint32_t client_index = 0;
};

// The error says which option is wrong and why.
Result<Options> parse_options(int argc, char** argv);

extern const char* const kUsage;

}  // namespace maru::replay
