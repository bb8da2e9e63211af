// follow.h for C++20: an owner for a follower, and events as a range. Header only, needs no exceptions.
//
//   Outcome<Follower> follower = Follower::open();
//   for (;;) {
//     Outcome<std::span<const FollowEvent>> events = follower->next(std::chrono::seconds(1));
//     if (!events.ok()) continue;                          // marud does not answer: the next call tries again
//     for (const FollowEvent& event : *events) index(event);
//   }
#ifndef MARU_FOLLOW_HPP
#define MARU_FOLLOW_HPP

#include <maru/follow.h>
#include <maru/maru.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace maru {
inline namespace api_0 {

// maru_follow_event with views of its bytes, which are valid until the next call with the follower.
struct FollowEvent : maru_follow_event {
  std::string_view key_bytes() const { return {static_cast<const char*>(key.data), key.size}; }
  std::string_view parent_key_bytes() const { return {static_cast<const char*>(parent_key.data), parent_key.size}; }
  std::string_view tenant() const { return {tenant_name, tenant_name_bytes}; }
  std::span<const std::byte> metadata_span() const { return {static_cast<const std::byte*>(metadata), metadata_bytes}; }
  std::string_view reason_name() const { return maru_follow_reason_name(reason); }
  bool is(maru_follow_kind wanted) const { return kind == wanted; }
  bool is_in_snapshot() const { return (flags & MARU_FOLLOW_IN_SNAPSHOT) != 0; }
};
static_assert(sizeof(FollowEvent) == sizeof(maru_follow_event),
              "an array of FollowEvent is passed to maru_follow_next");

class Follower {
 public:
  static constexpr size_t kEventsAtOnce = 256;

  // Errors: of maru_follow_open.
  static Outcome<Follower> open(const maru_follow_options* options = nullptr) {
    maru_follower* made = nullptr;
    if (const int code = maru_follow_open(options, &made); code < 0) return Failed{-code};
    Follower follower;
    follower.follower_ = made;
    follower.events_.reset(new (std::nothrow) std::array<FollowEvent, kEventsAtOnce>);
    if (!follower.events_) return Failed{ENOMEM};
    return follower;
  }
  Follower(Follower&& other) noexcept
      : follower_(std::exchange(other.follower_, nullptr)), events_(std::move(other.events_)) {}
  Follower& operator=(Follower&& other) noexcept {
    if (this != &other) {
      maru_follow_close(follower_);
      follower_ = std::exchange(other.follower_, nullptr);
      events_ = std::move(other.events_);
    }
    return *this;
  }
  ~Follower() { maru_follow_close(follower_); }

  // The next events, none when the time is over or wake() was called. Valid until the next call. A negative time waits for as
  // long as it takes.
  Outcome<std::span<const FollowEvent>> next(std::chrono::milliseconds wait) {
    const int ms = wait.count() < 0 ? -1 : wait.count() > INT32_MAX ? INT32_MAX : static_cast<int>(wait.count());
    const int found = maru_follow_next(follower_, events_->data(), events_->size(), ms);
    if (found < 0) return Failed{-found};
    return std::span<const FollowEvent>(events_->data(), static_cast<size_t>(found));
  }
  // From any thread.
  void wake() const { maru_follow_wake(follower_); }
  maru_follow_status status() const {
    maru_follow_status status = {};
    status.size = sizeof(status);
    maru_follow_get_status(follower_, &status);
    return status;
  }
  maru_follower* get() const { return follower_; }

 private:
  Follower() = default;
  maru_follower* follower_ = nullptr;
  std::unique_ptr<std::array<FollowEvent, kEventsAtOnce>> events_;
};

}  // namespace api_0
}  // namespace maru

#endif
