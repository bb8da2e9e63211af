// The monotonic clock. Where the kernel keeps it by the processor's counter, a look reads the counter alone, in a third of the
// time. Once a second the counter is compared with the clock, and its pace is that of all the time since the beginning. Where
// they disagree by a millisecond, as after a suspend, the clock alone counts from then on.
//
// Of two looks the later one may say some nanoseconds less, around a comparison. Thread safety: everything.
#pragma once

#include <atomic>
#include <cstdint>

namespace maru::record {

uint64_t clock_ns();

class Clock {
 public:
  Clock();  // takes 2 ms where the kernel uses the counter
  uint64_t now_ns();

 private:
  // ns + (counter - this counter) * pace / 2^32
  struct Anchor {
    uint64_t counter = 0, ns = 0, pace = 0;
    uint64_t at(uint64_t count) const {
      return ns + uint64_t((__int128_t(int64_t(count - counter)) * int64_t(pace)) >> 32);
    }
  };
  void compare();
  static Anchor look();

  std::atomic<bool> has_counter_{false};
  Anchor first_;
  // A thread that was stopped in the middle of a look uses the anchor of before: each lasts as long as the others do.
  Anchor anchors_[64];
  std::atomic<const Anchor*> anchor_{nullptr};
  uint64_t compared_ = 0;  // times
  std::atomic_flag is_comparing_ = ATOMIC_FLAG_INIT;
};

}  // namespace maru::record
