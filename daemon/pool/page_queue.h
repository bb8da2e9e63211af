// Pages that wait for a step of marud, in the order in which they came. The queue has each page once, so a client that
// scribbles over shared memory cannot make the queue longer than the pool.
#pragma once

#include "daemon/base/page_bits.h"

#include <cstddef>
#include <cstdint>
#include <deque>

namespace maru::daemon {

class PageQueue {
 public:
  void resize(uint64_t pages) {
    waits_.resize(pages);
    queue_.clear();
  }
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  void add(uint32_t page) {
    if (waits_.has(page)) return;
    waits_.add(page);
    queue_.push_back(page);
    ++came_;
  }
  uint32_t take() {
    const uint32_t page = queue_.front();
    queue_.pop_front();
    waits_.remove(page);
    return page;
  }
  // How many have come, and have been taken, since the beginning: all that came until now is done when as many are
  // taken.
  uint64_t came() const { return came_; }
  uint64_t taken() const { return came_ - queue_.size(); }

 private:
  PageBits waits_;
  std::deque<uint32_t> queue_;
  uint64_t came_ = 0;
};

}  // namespace maru::daemon
