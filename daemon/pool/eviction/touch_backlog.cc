#include "daemon/pool/eviction/touch_backlog.h"

#include <algorithm>

namespace maru::daemon {

void TouchBacklog::add(std::span<const shm::Touch> touches) {
  if (touches.empty()) return;
  Run run = {{touches.begin(), touches.end()}, 0};
  std::stable_sort(run.touches.begin(), run.touches.end(),
                   [](const shm::Touch& a, const shm::Touch& b) { return a.tick < b.tick; });
  runs_.reserve(runs_.size() + 1);
  heads_.push({run.touches.front().tick, runs_.size()});
  runs_.push_back(std::move(run));
  size_ += touches.size();
}

void TouchBacklog::take(size_t limit, std::vector<shm::Touch>& ret_touches) {
  ret_touches.clear();
  ret_touches.reserve(std::min(limit, size_));
  while (!heads_.empty() && ret_touches.size() < limit) {
    const Head head = heads_.top();
    heads_.pop();
    Run& run = runs_[head.run];
    // As far as it is the oldest of all, without asking the others for each.
    const Head next = heads_.empty() ? Head{UINT64_MAX, SIZE_MAX} : heads_.top();
    while (run.next < run.touches.size() && ret_touches.size() < limit &&
           Head{run.touches[run.next].tick, head.run} < next)
      ret_touches.push_back(run.touches[run.next++]);
    if (run.next < run.touches.size())
      heads_.push({run.touches[run.next].tick, head.run});
    else
      run.touches = {};
  }
  size_ -= ret_touches.size();
  if (size_ == 0) runs_.clear();
}

}  // namespace maru::daemon
