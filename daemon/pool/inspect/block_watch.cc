#include "daemon/pool/inspect/block_watch.h"

#include <utility>

namespace maru::daemon {

void BlockWatch::came(uint32_t page, uint32_t generation, const Block& block) {
  lives_.get()[page] = mark(generation);
  names_.erase(page);
  if (names_.size() < kNamesMax) names_.emplace(page, block);
}

BlockWatch::Block BlockWatch::went(uint32_t page) {
  lives_.get()[page] = 0;
  const auto found = names_.find(page);
  if (found == names_.end()) return {};
  Block block = std::move(found->second);
  names_.erase(found);
  return block;
}

void BlockWatch::add(Event event) {
  events_.push_back(std::move(event));
  ++next_;
  if (events_.size() > kEventsMax) events_.pop_front();
}

}  // namespace maru::daemon
