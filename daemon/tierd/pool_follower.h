// The thread that follows the pool and puts the events that tiers need into the queue.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/tierd/feed_queue.h"
#include "libmaru/base/result.h"

#include <atomic>
#include <memory>
#include <thread>

namespace maru::tierd {

class PoolFollower {
 public:
  // `socket_path`: empty for the library's own choice. Waits for marud in its thread.
  PoolFollower(std::string socket_path, std::string pool, FeedQueue& queue, maru::daemon::beside::Counters& counters,
               maru::daemon::beside::Health& health);
  ~PoolFollower();
  PoolFollower(const PoolFollower&) = delete;
  PoolFollower& operator=(const PoolFollower&) = delete;

 private:
  void run();
  maru_follower* open();
  void take(const maru_follow_event& event);

  const std::string socket_path_, pool_;
  FeedQueue& queue_;
  maru::daemon::beside::Health& health_;
  maru::daemon::beside::Sample &events_, &left_out_;
  std::atomic<bool> is_stopping_{false};
  FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace maru::tierd
