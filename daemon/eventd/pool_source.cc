#include "daemon/eventd/pool_source.h"

#include "daemon/base/log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <pthread.h>

namespace maru::eventd {
namespace {

constexpr std::chrono::seconds kRetry{1};
constexpr std::chrono::milliseconds kWait{1000};
constexpr std::chrono::seconds kDamagePause{60};  // clients cause these lines

// The remedy for an administrator.
const char* advice(int code) {
  switch (code) {
    case ENOENT: return "no such pool, or no marud at this socket; the names of pools are in marud.toml";
    case ECONNREFUSED:
    case ETIMEDOUT: return "marud does not answer; it is tried again";
    case EACCES:
      return "the pool's users, groups, readers and reader_groups in marud.toml do not name this program's user";
    case ENODEV: return "the pool is not open yet";
    case EIO: return "marud has fenced the pool";
    case EPROTO: return "marud speaks another version of the protocol; install marud and this program from one release";
    case EDQUOT: return "this program's user is at a limit of its own; see [limits] in marud.toml";
    case ENOSPC: return "marud has no memory for a feed";
    default: return "it is tried again";
  }
}

daemon::beside::Counters::Labels labels_of(const StreamSettings& stream, const PoolSettings& pool) {
  return {{"stream", stream.name}, {"pool", pool.label}};
}

}  // namespace

PoolSource::PoolSource(uint32_t source, const StreamSettings& stream, const PoolSettings& pool, Letters& letters,
                       daemon::beside::Counters& counters, daemon::beside::Health& health)
    : source_(source),
      pool_(pool),
      part_("stream " + stream.name + ", pool " + pool.label),
      letters_(letters),
      health_(health),
      translator_({stream.medium, stream.tells_hashes_alone, stream.tenants}),
      resets_(counters.counter("maru_eventd_snapshots_total", "Snapshots of the pool that were taken.",
                               labels_of(stream, pool))),
      overruns_(counters.counter("maru_eventd_overruns_total",
                                 "Snapshots that were taken because events came faster than they were published.",
                                 labels_of(stream, pool))),
      without_tokens_(counters.counter("maru_eventd_without_tokens_total",
                                       "Blocks that were stored without tokens in their metadata.",
                                       labels_of(stream, pool))),
      damaged_(counters.counter("maru_eventd_damaged_metadata_total",
                                "Blocks whose metadata begins as that of tokens and is none.",
                                labels_of(stream, pool))),
      blocks_(counters.gauge("maru_eventd_pool_blocks", "Blocks of the pool, as far as is known.",
                             labels_of(stream, pool))),
      thread_([this] { run(); }) {}

PoolSource::~PoolSource() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    if (follower_) follower_->wake();
  }
  stop_.notify_all();
  thread_.join();
}

bool PoolSource::wait_a_while() {
  std::unique_lock lock(mutex_);
  stop_.wait_for(lock, kRetry, [this] { return is_stopping(); });
  return !is_stopping();
}

void PoolSource::tell_trouble(int code) {
  const std::string text = std::string(std::strerror(code)) + ": " + advice(code);
  if (health_.set(part_, text)) daemon::log_warning("{}: {}", part_, text);
}

// The pool is gone with its blocks.
void PoolSource::tell_end() {
  if (std::exchange(is_empty_, true)) return;
  std::vector<SourcedChange> letters;
  letters.push_back({source_, {PoolChange::Kind::kReset, 0, {}}});
  letters.push_back({source_, {PoolChange::Kind::kCurrent, 0, {}}});
  letters_.put(std::move(letters));
}

void PoolSource::run() {
  ::pthread_setname_np(::pthread_self(), "pool");
  maru_follow_options options = {};
  options.size = sizeof(options);
  options.socket_path = pool_.socket_path.empty() ? nullptr : pool_.socket_path.c_str();
  options.pool = pool_.name.c_str();
  while (!is_stopping()) {
    auto opened = Follower::open(&options);
    if (!opened.ok()) {
      tell_trouble(opened.error());
      if (opened.error() == ENOENT) tell_end();
      wait_a_while();
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      follower_.emplace(std::move(*opened));
    }
    follow(*follower_);
    const std::lock_guard lock(mutex_);
    follower_.reset();
  }
}

void PoolSource::follow(Follower& follower) {
  while (!is_stopping()) {
    const auto events = follower.next(kWait);
    if (!events.ok()) {
      tell_trouble(events.error());
      if (events.error() == ENOENT) {
        tell_end();
        return;
      }
      // Whether it waited depends on the error.
      if (!wait_a_while()) return;
      continue;
    }
    take(*events);
    const maru_follow_status status = follower.status();
    if (status.is_connected != 0 && status.is_current != 0 && health_.clear(part_))
      daemon::log_info("{}: followed again", part_);
    blocks_.set(status.blocks);
  }
}

void PoolSource::take(std::span<const FollowEvent> events) {
  std::vector<SourcedChange> letters;
  for (const FollowEvent& event : events) {
    if (event.is(MARU_FOLLOW_RESET)) {
      resets_.add();
      if (event.reason == MARU_FOLLOW_OVERRUN) overruns_.add();
      daemon::log_info("{}: a snapshot begins ({})", part_, event.reason_name());
    }
    if (event.is(MARU_FOLLOW_CURRENT)) daemon::log_info("{}: the snapshot is complete", part_);
    is_empty_ = event.is(MARU_FOLLOW_RESET) || (is_empty_ && !event.is(MARU_FOLLOW_STORED));
    if (auto change = translator_.translate(event)) letters.push_back({source_, std::move(*change)});
  }
  without_tokens_.set(translator_.without_tokens());
  damaged_.set(translator_.damaged());
  if (const auto now = Clock::now(); translator_.damaged() != told_damaged_ && now >= damage_due_) {
    told_damaged_ = translator_.damaged();
    damage_due_ = now + kDamagePause;
    daemon::log_warning("{}: {}; the block is announced by a hash of its key alone ({} such blocks so far)", part_,
                        daemon::printable(translator_.last_damage()), told_damaged_);
  }
  if (!letters.empty()) letters_.put(std::move(letters));
}

}  // namespace maru::eventd
