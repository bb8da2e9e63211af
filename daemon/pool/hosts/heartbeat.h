// The heartbeat of this host in a shared pool: a thread that says several times a second that the host is alive. marud's loop
// may be busy meanwhile: it starts another pool, or deletes millions of blocks. Silence can lead the other hosts to cut this
// machine's power, so silence must mean more than a long turn.
//
// A loop that hangs must not look well for ever: the thread falls silent when the loop has not shown itself for
// `loop_hangs_ms`. Until it has for the first time marud is being started, which takes as long as it takes.
//
// Thread safety: one thread owns it. The thread inside reads the claim and writes the heartbeat of one host record, and nothing
// else; it ends by itself when another life has the slot.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace maru::daemon {

inline constexpr uint64_t kHeartbeatPauseMs = 250;
// Twice the service manager's limit for a turn of the loop.
inline constexpr uint64_t kLoopHangsMs = 60'000;

class Heartbeat {
 public:
  // `region` outlives this. `generation`: of the host's claim.
  Heartbeat(const shm::ControlRegion& region, uint32_t host, uint32_t generation,
            uint64_t loop_hangs_ms = kLoopHangsMs);
  ~Heartbeat();  // waits for the thread, which never blocks for long
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // The loop is at work.
  void loop_turns();

 private:
  void run();
  bool beat();

  const shm::ControlRegion& region_;
  const uint32_t host_, generation_;
  const uint64_t loop_hangs_ms_;
  std::atomic<uint64_t> turned_ms_ = 0;  // by the monotonic clock; 0: not yet
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool ends_ = false;  // under mutex_
  std::thread thread_;
};

// Milliseconds of a clock that no setting changes and that stands still while the machine does.
uint64_t monotonic_ms();

}  // namespace maru::daemon
