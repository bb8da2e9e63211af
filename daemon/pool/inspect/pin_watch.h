// Pins that people look at: which process holds which block, for how long, and which pins are overdue. Nothing here ends a pin:
// only its owner does, or proof that its owner is dead (reclaim/reclaim.h).
//
// A pin is overdue when the process has held its block for `pin_overdue_ms` and no process has used the block anew in that
// time. The slot of a pin says which block it holds and not since when. So a block that a process pins again and again would
// look like one long pin; its uses tell the two apart. A forgotten pin on a block in steady use is noticed when the use ends;
// until then the block would not have been evicted anyway.
//
//   (1) A pin never moves to another slot, so its age is the age of the slot's content.
//
// Cost: a slot is a word; a look reads a bounded number of them.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace maru::daemon {

class PinWatch {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    PinAges& pin_ages;
    PoolTenants& tenants;
    Queues& queues;
  };
  explicit PinWatch(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        pin_ages_(below.pin_ages),
        tenants_(below.tenants),
        queues_(below.queues) {}
  PinWatch(const PinWatch&) = delete;
  PinWatch& operator=(const PinWatch&) = delete;

  // Looks at the next slots. An age is known as exactly as the looks are frequent.
  void look(uint64_t slots);
  uint64_t overdue() const;
  uint64_t overdue_total() const { return overdue_total_; }
  // The pins that have become overdue since the last question. Each pin is named once.
  OverduePins take_news() { return std::exchange(news_, {}); }
  struct PinSummary {
    uint64_t pins = 0, overdue = 0;
    std::optional<uint64_t> oldest_ms;
  };
  PinSummary pins_of(uint32_t lane) const;
  nlohmann::json list(const nlohmann::json& request);

 private:
  PageRef pin_in(uint32_t lane, uint64_t slot) const;
  const PinAge* age_of(uint32_t lane, uint64_t slot, PageRef ref) const;
  bool is_overdue(const PinAge& age) const;
  void count_overdue(uint32_t lane, PinAge& age);

  PoolCore& core_;
  LaneTable& lanes_;
  PinAges& pin_ages_;
  PoolTenants& tenants_;
  Queues& queues_;
  uint64_t next_ = 0;   // slot
  uint64_t count_ = 0;  // of the lane that is being looked at
  uint64_t overdue_total_ = 0;
  OverduePins news_;  // not logged yet
};

}  // namespace maru::daemon
