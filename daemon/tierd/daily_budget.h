// Bytes a day that may be written, for devices that wear out. An hour's share may be used at once; an unused share is not saved
// for later.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace maru::tierd {

class DailyBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `bytes_a_day`: 0 for no limit.
  DailyBudget(uint64_t bytes_a_day, Time now) : rate_(double(bytes_a_day) / 86'400), left_(most()), last_(now) {}

  // A write may take more than is left, so that large blocks are not left out for ever; the next writes then wait for it.
  bool take(uint64_t bytes, Time now) {
    if (rate_ == 0) return true;
    left_ = std::min(left_ + rate_ * std::chrono::duration<double>(now - last_).count(), most());
    last_ = now;
    if (left_ <= 0) return false;
    left_ -= double(bytes);
    return true;
  }

 private:
  double most() const { return rate_ * 3600; }

  const double rate_;  // bytes a second
  double left_;
  Time last_;
};

}  // namespace maru::tierd
