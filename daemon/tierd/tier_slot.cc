#include "daemon/tierd/tier_slot.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace maru::tierd {

namespace {

// Results that say nothing about the tier's health.
bool is_healthy(int result) {
  return result == 0 || result == -ENOENT || result == -ENOSPC || result == -EFBIG || result == -ESTALE ||
         result == -EBADMSG;
}

constexpr double kSpeedShare = 0.1;    // of the newest store in the smoothed speed
constexpr double kSpeedSeconds = 1.0;  // of loading; then the seconds before count for half

}  // namespace

TierSlot::TierSlot(const TierSlotSettings& settings, std::unique_ptr<Tier> tier, Counters& counters)
    : settings_(settings),
      tier_(std::move(tier)),
      breaker_(counters.gauge("maru_tier_breaker_open", "1 while the circuit breaker keeps requests from the tier",
                              {{"tier", settings.name}})),
      breaker_opened_(counters.counter("maru_tier_breaker_opened_total", "How often the circuit breaker has opened",
                                       {{"tier", settings.name}})) {
  for (const char* kind : {"other", "lookup", "load", "store", "delete"})
    numbers_.push_back(numbers_of(counters, kind));
}

TierSlot::KindNumbers TierSlot::numbers_of(Counters& counters, const char* kind) {
  const auto results = [&](const char* result) -> Sample& {
    return counters.counter("maru_tier_operations_total", "Operations on the tier, by kind and result",
                            {{"tier", settings_.name}, {"kind", kind}, {"result", result}});
  };
  return {results("done"),
          results("absent"),
          results("failed"),
          results("timed_out"),
          counters.counter("maru_tier_bytes_total", "Payload bytes of operations that were done",
                           {{"tier", settings_.name}, {"kind", kind}}),
          counters.durations("maru_tier_operation_seconds", "Time until the tier answered",
                             {{"tier", settings_.name}, {"kind", kind}})};
}

const char* TierSlot::circuit_text() const {
  return circuit_ == Circuit::kClosed ? "closed" : circuit_ == Circuit::kOpen ? "open" : "half open";
}

TierSlot::Total TierSlot::total(uint32_t kind) {
  const KindNumbers& of = numbers(kind);
  return {of.done.value(), of.absent.value(), of.failed.value() + of.timed_out.value(), of.bytes.value()};
}

bool TierSlot::may_pass(Clock::time_point now) {
  if (circuit_ == Circuit::kClosed) return true;
  if (circuit_ == Circuit::kHalfOpen || now < circuit_until_) return false;
  circuit_ = Circuit::kHalfOpen;  // this one is the trial
  return true;
}

void TierSlot::submit(TierOperation operation) {
  const Clock::time_point now = Clock::now();
  const uint64_t ticket = next_ticket_++;
  operation.request.ticket = ticket;
  const bool is_store = operation.request.kind == MARU_TIER_STORE || operation.request.kind == MARU_TIER_DELETE;
  operation.deadline =
      now + std::chrono::milliseconds(is_store ? settings_.store_timeout_ms : settings_.load_timeout_ms);
  const bool is_delete = operation.request.kind == MARU_TIER_DELETE;
  if (is_delete ? circuit_ != Circuit::kClosed : !may_pass(now)) {
    operation.answered({ticket, -EHOSTDOWN, 0, 0, 0});
    if (operation.released) operation.released();
    return;
  }
  Open open = {std::move(operation), now};
  open.is_trial = circuit_ == Circuit::kHalfOpen;
  if (open.operation.request.kind == MARU_TIER_LOAD && loads_under_way_++ == 0) load_mark_ = now;
  open_.emplace(ticket, std::move(open));
  ++unanswered_;
  queue_.push_back(ticket);
  push_queue();
}

void TierSlot::push_queue() {
  while (!queue_.empty()) {
    const auto found = open_.find(queue_.front());
    // An operation that was answered while it waited never reaches the tier, and its memory is free.
    if (found->second.is_answered) {
      const auto released = std::move(found->second.operation.released);
      open_.erase(found);
      queue_.pop_front();
      if (released) released();
      continue;
    }
    if (tier_->submit(&found->second.operation.request, 1) == 0) return;
    queue_.pop_front();
  }
}

void TierSlot::take_completions() {
  std::array<maru_tier_completion, 64> done;
  for (size_t n = 0; (n = tier_->complete(done.data(), done.size())) > 0;) {
    for (size_t i = 0; i < n; ++i) {
      const auto found = open_.find(done[i].ticket);
      if (found == open_.end()) continue;  // a plug-in that completes twice
      Open open = std::move(found->second);
      open_.erase(found);
      if (!open.is_answered) answer(open, done[i], false);
      if (open.operation.released) open.operation.released();
    }
  }
  push_queue();
}

void TierSlot::expire(Clock::time_point now) {
  if (unanswered_ == 0) return;
  std::vector<uint64_t> late;
  for (const auto& [ticket, open] : open_)
    if (!open.is_answered && open.operation.deadline <= now) late.push_back(ticket);
  for (const uint64_t ticket : late)
    if (const auto found = open_.find(ticket); found != open_.end() && !found->second.is_answered)
      answer(found->second, {ticket, -ETIMEDOUT, 0, 0, 0}, true);
  push_queue();
}

void TierSlot::answer(Open& open, const maru_tier_completion& done, bool is_late) {
  open.is_answered = true;
  --unanswered_;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> took = now - open.begun;
  KindNumbers& kind = numbers(open.operation.request.kind);
  kind.seconds.add(took.count());
  const uint64_t bytes = done.result == 0 ? open.operation.request.payload_bytes : 0;
  if (open.operation.request.kind == MARU_TIER_LOAD) note_load(bytes, now);
  if (done.result == 0) {
    kind.done.add();
    kind.bytes.add(bytes);
    if (open.operation.request.kind == MARU_TIER_STORE && bytes > 0 && took.count() > 0) {
      const double speed = double(bytes) / took.count();
      store_speed_ = store_speed_ == 0 ? speed : store_speed_ + kSpeedShare * (speed - store_speed_);
    }
  } else {
    (is_late ? kind.timed_out : done.result == -ENOENT ? kind.absent : kind.failed).add();
  }
  judge(open, done.result, now);
  // A copy: the callback may submit, and so move the open operations.
  const auto answered = open.operation.answered;
  answered(done);
}

void TierSlot::note_load(uint64_t bytes, Clock::time_point now) {
  --loads_under_way_;
  load_seconds_ += std::chrono::duration<double>(now - std::exchange(load_mark_, now)).count();
  load_bytes_ += double(bytes);
  if (load_seconds_ < kSpeedSeconds) return;
  load_seconds_ /= 2;
  load_bytes_ /= 2;
}

void TierSlot::judge(Open& open, int result, Clock::time_point now) {
  const uint32_t kind = open.operation.request.kind;
  if (kind == MARU_TIER_DELETE) return;
  uint32_t& failures = failures_[kind < failures_.size() ? kind : 0];
  if (is_healthy(result)) {
    failures = 0;
    if (std::ranges::all_of(failures_, [](uint32_t count) { return count < kBreakerFailures; })) pause_ = kBreakerPause;
    if (circuit_ == Circuit::kClosed || !open.is_trial) return;
    circuit_ = Circuit::kClosed;
    breaker_.set(0);
    if (circuit_changed) circuit_changed(false);
    return;
  }
  ++failures;
  if (open.is_trial) {
    pause_ = std::min(pause_ * 2, kBreakerPauseMax);
    circuit_ = Circuit::kOpen;
    circuit_until_ = now + pause_;
  } else if (circuit_ == Circuit::kClosed && failures >= kBreakerFailures) {
    // An operation of another kind had closed it.
    if (failures > kBreakerFailures) pause_ = std::min(pause_ * 2, kBreakerPauseMax);
    open_circuit(now);
  }
}

void TierSlot::open_circuit(Clock::time_point now) {
  circuit_ = Circuit::kOpen;
  circuit_until_ = now + pause_;
  breaker_.set(1);
  breaker_opened_.add();
  if (circuit_changed) circuit_changed(true);
}

}  // namespace maru::tierd
