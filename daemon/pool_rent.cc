// Renting: the one request by which a client gets memory. In this order: a region that nobody rents; one whose owner is
// gone; FREE pages of the asker's own regions that it does not know of; the coldest blocks of its own regions; a whole region
// of a client that rents more than its share; the coldest blocks anywhere; FREE pages of other owners; a whole region of
// anybody. Refused only when nothing of this is left.
#include "daemon/pool_state.h"
#include "libmaru/shm/page_run.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace maru::daemon {
namespace {

RentResult refuse(int code, std::string explanation) {
  RentResult result;
  result.status = -code;
  result.explanation = std::move(explanation);
  return result;
}

}  // namespace

// Whether blocks can be chosen now: their queues are built, every use was read that was left before this was first asked for
// the ticket, and every block whose pins had ended by then is back in its queue. Without a place for one that is done at once.
bool Pool::State::may_choose(uint64_t* ret_ticket) {
  separate_tenants();
  if (!ret_ticket) {
    reorder_now();
    drain_all_touches();
    look_at_all_held();
    return true;
  }
  if (!has_caught_up(*ret_ticket) || is_reordering()) return false;
  *ret_ticket = 0;
  return true;
}

RentResult Pool::State::rent(uint32_t lane, const wire::RentRequest& request, const RentLimits& limits,
                             uint32_t request_id, uint64_t* ret_ticket) {
  uint64_t ticket = ret_ticket ? std::exchange(*ret_ticket, 0) : 0;
  if (region.is_shared() && is_own_slot_lost()) return refuse(EIO, hosts.lost_because);
  if (!lanes.is_live(lane)) return refuse(ENOTCONN, "this lane is not in use");
  if (is_draining) return refuse(ESHUTDOWN, "the pool is being drained: it gives no memory any more");
  if (request.runs == 0 || request.run_pages == 0 || request.flags != 0)
    return refuse(EINVAL, "a rent request names at least one run of at least one page, and no flags");
  if (request.run_pages > region.region_pages())
    return refuse(EFBIG, "a run of " + std::to_string(request.run_pages) + " pages is larger than a region of " +
                             std::to_string(region.region_pages()));
  if (region.is_shared()) look_at_regions();

  RentResult result;
  Shortage shortage;
  shortage.asker = lanes.id(lane);
  shortage.mark = shm::grant_mark(shortage.asker, request_id);
  shortage.run_pages = request.run_pages;
  shortage.runs = request.runs;
  shortage.items_left = wire::kRentItemsMax;
  shortage.result = &result;
  shortage.regions_left = limits.regions_left;
  shortage.looks_left = kLooksPerRequest;
  shortage.window_pages_left = std::max<uint64_t>(kWindowPagesPerRequest, region.region_pages());
  rent_regions(shortage);

  // The order of what goes is exact only when every use until now has been read (of blocks whose pages are FREE by now,
  // before those are given away), and every block whose pins have ended is back in its queue. When that takes turns, who
  // asked has what there is, and asks again, or waits.
  if (shortage.is_open() && !may_choose(ret_ticket ? &ticket : nullptr)) {
    if (result.regions.empty() && result.runs.empty()) *ret_ticket = ticket;
    return result;
  }
  ask_for_tenant(request.tenant);
  const std::vector<uint32_t> own = regions_of(shortage.asker);
  if (shortage.is_open()) {
    uint64_t pages_left = std::max<uint64_t>(kFreeScanPagesPerRequest, region.region_pages());
    take_free(own, shortage, &pages_left);
  }
  // What the reply needs for regions and runs is set aside; keys get the rest.
  const uint64_t items =
      result.regions.size() + result.runs.size() + std::min<uint64_t>(shortage.runs, shortage.items_left);
  shortage.key_bytes_left =
      wire::kPayloadBytesMax - sizeof(wire::RentReply) - 2 * sizeof(uint64_t) - items * sizeof(wire::RunRecord);
  if (region.is_shared() && shortage.is_open() && shortage.regions_left > 0) ask_for_region();
  const std::vector<uint32_t> all = limits.own_regions_only ? own : own_regions();
  constexpr uint32_t kRoundsInOwn = 4, kRoundsAnywhere = 32;
  shortage.room_pages_left = 4 * shortage.run_pages * shortage.runs_left();
  // A tenant over its limit makes room first, wherever its blocks are.
  if (shortage.is_open() && queues_by_tenant && tenants.table().is_any_over()) evict(all, shortage, kRoundsAnywhere);
  if (shortage.is_open()) evict(own, shortage, kRoundsInOwn);

  constexpr uint32_t kTakenPerRequest = 4;
  for (uint32_t taken = 0; taken < kTakenPerRequest && shortage.is_open(); ++taken)
    if (!take_over(shortage, TakeFrom::kOverShare)) break;

  if (shortage.is_open()) evict(all, shortage, kRoundsAnywhere);
  const auto has_nothing = [&] { return result.regions.empty() && result.runs.empty(); };
  if (has_nothing() &&
      tenants.table().matters()) {  // everybody is within the limit, and the limits are more than the pool
    tenants.table().all_may_yield(true);
    evict(all, shortage, kRoundsAnywhere);
    tenants.table().all_may_yield(false);
  }
  if (has_nothing() && !retired_blocks.empty()) {  // deleted while somebody held them
    const uint64_t frees_before = own_frees;
    finish_retired(kLooksPerRequest);
    uint64_t pages_left = kNever;                                          // what was freed may lie anywhere
    if (own_frees != frees_before) evict(all, shortage, kRoundsAnywhere);  // what was above them
    if (own_frees != frees_before && has_nothing()) take_free(all, shortage, &pages_left);
  }
  // Before refusing: blocks whose touches were lost, and other owners' FREE pages.
  const uint64_t pause_ms = (pages() > kSmallPoolPages ? kFullSearchPauseMs : 0) + pages() / kPagesSearchedPerMs;
  if (has_nothing() && !rests(now_ms, next_full_search_ms, pause_ms)) {
    sweep(pages());
    finish_retired(kLooksPerRequest);
    shortage.looks_left = kLooksPerRequest;
    evict(all, shortage, kRoundsAnywhere);
    uint64_t pages_left = kNever;
    if (shortage.is_open()) take_free(all, shortage, &pages_left);
    if (has_nothing()) take_over(shortage, TakeFrom::kAnybody);
    if (has_nothing()) next_full_search_ms = now_ms + pause_ms;
  }
  if (has_nothing()) {
    ++totals.refused_rents;
    const bool is_at_limit = limits.own_regions_only && shortage.regions_left == 0;
    RentResult refusal = refuse(is_at_limit ? EDQUOT : ENOSPC,
                                "nothing is free and nothing can be evicted: what is left is pinned, has "
                                "children, or is being filled (a run of " +
                                    std::to_string(request.run_pages) + " pages was asked for)");
    // What was evicted on the way is gone all the same, and the asker is told.
    refusal.evicted_keys = std::move(result.evicted_keys);
    refusal.evicted = result.evicted;
    refusal.evicted_total = uint32_t(shortage.blocks_evicted);
    return refusal;
  }
  result.evicted_total = uint32_t(shortage.blocks_evicted);
  return result;
}

}  // namespace maru::daemon
