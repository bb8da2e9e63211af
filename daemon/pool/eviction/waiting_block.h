// A block that waits for the end of its pins: out of the queues of the eviction order, or RETIRED.
#pragma once

#include "libmaru/shm/blocks/pin.h"

namespace maru::daemon {

struct WaitingBlock {
  shm::PageRef ref;
  const AtomicU64* pin = nullptr;  // the slot where the last look saw a pin; null: none was seen

  // One load, where a look reads a line of each lane. False says nothing: other slots may hold the block.
  bool is_pinned_there() const { return pin != nullptr && shm::pins_page(*pin, ref.page()); }
};

}  // namespace maru::daemon
