// Since when each pin lasts, as far as marud has looked: hints for people, kept by slot. inspect/pin_watch.h fills them.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace maru::daemon {

struct PinAge {
  uint64_t ref;
  uint64_t since_ms;
  bool is_counted = false;  // as overdue
};

struct PinAges {
  std::unordered_map<uint64_t, PinAge> by_slot;  // by lane << 32 | slot

  void forget_lane(uint32_t lane) {
    std::erase_if(by_slot, [&](const auto& age) { return age.first >> 32 == lane; });
  }
};

}  // namespace maru::daemon
