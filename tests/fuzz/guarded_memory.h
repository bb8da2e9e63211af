// Memory with a margin behind it that nothing may write, so that a write beyond is seen also without a sanitizer.
#pragma once

#include "tests/fuzz/target.h"

#include <algorithm>
#include <string_view>

namespace maru::fuzz {

class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_(bytes + kMargin, kUntouched) {}

  uint8_t* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size() - kMargin; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), size()}; }
  void must_be_whole(const char* what) const {
    must(std::all_of(bytes_.end() - kMargin, bytes_.end(), [](uint8_t byte) { return byte == kUntouched; }), what);
  }

 private:
  static constexpr ptrdiff_t kMargin = 64;
  static constexpr uint8_t kUntouched = 0xA5;

  std::vector<uint8_t> bytes_;
};

}  // namespace maru::fuzz
