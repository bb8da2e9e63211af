#include "daemon/tierd/pool_follower.h"

#include "daemon/base/log.h"

#include <array>
#include <cstring>
#include <poll.h>

namespace maru::tierd {

namespace {

constexpr int kWaitMs = 200;   // for events, before the thread looks whether it shall end
constexpr int kRetryMs = 200;  // between tries to open a feed
constexpr const char* kPart = "feed";

bool is_deletion(uint32_t reason) {
  return reason == MARU_FOLLOW_BY_CLIENT || reason == MARU_FOLLOW_BY_ADMIN || reason == MARU_FOLLOW_BY_EXPIRY;
}

std::string bytes_of(const maru_key& key) { return {static_cast<const char*>(key.data ? key.data : ""), key.size}; }

}  // namespace

PoolFollower::PoolFollower(std::string socket_path, std::string pool, FeedQueue& queue,
                           maru::daemon::beside::Counters& counters, maru::daemon::beside::Health& health)
    : socket_path_(std::move(socket_path)),
      pool_(std::move(pool)),
      queue_(queue),
      health_(health),
      events_(counters.counter("maru_tier_feed_events_total", "Events of the pool that were read")),
      left_out_(counters.counter("maru_tier_feed_left_out_total",
                                 "Stored blocks that were not considered: the queue was full")),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

PoolFollower::~PoolFollower() {
  is_stopping_ = true;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

maru_follower* PoolFollower::open() {
  maru_follow_options options = {};
  options.size = sizeof(options);
  options.socket_path = socket_path_.empty() ? nullptr : socket_path_.c_str();
  options.pool = pool_.c_str();
  options.flags = MARU_FOLLOW_NO_METADATA;
  maru_follower* follower = nullptr;
  while (!is_stopping_) {
    const int result = maru_follow_open(&options, &follower);
    if (result == 0) break;
    const std::string trouble = "the pool " + pool_ + " cannot be followed (" + std::strerror(-result) +
                                "); blocks are not stored until marud answers";
    if (health_.set(kPart, trouble)) maru::daemon::log_warning("{}", trouble);
    pollfd wait = {stop_.get(), POLLIN, 0};
    ::poll(&wait, 1, kRetryMs);
  }
  if (follower && health_.clear(kPart)) maru::daemon::log_info("the pool {} is followed again", pool_);
  return follower;
}

void PoolFollower::run() {
  maru_follower* const follower = open();
  std::array<maru_follow_event, 256> events;
  while (follower && !is_stopping_) {
    const int found = maru_follow_next(follower, events.data(), events.size(), kWaitMs);
    if (found < 0) {
      if (health_.set(kPart, std::string("the feed is away (") + std::strerror(-found) + ")"))
        maru::daemon::log_warning("the feed of the pool {} is away ({}); it is tried again", pool_,
                                  std::strerror(-found));
      pollfd wait = {stop_.get(), POLLIN, 0};
      ::poll(&wait, 1, kRetryMs);
      continue;
    }
    health_.clear(kPart);
    for (int i = 0; i < found; ++i) take(events[size_t(i)]);
  }
  maru_follow_close(follower);
}

void PoolFollower::take(const maru_follow_event& event) {
  events_.add();
  FeedItem item;
  if (event.kind == MARU_FOLLOW_RESET) {
    item.kind = FeedItem::Kind::kReset;
    queue_.put(std::move(item));
    return;
  }
  const bool is_removal = event.kind == MARU_FOLLOW_REMOVED && is_deletion(event.reason);
  if (event.kind != MARU_FOLLOW_STORED && !is_removal) return;
  item.kind = is_removal ? FeedItem::Kind::kDeleted : FeedItem::Kind::kStored;
  item.block = event.block;
  item.key = bytes_of(event.key);
  item.key_kind = event.key.kind;
  item.tenant = event.key.tenant;
  item.parent = bytes_of(event.parent_key);
  item.parent_kind = event.parent_key.kind;
  item.parent_tenant = event.parent_key.tenant;
  if (event.tenant_name) item.tenant_name.assign(event.tenant_name, event.tenant_name_bytes);
  item.length = event.length;
  item.expires_ms = event.expires_ms;
  item.priority = event.priority;
  item.content_type = event.content_type;
  if (!queue_.put(std::move(item))) left_out_.add();
}

}  // namespace maru::tierd
