// Requests that a tier has done and its user has not taken yet, and the descriptor that says so.
//
// Threads: any thread puts, one takes.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "maru/tier.h"

#include <deque>
#include <mutex>
#include <sys/eventfd.h>

namespace maru::tierd {

class Completions {
 public:
  Completions() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  bool is_open() const { return event_.is_open(); }
  int descriptor() const { return event_.get(); }

  void put(const maru_tier_completion& done) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = done_.empty();
      done_.push_back(done);
    }
    if (was_empty) eventfd_write(event_.get(), 1);
  }

  size_t take(maru_tier_completion* ret_done, size_t n) {
    const std::lock_guard lock(mutex_);
    size_t taken = 0;
    for (; taken < n && !done_.empty(); ++taken) {
      ret_done[taken] = done_.front();
      done_.pop_front();
    }
    // Cleared with the lock held: a thread that puts next sees an empty queue, and raises it again.
    eventfd_t ignored = 0;
    if (done_.empty()) eventfd_read(event_.get(), &ignored);
    return taken;
  }

 private:
  FileDescriptor event_;
  std::mutex mutex_;
  std::deque<maru_tier_completion> done_;
};

}  // namespace maru::tierd
