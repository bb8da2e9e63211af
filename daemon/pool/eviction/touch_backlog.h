// Touches that were read from the rings and are not applied yet. They come out in the order of their ticks, as if the touches
// of many lanes, read slice by slice, had been sorted all at once. Among touches of one tick the order of add() holds.
//
// Thread safety: one thread. Memory of marud's own; if marud dies, the touches in it are lost, which are hints.
#pragma once

#include "libmaru/shm/blocks/touch.h"

#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

namespace maru::daemon {

class TouchBacklog {
 public:
  bool empty() const { return runs_.empty(); }
  size_t size() const { return size_; }
  // In any order. May throw std::bad_alloc, and then holds its old touches.
  void add(std::span<const shm::Touch> touches);
  // Takes the oldest touches, `limit` at most, into `ret_touches`, whose old content goes.
  void take(size_t limit, std::vector<shm::Touch>& ret_touches);

 private:
  struct Run {
    std::vector<shm::Touch> touches;  // sorted
    size_t next = 0;                  // not taken
  };
  struct Head {
    uint64_t tick;
    size_t run;
    friend auto operator<=>(const Head&, const Head&) = default;
  };
  std::vector<Run> runs_;  // none when all are taken
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  size_t size_ = 0;
};

}  // namespace maru::daemon
