#include "daemon/pool/memory/renting.h"

#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

namespace maru::daemon {
namespace {

constexpr uint32_t kRoundsInOwn = 4, kRoundsAnywhere = 32;
// Lines of the looks for blocks that went for one request: about a thousand blocks where all 254 lanes are in use.
constexpr uint64_t kChoiceLinesPerRequest = 1u << 18;

RentResult refuse(int code, std::string explanation) {
  RentResult result;
  result.status = -code;
  result.explanation = std::move(explanation);
  return result;
}

// The reply's room for regions and runs is set aside; keys get the rest.
size_t key_bytes_left(const Search& search) {
  const RentResult& result = search.result;
  const uint64_t items = result.regions.size() + result.runs.size() + search.shortage.runs_left();
  return wire::kPayloadBytesMax - sizeof(wire::RentReply) - 2 * sizeof(uint64_t) - items * sizeof(wire::RunRecord) -
         result.evicted_keys.size();
}

// Blocks that were evicted on the way to a refusal are gone all the same, and the asker is told.
RentResult with_evicted(Search& search, RentResult refusal) {
  refusal.evicted_keys = std::move(search.result.evicted_keys);
  refusal.evicted = search.result.evicted;
  refusal.evicted_total = uint32_t(search.shortage.blocks_evicted);
  refusal.choosing = search.result.choosing;
  return refusal;
}

}  // namespace

// Nothing if there is nothing against it.
std::optional<RentResult> Renting::refusal_to(uint32_t lane, const wire::RentRequest& request,
                                              const std::string& lost_because) const {
  if (!lost_because.empty()) return refuse(EIO, lost_because);
  if (!lanes_.is_live(lane)) return refuse(ENOTCONN, "this lane is not in use");
  if (drain_.is_on()) return refuse(ESHUTDOWN, "the pool is being drained: it gives no memory any more");
  if (request.runs == 0 || request.run_pages == 0)
    return refuse(EINVAL, "a rent request names at least one run of at least one page");
  if (request.run_pages > core_.region.region_pages())
    return refuse(EFBIG, "a run of " + std::to_string(request.run_pages) + " pages is larger than a region of " +
                             std::to_string(core_.region.region_pages()));
  return std::nullopt;
}

bool Renting::may_choose(uint64_t* round) {
  queues_.separate_tenants();
  if (round) return recency_.has_caught_up(*round) && !queues_.is_reordering();
  queues_.mend_without_limit();
  queues_.reorder_now();
  recency_.drain_all();
  held_.look_at_all();
  return true;
}

// The result of earlier turns of the request for which this lane's client waits.
Search Renting::take_search(uint32_t lane, bool was_begun) {
  auto found = searches_.extract(lane);
  if (found.empty()) return {};
  if (was_begun && found.mapped().shortage.asker == lanes_.id(lane)) return std::move(found.mapped());
  takeovers_.end(found.mapped());
  return {};
}

void Renting::drop_search(uint32_t lane) { static_cast<void>(take_search(lane, false)); }

// Sets the part of the request that earlier turns have not fulfilled.
void Renting::begin_turn(Search& search, LaneId asker, const wire::RentRequest& request, const RentLimits& limits,
                         uint32_t request_id) const {
  Shortage& shortage = search.shortage;
  shortage.asker = asker;
  shortage.mark = shm::grant_mark(asker, request_id);
  shortage.run_pages = request.run_pages;
  if (search.has_nothing()) shortage.runs = request.runs;
  shortage.items_left = wire::kRentItemsMax - search.result.regions.size() - search.result.runs.size();
  shortage.result = &search.result;
  shortage.regions_left = limits.regions_left;
  shortage.lines_left = kChoiceLinesPerTurn;
  shortage.scan_pages_left = std::max<uint64_t>(kLostScanPagesPerTurn, queues_.order.shelf_pages());
  shortage.window_pages_left = windows_.pages(request.run_pages);
  for (Shortage::WindowPass& pass : shortage.window_passes)
    if (pass.pages_looked_at >= pass.regions * core_.region.region_pages()) pass.pages_looked_at = 0;
  shortage.room_wanted = kNever;
}

Pending<RentResult> Renting::rent(uint32_t lane, const wire::RentRequest& request, const RentLimits& limits,
                                  uint32_t request_id, uint64_t round, bool may_wait, const std::string& lost_because) {
  Search search = take_search(lane, round != 0);
  if (auto refusal = refusal_to(lane, request, lost_because)) {
    takeovers_.end(search);
    return with_evicted(search, *std::move(refusal));
  }
  if (round == 0) search.row_pages_left = 2 * core_.pages();
  const auto wait = [&] {
    if (search.was_begun() || search.row_pages_left > 0) searches_[lane] = std::move(search);
    return Pending<RentResult>::later(round);
  };
  for (;;) {
    begin_turn(search, lanes_.id(lane), request, limits, request_id);
    if (grants_.rent_regions(search)) return finish(search, request, limits);
    if (search.looks_for_rows && search.has_nothing()) {
      if (!may_wait) continue;
      if (round == 0) recency_.has_caught_up(round);  // as below
      return wait();
    }
    if (search.shortage.is_open() && search.has_nothing() && room_.waits_for_room(search.shortage, may_wait)) {
      if (!may_wait) continue;
      if (round == 0) recency_.has_caught_up(round);  // by which it is known again
      return wait();
    }
    // The order of eviction is exact when marud has read every use until now, and every block whose pins have ended is back
    // in its queue. marud reads the uses of blocks whose pages are FREE before it gives these pages away. When that takes
    // several turns, the client gets the present pages, and asks again or waits.
    if (search.shortage.is_open() && !may_choose(may_wait ? &round : nullptr)) {
      if (search.has_nothing()) return wait();
      return finish(search, request, limits);
    }
    if (search.shortage.is_open()) {
      Choosing& choosing = search.result.choosing;
      const auto begun = std::chrono::steady_clock::now();
      choose(search, request, limits);
      if (!choosing.is_some()) choosing.from = begun;
      choosing.to = std::chrono::steady_clock::now();
    }
    if (!takes_another_turn(search)) return finish(search, request, limits);
    if (may_wait) return wait();
  }
}

RentResult Renting::give_up(uint32_t lane) {
  Search search = take_search(lane, true);
  takeovers_.end(search);
  search.result.evicted_total = uint32_t(search.shortage.blocks_evicted);
  if (!search.has_nothing()) return std::move(search.result);  // that is its client's
  return with_evicted(search, {});
}

// How much all turns of a request may read. A request looks at each block for whether the block may go, and for where it is
// pinned; then the block is out of the queues. Twice that is more than a request needs, unless pins end and begin all the time.
// Beside that a takeover reads the slots of all lanes and some regions, and a search everywhere reads the whole pool.
void Renting::begin_search(Search& search) const {
  constexpr uint32_t kTakenPerRequest = 4;
  constexpr uint64_t kWindowPagesMin = 1u << 20;  // a small pool is looked at more often, as blocks go
  search.takeovers_left = kTakenPerRequest;
  search.window_pages_left = std::max(2 * core_.pages(), kWindowPagesMin);
  const uint64_t turns = 4 * core_.pages() / kSearchPagesPerTurn + 2 * regions_.size() +
                         search.window_pages_left / windows_.pages(search.shortage.run_pages) + 1;
  search.lines_left = 2 * (2 * core_.pages() + 1024) * lanes_.look_lines() + turns * kChoiceLinesPerTurn +
                      (kTakenPerRequest + 1) * (core_.region.lanes() * takeovers_.pin_lines() + core_.pages());
  search.retired_left = retired_.size();
  search.shortage.room_pages_left = 4 * search.shortage.run_pages * search.shortage.runs_left();
}

// A turn of a request. When its lines are used up no further block goes. Harsher means wait for a turn that has lines left for
// them.
void Renting::choose(Search& search, const wire::RentRequest& request, const RentLimits& limits) {
  Shortage& shortage = search.shortage;
  queues_.ask_for_tenant(request.tenant);
  const std::vector<uint32_t> own = regions_.regions_of(shortage.asker);
  uint64_t pages_left = kFreeScanPagesPerRequest;
  grants_.take_free(own, shortage, &pages_left);
  shortage.key_bytes_left = key_bytes_left(search);
  if (core_.region.is_shared() && shortage.is_open() && shortage.regions_left > 0) grants_.ask_other_hosts();
  const std::vector<uint32_t> all = limits.own_regions_only ? own : regions_.own_regions();
  if (!search.was_begun()) begin_search(search);
  if (search.takeover) {  // which an earlier turn has begun
    takeovers_.step(search);
    if (search.takeover) return;
  }
  // A tenant over its limit makes room first, wherever its blocks are.
  if (shortage.is_open() && queues_.is_by_tenant() && tenants_.table().is_any_over())
    evict(all, shortage, kRoundsAnywhere);
  if (shortage.is_open()) evict(own, shortage, kRoundsInOwn);

  while (shortage.is_open() && shortage.lines_left > 0 && search.takeovers_left > 0) {
    --search.takeovers_left;
    if (!takeovers_.begin(search, TakeFrom::kOverShare)) {
      search.takeovers_left = 0;
      break;
    }
    const size_t regions_before = search.result.regions.size();
    takeovers_.step(search);
    if (search.takeover) return;
    if (search.result.regions.size() == regions_before) search.takeovers_left = 0;
  }
  if (shortage.is_open()) evict(all, shortage, kRoundsAnywhere);
  if (search.has_nothing()) choose_at_last(search, all);
}

// Before it is refused.
void Renting::choose_at_last(Search& search, std::span<const uint32_t> all) {
  Shortage& shortage = search.shortage;
  if (tenants_.table().matters()) {  // all tenants are within their limits, and the limits exceed the pool
    tenants_.table().all_may_yield(true);
    evict(all, shortage, kRoundsAnywhere);
    tenants_.table().all_may_yield(false);
  }
  const auto may_go_on = [&] { return search.has_nothing() && shortage.lines_left > 0; };
  if (may_go_on() && search.retired_left > 0) look_at_retired(search, all);
  if (may_go_on() && search.free_regions_left > 0) look_for_free(search, all);
  if (may_go_on() && search.retired_left == 0 && search.free_regions_left == 0) search_everywhere(search, all);
}

// FREE pages anywhere, as far as a turn reads. A region that was looked at is not looked at again until a process frees a page;
// clients count their frees, and each region has two looks at most.
void Renting::look_for_free(Search& search, std::span<const uint32_t> all) {
  uint64_t pages_left = kSearchPagesPerTurn;
  const uint64_t looked = grants_.take_free(all, search.shortage, &pages_left);
  const bool is_through = looked == all.size() || pages_left > 0;
  search.free_regions_left -= is_through ? search.free_regions_left : std::min(search.free_regions_left, looked);
}

// Blocks that were deleted under a pin.
void Renting::look_at_retired(Search& search, std::span<const uint32_t> all) {
  Shortage& shortage = search.shortage;
  const uint64_t frees_before = regions_.own_frees;
  search.retired_left = retired_.finish(kHeldLinesAtOnce, kReclaimPagesPerTurn, search.retired_left);
  if (regions_.own_frees == frees_before) return;
  evict(all, shortage, kRoundsAnywhere);  // the blocks above them
  search.free_regions_left = 2 * all.size();
}

// Blocks whose touches were lost, and other owners' FREE pages.
void Renting::search_everywhere(Search& search, std::span<const uint32_t> all) {
  Shortage& shortage = search.shortage;
  const uint64_t pause_ms =
      (core_.pages() > kSmallPoolPages ? kFullSearchPauseMs : 0) + core_.pages() / kPagesSearchedPerMs;
  if (!search.has_swept && rests(core_.now_ms, next_full_search_ms_, pause_ms)) return;
  if (!std::exchange(search.has_swept, true)) {
    next_full_search_ms_ = core_.now_ms + pause_ms;  // for others; this one goes on
    search.sweep_left = core_.pages();
  }
  if (search.sweep_left > 0) {
    search.sweep_left -= std::min(search.sweep_left, sweep_.step(std::min(search.sweep_left, kSearchPagesPerTurn)));
    if (search.sweep_left > 0) return;
    search.retired_left = retired_.finish(kHeldLinesAtOnce);
    search.free_regions_left = 2 * all.size();
  }
  evict(all, shortage, kRoundsAnywhere);
  if (shortage.lines_left == 0) return;
  if (shortage.is_open() && search.free_regions_left > 0) look_for_free(search, all);
  if (search.has_nothing() && search.free_regions_left > 0) return;
  if (search.has_nothing() && std::exchange(search.may_take_from_anybody, false) &&
      takeovers_.begin(search, TakeFrom::kAnybody))
    takeovers_.step(search);
  if (search.has_nothing()) next_full_search_ms_ = core_.now_ms + pause_ms;
}

// Whether a request may go on: a request without a page that has not looked everywhere, or a request that has some pages and
// finds more in the same place.
bool Renting::takes_another_turn(Search& search) const {
  const Shortage& shortage = search.shortage;
  if (!search.has_nothing()) {
    const bool has_more = shortage.is_open() && shortage.lines_left == 0 &&
                          shortage.blocks_evicted * lanes_.look_lines() < kChoiceLinesPerRequest;
    search.lines_left -= std::min(search.lines_left, kChoiceLinesPerTurn);
    return has_more && search.was_begun();
  }
  const bool has_more_windows =
      shortage.window_pages_left < windows_.part(shortage.run_pages) && search.window_pages_left > 0;
  const bool has_more = shortage.lines_left == 0 || search.retired_left > 0 || search.takeover ||
                        search.sweep_left > 0 || search.free_regions_left > 0 || has_more_windows || queues_.has_late();
  if (!has_more) return false;
  const uint64_t pages_searched = windows_.pages(shortage.run_pages) - shortage.window_pages_left;
  search.window_pages_left -= std::min(search.window_pages_left, pages_searched);
  search.lines_left -= std::min(search.lines_left, kChoiceLinesPerTurn + pages_searched);
  return search.was_begun();
}

RentResult Renting::finish(Search& search, const wire::RentRequest& request, const RentLimits& limits) {
  search.result.evicted_total = uint32_t(search.shortage.blocks_evicted);
  takeovers_.end(search);
  if (!search.has_nothing()) {
    if (search.has_swept) next_full_search_ms_ = core_.now_ms;  // there was something, and there may be more
    return std::move(search.result);
  }
  ++core_.totals.refused_rents;
  const bool is_at_limit = limits.own_regions_only && search.shortage.regions_left == 0;
  RentResult refusal = refuse(
      is_at_limit ? EDQUOT : ENOSPC,
      "nothing is free and nothing can be evicted: what is left is pinned, has "
      "children, or is being filled (a run of " +
          std::to_string(request.run_pages) + " pages was asked for)" +
          (!room_.full_because().empty() ? "; and there is no room for another region: " + room_.full_because() : ""));
  return with_evicted(search, std::move(refusal));
}

void Renting::evict(std::span<const uint32_t> in, Shortage& shortage, uint32_t rounds_max) {
  if (!queues_.policy->evicts() || shortage.lines_left == 0) return;
  // Queues that may miss blocks, because touches were lost, are compared with the page words first.
  const uint64_t lost = lanes_.lost_touches();
  bool has_swept = false;
  for (uint32_t index : in)
    queues_.for_shelves(index, [&](uint32_t shelf) {
      if (queues_.shelves[shelf].swept_at_lost == lost || shortage.scan_pages_left < queues_.order.shelf_pages())
        return;
      shortage.scan_pages_left -= queues_.order.shelf_pages();
      sweep_.sweep_shelf(shelf);
      has_swept = true;
    });
  if (has_swept) expired_.step();  // for all these regions together no more than in a turn
  uint64_t pages_per_round = 64;
  for (uint32_t round = 0; round < rounds_max && shortage.is_open(); ++round) {
    if (evictor_.evict_coldest(in, shortage)) return;
    if (windows_.evict(in, shortage)) return;
    // The blocks that may go now leave no room for a run: let more of them go, so that parents become leaves. There may never
    // be any, since one pin in each region is enough: so the other clients' blocks do not all go, and no more than the runs are
    // worth.
    if (shortage.lines_left == 0) return;
    Shortage::WindowPass& pass = shortage.window_pass(in.size());
    if (shortage.room_pages_left == 0 || pass.pages_looked_at < in.size() * core_.region.region_pages()) return;
    pass.pages_looked_at = 0;
    Shortage room = shortage;
    room.asker = {};
    room.run_pages = 1;
    room.runs = std::min(pages_per_round, shortage.room_pages_left);
    evictor_.evict_coldest(in, room);
    const uint64_t gone = room.pages_evicted - shortage.pages_evicted;
    shortage.key_bytes_left = room.key_bytes_left;
    shortage.blocks_evicted = room.blocks_evicted;
    shortage.lines_left = room.lines_left;
    if (gone == 0) return;
    shortage.pages_evicted = room.pages_evicted;
    shortage.room_pages_left -= std::min(shortage.room_pages_left, gone);
    pages_per_round *= 2;
  }
}

}  // namespace maru::daemon
