#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {

// Expired blocks that lookups met: whoever wants to store under such a key again waits for the whole tree below it, all of
// which has expired. The sweep comes there, too, in its time. Returns true when there is more to do right away.
bool Pool::State::step_expired() {
  if (!recency.met_expired.empty()) {
    std::vector<uint32_t> leaves;
    std::sort(recency.met_expired.begin(), recency.met_expired.end());
    recency.met_expired.erase(std::unique(recency.met_expired.begin(), recency.met_expired.end()),
                              recency.met_expired.end());
    for (const uint32_t page : recency.met_expired) {
      const PageWord found = core.word(page);
      if (core.is_expired(page, found))
        leaves.push_back(page);
      else if (found.is(PageState::kReady) && core.has_expired(page) && expired_roots.size() < kMetExpiredMax)
        expired_roots.push_back(PageRef::of(page, found.generation()));
    }
    recency.met_expired.clear();
    evict_expired(std::move(leaves), kSweepPagesPerTurn);
  }
  const bool has_more = !recency.met_expired.empty();
  if (!expired_walk) {
    if (expired_roots.empty() || rests(core.now_ms, expired_again_ms, kExpiredPauseMs)) return has_more;
    std::sort(expired_roots.begin(), expired_roots.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    expired_roots.erase(std::unique(expired_roots.begin(), expired_roots.end()), expired_roots.end());
    begin_tree(expired_walk.emplace(), std::exchange(expired_roots, {}));
    expired_walk->reason = EvictReason::kExpired;
  }
  uint64_t budget = kTreeStepsPerTurn;
  if (!step_tree(*expired_walk, budget)) return true;
  expired_walk.reset();
  expired_again_ms = core.now_ms + kExpiredPauseMs;
  return has_more;
}

// Expired blocks without children, and what is above them as far as that becomes childless and is expired, too: the key of an
// expired root is not free before the root is, and nobody may take it away before its children. At most `limit`, and no more
// than a turn may cost: each is a look at all lanes, where clients say how much there is to read. The rest is for later turns.
void Pool::State::evict_expired(std::vector<uint32_t> leaves, uint64_t limit) {
  std::vector<uint32_t> victims;
  std::vector<PageRef> parents;
  for (uint64_t lines = kHeldLinesAtOnce; !leaves.empty() && limit > 0 && lines > 0;) {
    const uint64_t cost = lanes.look_lines();  // for each batch: clients may write meanwhile
    const uint64_t most = std::min<uint64_t>({limit, shm::kEvictBatchMax, std::max<uint64_t>(1, lines / cost)});
    const size_t count = std::min<uint64_t>(leaves.size(), most);
    limit -= count;
    lines -= std::min(lines, count * cost);
    victims.assign(leaves.end() - long(count), leaves.end());
    leaves.resize(leaves.size() - count);
    parents.clear();
    for (const uint32_t page : victims) {
      const PageRef parent = PageRef::from_bits(core.region.block(page).parent.load_acquire());  // checked below
      if (core.region.is_page(parent) && regions.owns_page(parent.page())) parents.push_back(parent);
    }
    evictor.evict_pages(victims, EvictReason::kExpired);
    std::sort(parents.begin(), parents.end(), [](PageRef a, PageRef b) { return a.bits < b.bits; });
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    for (const PageRef parent : parents) {
      const PageWord found = core.word(parent.page());
      if (found.generation() == parent.generation() && core.is_expired(parent.page(), found))
        leaves.push_back(parent.page());
    }
  }
  for (const uint32_t page : leaves)
    if (recency.met_expired.size() < kMetExpiredMax) recency.met_expired.push_back(page);
}

}  // namespace maru::daemon
