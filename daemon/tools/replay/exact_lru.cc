#include "daemon/tools/replay/exact_lru.h"

namespace maru::replay {

uint64_t ExactLru::request(const trace::Request& request) {
  uint64_t hits = 0;
  for (const uint64_t id : request.hash_ids) {
    if (!present_.contains(id)) break;
    ++hits;
  }
  for (auto id = request.hash_ids.rbegin(); id != request.hash_ids.rend(); ++id) {
    if (const auto found = present_.find(*id); found != present_.end()) {
      hottest_first_.splice(hottest_first_.begin(), hottest_first_, found->second);
      continue;
    }
    if (capacity_ != 0 && present_.size() == capacity_) {
      present_.erase(hottest_first_.back());
      hottest_first_.pop_back();
      ++evicted_;
    }
    hottest_first_.push_front(*id);
    present_.emplace(*id, hottest_first_.begin());
  }
  return hits;
}

LruOutcome simulate_lru(const trace::Trace& trace, uint64_t capacity) {
  ExactLru lru(capacity);
  LruOutcome outcome;
  for (const trace::Request& request : trace.requests) outcome.hits += lru.request(request);
  outcome.evicted = lru.evicted();
  outcome.ratio = trace.block_references ? double(outcome.hits) / double(trace.block_references) : 0;
  return outcome;
}

}  // namespace maru::replay
