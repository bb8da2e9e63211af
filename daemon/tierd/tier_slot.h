// A tier as the controllers use it: deadlines, a circuit breaker, the measured speed, and numbers for Prometheus.
//
// An operation is answered once: by the tier, or at its deadline, whichever comes first. A later answer of the tier changes
// nothing. It is released when the tier has given its memory back, at once or much later. Only then may its pages be used
// again.
//
// The breaker opens after kBreakerFailures failures of one kind of operation in a row (errors of the device, and deadlines): a
// tier may answer lookups from memory while its device hangs. While the breaker is open nothing reaches the tier, and every
// operation ends with -EHOSTDOWN. After a pause, which doubles each time, one operation is tried. Deletions neither open the
// breaker nor try it: a tier may refuse them alone, and they are tried again and again.
//
// Threads: one, the controllers'. Callbacks come from submit(), take_completions() and expire().
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/tierd/tiers/tier.h"

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

namespace maru::tierd {

using Clock = std::chrono::steady_clock;
using maru::daemon::beside::Counters;
using maru::daemon::beside::Durations;
using maru::daemon::beside::Sample;

struct TierOperation {
  maru_tier_request request = {};  // its ticket is the slot's
  Clock::time_point deadline = {};
  std::function<void(const maru_tier_completion&)> answered;
  std::function<void()> released;  // may be empty
};

struct TierSlotSettings {
  std::string name;  // "nvme"
  uint32_t load_timeout_ms = 2000;
  uint32_t store_timeout_ms = 10'000;
  uint32_t in_flight_max = 256;
};

class TierSlot {
 public:
  static constexpr uint32_t kBreakerFailures = 5;
  static constexpr std::chrono::milliseconds kBreakerPause{500}, kBreakerPauseMax{60'000};
  static constexpr std::chrono::milliseconds kSpeedAge{30'000};

  TierSlot(const TierSlotSettings& settings, std::unique_ptr<Tier> tier, Counters& counters);
  // Closes the tier, and then releases the tier's operations; callbacks are destroyed, not called.
  ~TierSlot() {
    tier_.reset();
    open_.clear();
  }
  TierSlot(const TierSlot&) = delete;
  TierSlot& operator=(const TierSlot&) = delete;

  const TierSlotSettings& settings() const { return settings_; }
  Tier& tier() { return *tier_; }
  int event_descriptor() { return tier_->event_descriptor(); }

  // request.kind and the rest are the caller's; the deadline is set by kind.
  void submit(TierOperation operation);
  void take_completions();
  void expire(Clock::time_point now);
  // Some operation has not been answered, so expire() has to be called now and then.
  bool has_open() const { return unanswered_ > 0 || !queue_.empty(); }
  size_t unreleased() const { return open_.size(); }
  bool has_room() const { return open_.size() < settings_.in_flight_max; }

  bool is_open_circuit() const { return circuit_ == Circuit::kOpen; }
  const char* circuit_text() const;
  // Bytes a second: of all loads together while any is under way; of a store, smoothed. 0: none yet.
  double load_bytes_per_second() const { return load_seconds_ > 0 ? load_bytes_ / load_seconds_ : 0; }
  double store_bytes_per_second() const { return store_speed_; }
  // False: the tier may be as fast as ever again, and no load has shown it.
  bool is_load_speed_recent(Clock::time_point now) const { return now - load_mark_ < kSpeedAge; }
  size_t queued() const { return queue_.size(); }  // that the tier has not accepted yet
  // Operations of a kind that have ended since this was made, and the payload bytes of the successful ones.
  struct Total {
    uint64_t done, absent, failed, bytes;
  };
  Total total(uint32_t kind);
  // Called when the breaker opens and when it closes.
  std::function<void(bool is_open)> circuit_changed;

 private:
  enum class Circuit : uint8_t { kClosed, kOpen, kHalfOpen };
  struct Open {
    TierOperation operation;
    Clock::time_point begun;
    bool is_answered = false;
    bool is_trial = false;
  };
  struct KindNumbers {
    Sample &done, &absent, &failed, &timed_out, &bytes;
    Durations& seconds;
  };

  bool may_pass(Clock::time_point now);
  void push_queue();
  void note_load(uint64_t bytes, Clock::time_point now);
  void answer(Open& open, const maru_tier_completion& done, bool is_late);
  void judge(Open& open, int result, Clock::time_point now);
  void open_circuit(Clock::time_point now);
  KindNumbers numbers_of(Counters& counters, const char* kind);
  KindNumbers& numbers(uint32_t kind) { return numbers_[kind <= MARU_TIER_DELETE ? kind : 0]; }

  const TierSlotSettings settings_;
  std::unique_ptr<Tier> tier_;
  std::vector<KindNumbers> numbers_;
  Sample &breaker_, &breaker_opened_;
  uint64_t next_ticket_ = 1;
  std::deque<uint64_t> queue_;  // not accepted by the tier yet
  std::unordered_map<uint64_t, Open> open_;
  size_t unanswered_ = 0;
  Circuit circuit_ = Circuit::kClosed;
  std::array<uint32_t, MARU_TIER_DELETE + 1> failures_ = {};  // in a row, by kind
  Clock::time_point circuit_until_ = {};
  std::chrono::milliseconds pause_ = kBreakerPause;
  double store_speed_ = 0;
  // Of the last seconds in which loads were under way; the mark is when one last began alone, or ended.
  double load_seconds_ = 0, load_bytes_ = 0;
  Clock::time_point load_mark_ = {};
  size_t loads_under_way_ = 0;
};

}  // namespace maru::tierd
