// Plays recorded calls against a pool: each thread of a recorded client is a thread with a client of its own.
//
// Orders. `time`: each call begins at its recorded time, divided by the speed. `fast`: each thread goes as fast as it can.
// `dependency`: likewise, but a call waits for the earlier calls that decide its result. These are the calls that changed one
// of its keys. A call that changes keys also waits for the calls that asked for them. In this order equal pools give equal
// results.
//
// A pin ends at once here, however long the recorded client held it. Allocations belong to the stores that follow.
#pragma once

#include "daemon/tools/replay/latency_histogram.h"
#include "daemon/tools/replay/recording.h"

#include <array>
#include <cstdint>
#include <string>

namespace maru::replay {

enum class Order : uint8_t { kTime, kFast, kDependency };

struct CallSettings {
  std::string socket_path, pool;  // empty: as libmaru
  Order order = Order::kDependency;
  double speed = 1;                // for Order::kTime
  uint64_t payload_bytes_max = 0;  // larger blocks are cut; 0: they have the recorded size
};

struct CallReport {
  static constexpr size_t kOperations = size_t(format::Recorded::kDeleteTree) + 1;

  struct OfOperation {
    uint64_t calls = 0, same = 0, keys = 0;
    uint64_t recorded_found = 0, found = 0;    // keys; of stores: keys that are present afterwards
    uint64_t errors = 0, recorded_errors = 0;  // other than an absent key
    LatencyHistogram latency;
  };

  std::array<OfOperation, kOperations> of;
  uint64_t took_ns = 0, recorded_ns = 0;
};

// Blocks until all calls are played. Errors: a client cannot attach.
Result<void> play(const Recordings& recordings, const CallSettings& settings, CallReport& report);

}  // namespace maru::replay
