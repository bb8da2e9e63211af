// "evict": an administrator wants so many pages to be FREE. Every use until then is read, every block whose pins have ended
// goes back to its queue, and every page is looked at once, so that the coldest blocks of all go; each of this in turns.
//
// If marud dies here: a part has gone, and who asked has no answer.
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kEvictPagesMax = 1u << 16;  // for one request
constexpr size_t kEvictionsMax = 64;           // that wait

json evicted_json(const Shortage& shortage) {
  return {{"evicted_blocks", shortage.blocks_evicted}, {"evicted_pages", shortage.pages_evicted}};
}

}  // namespace

// Without a place for a ticket it is done when this returns.
json Pool::State::make_room(const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) {
    const auto is_it = [&](const Eviction& waiting) { return waiting.ticket == *ret_ticket; };
    return std::any_of(evictions.begin(), evictions.end(), is_it) ? json() : late_answer(ret_ticket);
  }
  Eviction wanted;
  wanted.shortage.reason = EvictReason::kAdmin;
  wanted.shortage.runs = std::min(number_in(request, "pages", 0), kEvictPagesMax);
  if (wanted.shortage.runs == 0) return refusal(EINVAL, "\"pages\" is a number above zero");
  if (evictions.size() >= kEvictionsMax)
    return refusal(EAGAIN, "too many administrators wait for room already: try again");
  wanted.sweep_left = core.pages();
  wanted.shortage.lines_left =
      (2 * core.pages() + 1024) * lanes.look_lines();  // more than it takes, if nobody scribbles
  if (!ret_ticket) {
    may_choose(nullptr);
    wanted.round = rounds.begun;
    while (!step_eviction(wanted)) {
    }
    return evicted_json(wanted.shortage);
  }
  wanted.ticket = *ret_ticket = ++core.last_ticket;
  evictions.push_back(wanted);
  return {};
}

// Returns true when it is done.
bool Pool::State::step_eviction(Eviction& eviction) {
  if (!recency.has_caught_up(eviction.round) || queues.is_reordering()) return false;
  if (eviction.sweep_left > 0) {
    eviction.sweep_left -= std::min(eviction.sweep_left, sweep(kSweepPagesPerTurn));
    return false;
  }
  if (!queues.policy->evicts()) return true;
  Shortage& all = eviction.shortage;
  Shortage part = all;
  part.runs = std::min<uint64_t>(all.runs, shm::kEvictBatchMax);
  part.lines_left = std::min(all.lines_left, kHeldLinesAtOnce);
  const uint64_t runs = part.runs, lines = part.lines_left;
  queues.ask_for_tenant(0);
  tenants.table().all_may_yield(true);
  evictor.evict_coldest(regions.own_regions(), part);
  tenants.table().all_may_yield(false);
  const bool has_none_left = part.lines_left != 0 && part.runs == runs;
  all.runs -= runs - part.runs;
  all.lines_left -= lines - part.lines_left;
  all.blocks_evicted = part.blocks_evicted;
  all.pages_evicted = part.pages_evicted;
  return all.runs == 0 || all.lines_left == 0 || has_none_left;
}

// Returns true when there is more to do right away.
bool Pool::State::step_evictions() {
  if (evictions.empty()) return false;
  if (step_eviction(evictions.front())) {
    keep_answer(evictions.front().ticket, evicted_json(evictions.front().shortage));
    evictions.pop_front();
  }
  return !evictions.empty();
}

}  // namespace maru::daemon
