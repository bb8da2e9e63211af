// A hosted pool on its way out: drained, left by its clients, closed; or called back.
#include "daemon/hosting/hosted_pool.h"
#include "daemon/system/notify.h"

#include <cerrno>
#include <chrono>
#include <system_error>

namespace maru::daemon {

Result<void> HostedPool::may_drain() const {
  if (condition_ == Condition::kDraining || condition_ == Condition::kServing) return {};
  const std::string found = condition_ == Condition::kLeaving   ? "being removed"
                            : condition_ == Condition::kWaiting ? "waiting for its memory"
                                                                : "not serving";
  return failure(EBUSY, "pool \"" + name() + "\" cannot be drained: found it " + found + ", expected it to serve" +
                            (condition_ == Condition::kWaiting
                                 ? "; marudctl device remove " + name() + " --yes gives its blocks up"
                                 : ""));
}

// First the file was written: a marud that dies now goes on draining, which an administrator can cancel.
Result<void> HostedPool::drain(uint64_t now_ms) {
  if (auto may = may_drain(); !may || condition_ == Condition::kDraining) return may;
  condition_ = Condition::kDraining;
  stays_because_.clear();
  pool_->set_draining(true, now_ms);
  return {};
}

Result<void> HostedPool::may_cancel() const {
  if (ending_.is_begun())
    return failure(EBUSY, "pool \"" + name() + "\" is removed already: its device is being closed");
  if (condition_ == Condition::kServing || condition_ == Condition::kDraining || condition_ == Condition::kLeaving)
    return {};
  return failure(EBUSY, "pool \"" + name() + "\" neither drains nor leaves");
}

Result<void> HostedPool::cancel(uint64_t now_ms) {
  if (auto may = may_cancel(); !may || condition_ == Condition::kServing) return may;
  stays_because_.clear();
  condition_ = fenced_because_.empty() ? Condition::kServing : Condition::kFenced;
  if (!serving()) return {};
  // Clients that were asked to leave do so all the same, and may attach again.
  pool_->set_draining(false, now_ms);
  return {};
}

// A pool that waits for its memory has no clients, and so is gone at once.
Result<void> HostedPool::leave(uint64_t deadline_ms, bool fences) {
  leave_ = {deadline_ms, fences, false,
            condition_ == Condition::kDraining || (condition_ == Condition::kLeaving && leave_.was_draining)};
  condition_ = Condition::kLeaving;
  stays_because_.clear();
  return {};
}

void HostedPool::stay(const std::string& why) {
  condition_ = !fenced_because_.empty() ? Condition::kFenced
               : leave_.was_draining    ? Condition::kDraining
                                        : Condition::kServing;
  stays_because_ = why;
  log_warning("pool \"{}\" is not removed: {} (marudctl device remove {} --fence ends them)", name(), why, name());
}

// A large part is written out on a thread, so that closing, which writes out the changes since, is short.
bool HostedPool::is_written_out() {
  if (!serving() || pool_->device().kind() != "file" || spec_.pool.sharing.is_shared || !written_) return true;
  if (!writing_.valid()) {
    try {
      writing_ = std::async(std::launch::async, [&device = pool_->device()] { return device.write_out(); });
    } catch (const std::system_error&) {
      return true;  // without a thread closing takes as long as it takes
    }
  }
  if (writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
  written_ = writing_.get();
  return true;
}

bool HostedPool::is_writing_limits() const {
  // A fenced pool gets no turns: no turn takes a written limit, and the limits that wait behind it are not begun.
  return pool_ && (serving() ? pool_->is_writing_limits() : pool_->has_limits_writer());
}

void HostedPool::close() {
  if (!serving()) return;
  // The kernel reports once that it could not write something.
  const auto closed = written_ ? pool_->close() : written_;
  if (!closed) log_error("pool \"{}\" is not left in order: {}", name(), closed.error().text());
}

// The pool is the thread's from here on. A marud that dies meanwhile may find its added pools again, and removes nothing twice.
void HostedPool::begin_end() {
  const std::string device = pool_ ? pool_->device().name() : "memory";
  const bool is_serving = serving() != nullptr;
  auto work = [pool = std::shared_ptr<Pool>(std::move(pool_)), written = written_, is_serving, device, state = state_,
               name = name(), is_memory = spec_.backend == Backend::kMemory]() mutable {
    Ended ended;
    ended.device = device;
    // The kernel reports once that it could not write something.
    if (is_serving) ended.closed = written ? pool->close() : written;
    pool.reset();
    if (is_memory) state.remove(name);
    ended.undrained = state.save_draining(name, false);
    ended.forgotten = state.forget_added(name);
    return ended;
  };
  ending_.begin(std::move(work), {device, failure(ENOMEM, "close " + device), {}, {}});
}

bool HostedPool::has_ended() {
  if (!ending_.is_begun()) begin_end();
  const auto ended = ending_.take();
  if (!ended) return false;
  condition_ = Condition::kGone;
  if (is_stored_) forget_stored();
  is_stored_ = false;
  if (!ended->closed) log_error("pool \"{}\" is not left in order: {}", name(), ended->closed.error().text());
  if (!ended->undrained) log_error("pool \"{}\": {}", name(), ended->undrained.error().text());
  if (!ended->forgotten)
    log_error("pool \"{}\" comes back when marud is started anew: {}", name(), ended->forgotten.error().text());
  log_info("pool \"{}\" is removed: {} is closed and may be used by others", name(), ended->device);
  return true;
}

}  // namespace maru::daemon
