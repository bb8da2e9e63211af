// Arithmetic on 64 bits that remembers when a result did not fit.
#pragma once

#include <cstdint>

namespace maru::layout {

class Checked {
 public:
  constexpr Checked(uint64_t value) : value_(value) {}

  friend constexpr Checked operator*(Checked a, Checked b) {
    Checked result(0);
    const bool is_over = __builtin_mul_overflow(a.value_, b.value_, &result.value_);
    return result.with(is_over || a.is_over_ || b.is_over_);
  }
  friend constexpr Checked operator+(Checked a, Checked b) {
    Checked result(0);
    const bool is_over = __builtin_add_overflow(a.value_, b.value_, &result.value_);
    return result.with(is_over || a.is_over_ || b.is_over_);
  }
  // To a power of two.
  constexpr Checked aligned(uint64_t alignment) const {
    Checked result = *this + (alignment - 1);
    result.value_ &= ~(alignment - 1);
    return result;
  }

  constexpr bool fits(uint64_t most) const { return !is_over_ && value_ <= most; }
  // Means nothing unless it fits.
  constexpr uint64_t value() const { return value_; }

 private:
  constexpr Checked with(bool is_over) {
    is_over_ = is_over;
    return *this;
  }

  uint64_t value_;
  bool is_over_ = false;
};

}  // namespace maru::layout
