// Work of many users for one thread. Next is the waiting user with the least of the thread's time so far. So a user with one
// piece of work after a pause waits for the piece in progress and for one piece of each other user. It does not matter how many
// pieces the others bring. Users that always bring more share the time equally. When no user waits, the queue forgets the
// times. This is start-time fair queuing (Goyal, Vin and Cheng, "Start-time Fair Queueing", 1996). The queue counts the time
// that work has taken, as it knows no length before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace maru::daemon {

template <typename Key, typename Work>
class FairQueue {
 public:
  void push(const Key& key, Work work) {
    Line& line = lines_[key];
    if (line.works.empty()) {
      // A user who was away has no time in hand from then, and a user with more than the others just now still has it.
      if (line.used < floor_) line.used = floor_;
      order_.emplace(line.used, key);
    }
    line.works.push_back(std::move(work));
  }

  bool empty() const { return order_.empty(); }
  // Pieces of work that wait under this key.
  size_t size(const Key& key) const {
    const auto found = lines_.find(key);
    return found == lines_.end() ? 0 : found->second.works.size();
  }
  size_t keys() const { return lines_.size(); }

  // Takes the next piece of work out and does it: serve(Work&&) returns the time that this took, in any unit, the same every
  // time. It may push. The queue is not empty.
  template <typename Serve>
  void serve_next(Serve&& serve) {
    const auto [used, key] = *order_.begin();
    order_.erase(order_.begin());
    floor_ = used;
    Line& line = lines_[key];  // stays where it is: only forget() removes lines
    Work work = std::move(line.works.front());
    line.works.pop_front();
    if (!line.works.empty()) order_.emplace(used, key);
    const uint64_t time = serve(std::move(work));
    if (!line.works.empty()) order_.erase({line.used, key});
    line.used += time;
    if (!line.works.empty()) order_.emplace(line.used, key);
    forget();
  }

 private:
  struct Line {
    uint64_t used = 0;  // never less than floor_ while something waits
    std::deque<Work> works;
  };

  // Lines without work are kept while they have had more than the others that wait; when none waits, nothing is owed.
  void forget() {
    if (order_.empty()) {
      lines_.clear();
      floor_ = 0;
    } else if (lines_.size() >= sweep_at_) {
      std::erase_if(lines_,
                    [&](const auto& entry) { return entry.second.works.empty() && entry.second.used <= floor_; });
      sweep_at_ = 2 * lines_.size() + kSweepMin;
    }
  }

  std::map<Key, Line> lines_;
  std::set<std::pair<uint64_t, Key>> order_;  // the lines with work, by the time they used
  uint64_t floor_ = 0;                        // the time that the line served last had used
  static constexpr size_t kSweepMin = 32;
  size_t sweep_at_ = kSweepMin;  // lines
};

}  // namespace maru::daemon
