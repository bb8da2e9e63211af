#include "daemon/pool/memory/evictions.h"

#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

constexpr size_t kWaitingMax = 64;

}  // namespace

Result<Pending<Evicted>> Evictions::evict(uint64_t pages, bool at_once) {
  if (waiting_.size() >= kWaitingMax)
    return failure(EAGAIN, "too many administrators wait for room already: try again");
  Eviction wanted;
  wanted.shortage.reason = EvictReason::kAdmin;
  wanted.shortage.runs = std::min(pages, kPagesMax);
  wanted.sweep_left = core_.pages();
  wanted.shortage.lines_left =
      (2 * core_.pages() + 1024) * lanes_.look_lines();  // more than it takes, if no client scribbles
  if (at_once) {
    renting_.may_choose(nullptr);
    wanted.round = rounds_.begun;
    while (!step(wanted)) {
    }
    return Evicted{wanted.shortage.blocks_evicted, wanted.shortage.pages_evicted};
  }
  wanted.ticket = ++core_.last_ticket;
  waiting_.push_back(wanted);
  return Pending<Evicted>::later(wanted.ticket);
}

// Returns true when it is done.
bool Evictions::step(Eviction& eviction) {
  if (!recency_.has_caught_up(eviction.round) || queues_.is_reordering()) return false;
  if (eviction.sweep_left > 0) {
    eviction.sweep_left -= std::min(eviction.sweep_left, sweep_.step(kSweepPagesPerTurn));
    return false;
  }
  if (!queues_.policy->evicts()) return true;
  Shortage& all = eviction.shortage;
  Shortage part = all;
  part.runs = std::min<uint64_t>(all.runs, shm::kEvictBatchMax);
  part.lines_left = std::min(all.lines_left, kHeldLinesAtOnce);
  const uint64_t runs = part.runs, lines = part.lines_left;
  queues_.ask_for_tenant(0);
  tenants_.table().all_may_yield(true);
  evictor_.evict_coldest(regions_.own_regions(), part);
  tenants_.table().all_may_yield(false);
  const bool has_none_left = part.lines_left != 0 && part.runs == runs;
  all.runs -= runs - part.runs;
  all.lines_left -= lines - part.lines_left;
  all.blocks_evicted = part.blocks_evicted;
  all.pages_evicted = part.pages_evicted;
  return all.runs == 0 || all.lines_left == 0 || has_none_left;
}

bool Evictions::step() {
  if (waiting_.empty()) return false;
  if (step(waiting_.front())) {
    const Eviction& first = waiting_.front();
    done_.push_back({first.ticket, {first.shortage.blocks_evicted, first.shortage.pages_evicted}});
    waiting_.pop_front();
  }
  return !waiting_.empty();
}

}  // namespace maru::daemon
