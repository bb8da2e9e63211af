// The C interface of follow.h over Follower: arguments are checked here, errors become -errno, and no exception leaves.
#include "libmaru/follow/follower.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

using maru::follow::Follower;

struct maru_follower {
  Follower follower;
};

namespace {

constexpr uint32_t kTimeoutMs = 5000;
constexpr size_t kEventsMax = 1u << 20;

}  // namespace

const char* maru_follow_reason_name(uint32_t reason) {
  switch (reason) {
    case MARU_FOLLOW_NO_REASON: return "";
    case MARU_FOLLOW_BY_CLIENT: return "client";
    case MARU_FOLLOW_BY_REQUEST: return "request";
    case MARU_FOLLOW_BY_BACKGROUND: return "background";
    case MARU_FOLLOW_BY_TAKEOVER: return "takeover";
    case MARU_FOLLOW_BY_EXPIRY: return "expired";
    case MARU_FOLLOW_BY_ADMIN: return "admin";
    case MARU_FOLLOW_BY_BAD_MEMORY: return "bad memory";
    case MARU_FOLLOW_BY_HOST: return "host";
    case MARU_FOLLOW_BEGIN: return "begin";
    case MARU_FOLLOW_OVERRUN: return "overrun";
    case MARU_FOLLOW_RESTART: return "restart";
    case MARU_FOLLOW_DAMAGE: return "damage";
    default: return "unknown";
  }
}

int maru_follow_open(const maru_follow_options* options, maru_follower** ret_follower) {
  if (ret_follower == nullptr) return -EINVAL;
  maru_follow_options wishes = {};
  if (options) {
    if (options->size < offsetof(maru_follow_options, reserved) || options->size > sizeof(wishes)) return -EINVAL;
    std::memcpy(&wishes, options, options->size);
    if ((wishes.flags & ~uint32_t(MARU_FOLLOW_NO_METADATA)) != 0 ||
        std::any_of(std::begin(wishes.reserved), std::end(wishes.reserved), [](uint64_t r) { return r != 0; }))
      return -EINVAL;
  }
  try {
    Follower::Options own;
    own.socket_path = wishes.socket_path ? wishes.socket_path : maru::wire::default_socket_path();
    own.pool = wishes.pool ? wishes.pool : "default";
    if (!maru::wire::is_pool_name(own.pool)) return -EINVAL;
    own.timeout_ms = wishes.timeout_ms != 0 ? wishes.timeout_ms : kTimeoutMs;
    own.reads_metadata = (wishes.flags & MARU_FOLLOW_NO_METADATA) == 0;
    std::unique_ptr<maru_follower> made(new maru_follower{Follower(std::move(own))});
    if (auto connected = made->follower.connect(); !connected) return -connected.error().code;
    *ret_follower = made.release();
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

void maru_follow_close(maru_follower* follower) { delete follower; }

int maru_follow_next(maru_follower* follower, maru_follow_event* ret_events, size_t events_max, int timeout_ms) {
  if (follower == nullptr || ret_events == nullptr || events_max == 0 || timeout_ms < -1) return -EINVAL;
  if (follower->follower.is_child()) return -ECHILD;
  try {
    return follower->follower.next({ret_events, std::min(events_max, kEventsMax)}, timeout_ms);
  } catch (const std::bad_alloc&) {
    follower->follower.forget_all();
    return -ENOMEM;
  }
}

void maru_follow_wake(maru_follower* follower) {
  if (follower) follower->follower.wake();
}

int maru_follow_get_status(const maru_follower* follower, maru_follow_status* ret_status) {
  if (follower == nullptr || ret_status == nullptr || ret_status->size < sizeof(size_t) ||
      ret_status->size > sizeof(maru_follow_status))
    return -EINVAL;
  const size_t size = ret_status->size;
  maru_follow_status status = follower->follower.status();
  status.size = size;
  std::memcpy(ret_status, &status, size);
  return 0;
}
