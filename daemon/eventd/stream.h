// One stream: the blocks of some pools and of an engine's feed, as one sequence of events for one outlet. It has a thread of
// its own, and one for each pool, and shares nothing with other streams: a router that is slow for one is not for another.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/eventd/contents.h"
#include "daemon/eventd/engine_feed.h"
#include "daemon/eventd/outlet.h"
#include "daemon/eventd/pool_source.h"
#include "daemon/eventd/settings.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace maru::eventd {

class Stream {
 public:
  using MakeFeed = std::function<Result<std::unique_ptr<EngineFeed>>(uint32_t source, Contents& contents)>;
  using Rank = std::function<void(std::optional<int64_t>)>;

  Stream(const StreamSettings& settings, std::unique_ptr<Outlet> outlet, daemon::beside::Counters& counters,
         daemon::beside::Health& health);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Before start(). `rank` is called when the engine has said its rank.
  Result<void> relay(const MakeFeed& make, Rank rank);
  void start();

  // Turns of the thread so far; an unreachable marud or router does not stop them.
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void wait();
  void take_letters();
  void apply(SourcedChange&& change);
  void announce_all();
  void flush();
  void flush_if_due();

  const StreamSettings settings_;
  std::unique_ptr<Outlet> outlet_;
  daemon::beside::Counters& counters_;
  daemon::beside::Health& health_;
  Contents contents_;
  EventList pending_;  // not published yet
  Clock::time_point pending_since_{};
  bool is_blank_ = false;  // that nothing is there was the last that was announced
  PoolSource::Letters letters_;
  std::unique_ptr<EngineFeed> feed_;
  Rank rank_;
  std::optional<int64_t> told_rank_;
  std::vector<std::unique_ptr<PoolSource>> sources_;
  daemon::beside::Sample &blocks_, &announcements_;
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace maru::eventd
