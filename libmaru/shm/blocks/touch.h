// Touches: a hit leaves the page and the time in a ring of the reader's lane; marud reads the rings and tells the pool's
// policy. The ring overwrites: neither side waits, and touches that were overwritten before marud read them are counted.
//
// An entry carries the lap of the ring in one bit. So the reader does not take the old entry for an entry that is counted and
// not yet written. Thread safety: leave() by any thread of the lane's client; TouchReader by marud's thread.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstdint>

namespace maru::shm {

struct Touch {
  uint32_t page = 0;
  uint64_t tick = 0;  // milliseconds since the pool was made
};

void leave_touch(const LaneView& lane, uint32_t page, uint64_t tick_ms);

// marud's private cursor into the ring of one lane.
class TouchReader {
 public:
  // Reads at most `limit` touches, oldest first; now_ms (a tick) completes the short ticks of the entries. Returns how many
  // were put into ret_touches; pages beyond `pages` are dropped.
  size_t read(const LaneView& lane, uint64_t now_tick_ms, uint64_t pages, Touch* ret_touches, size_t limit);
  uint64_t lost() const { return lost_; }
  // Touches of this lane that were read, or are lost.
  uint64_t cursor() const { return cursor_; }
  // For a new client of the lane: starts with the present content of the ring.
  void restart() { *this = {}; }
  // For a new marud: goes on at the last marud's place, as the lane's header says.
  void resume(uint64_t cursor) { *this = {}, cursor_ = cursor; }

 private:
  uint64_t cursor_ = 0;
  uint64_t lost_ = 0;
  uint64_t stuck_at_ = 0;  // cursor at which an entry was counted and not written
  uint32_t stuck_times_ = 0;
};

}  // namespace maru::shm
