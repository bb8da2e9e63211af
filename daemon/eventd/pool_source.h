// A thread that follows one pool for one stream, and hands changes to the stream's thread. It begins before marud is there, and
// outlives it; its troubles are in the health of the program.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/eventd/mailbox.h"
#include "daemon/eventd/pool_translator.h"
#include "daemon/eventd/settings.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace maru::eventd {

// A change, and which of the stream's pools it is of.
struct SourcedChange {
  uint32_t source = 0;
  PoolChange change;
};

class PoolSource {
 public:
  using Letters = Mailbox<SourcedChange>;

  PoolSource(uint32_t source, const StreamSettings& stream, const PoolSettings& pool, Letters& letters,
             daemon::beside::Counters& counters, daemon::beside::Health& health);
  ~PoolSource();  // the mailbox must be closed before
  PoolSource(const PoolSource&) = delete;
  PoolSource& operator=(const PoolSource&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  bool wait_a_while();
  bool is_stopping() const { return is_stopping_.load(); }
  void follow(Follower& follower);
  void take(std::span<const FollowEvent> events);
  void tell_trouble(int code);
  void tell_end();

  const uint32_t source_;
  const PoolSettings pool_;
  const std::string part_;  // of the health
  Letters& letters_;
  daemon::beside::Health& health_;
  PoolTranslator translator_;
  bool is_empty_ = true;  // nothing was told since the last reset
  uint64_t told_damaged_ = 0;
  Clock::time_point damage_due_{};
  daemon::beside::Sample &resets_, &overruns_, &without_tokens_, &damaged_, &blocks_;

  std::atomic<bool> is_stopping_ = false;
  std::mutex mutex_;  // of follower_, which the destructor wakes
  std::condition_variable stop_;
  std::optional<Follower> follower_;
  std::thread thread_;
};

}  // namespace maru::eventd
