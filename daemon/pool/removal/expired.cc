#include "daemon/pool/removal/expired.h"

#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {

// Expired blocks that lookups met: a client that wants to store under such a key again waits for the whole tree below it, all
// of which has expired. The sweep comes there, too, in its time. Returns true when more work can be done right away.
bool Expired::step() {
  if (!recency_.met_expired.empty()) {
    std::vector<uint32_t> leaves;
    std::sort(recency_.met_expired.begin(), recency_.met_expired.end());
    recency_.met_expired.erase(std::unique(recency_.met_expired.begin(), recency_.met_expired.end()),
                               recency_.met_expired.end());
    for (const uint32_t page : recency_.met_expired) {
      const PageWord found = core_.word(page);
      if (core_.is_expired(page, found))
        leaves.push_back(page);
      else if (found.is(PageState::kReady) && core_.has_expired(page) && roots_.size() < kMetExpiredMax)
        roots_.push_back(PageRef::of(page, found.generation()));
    }
    recency_.met_expired.clear();
    evict(std::move(leaves), kSweepPagesPerTurn);
  }
  const bool has_more = !recency_.met_expired.empty();
  if (!walk_) {
    if (roots_.empty() || rests(core_.now_ms, again_ms_, kExpiredPauseMs)) return has_more;
    std::sort(roots_.begin(), roots_.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    roots_.erase(std::unique(roots_.begin(), roots_.end()), roots_.end());
    trees_.begin(walk_.emplace(), std::exchange(roots_, {}));
    walk_->reason = EvictReason::kExpired;
  }
  uint64_t budget = kTreeStepsPerTurn;
  if (!trees_.step(*walk_, budget)) return true;
  walk_.reset();
  again_ms_ = core_.now_ms + kExpiredPauseMs;
  return has_more;
}

void Expired::evict(std::vector<uint32_t> leaves, uint64_t limit) {
  std::vector<uint32_t> victims;
  std::vector<PageRef> parents;
  for (uint64_t lines = kHeldLinesAtOnce; !leaves.empty() && limit > 0 && lines > 0;) {
    const uint64_t cost = lanes_.look_lines();  // for each batch: clients may write meanwhile
    const uint64_t most = std::min<uint64_t>({limit, shm::kEvictBatchMax, std::max<uint64_t>(1, lines / cost)});
    const size_t count = std::min<uint64_t>(leaves.size(), most);
    limit -= count;
    lines -= std::min(lines, count * cost);
    victims.assign(leaves.end() - long(count), leaves.end());
    leaves.resize(leaves.size() - count);
    parents.clear();
    for (const uint32_t page : victims) {
      const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // checked below
      if (core_.region.is_page(parent) && regions_.owns_page(parent.page())) parents.push_back(parent);
    }
    evictor_.evict_pages(victims, EvictReason::kExpired);
    std::sort(parents.begin(), parents.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    for (const PageRef parent : parents) {
      const PageWord found = core_.word(parent.page());
      if (found.generation() == parent.generation() && core_.is_expired(parent.page(), found))
        leaves.push_back(parent.page());
    }
  }
  for (const uint32_t page : leaves)
    if (recency_.met_expired.size() < kMetExpiredMax) recency_.met_expired.push_back(page);
}

}  // namespace maru::daemon
