// The calls that the rest of marud makes to a pool, each passed to the part that does it. pool.cc has the pool's life.
#include "daemon/pool/parts.h"

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon {

RentResult Pool::rent(uint32_t lane, const wire::RentRequest& request, uint64_t now_ms, const RentLimits& limits,
                      uint32_t request_id, uint64_t* ret_ticket,
                      std::optional<std::chrono::steady_clock::time_point> came) {
  state_->core.now_ms = now_ms;
  const auto begun = came ? *came : std::chrono::steady_clock::now();
  std::string lost_because;
  if (state_->core.region.is_shared()) {
    if (state_->hosts.slot.is_lost())
      lost_because = state_->hosts.slot.lost_because();
    else
      state_->hosts.others.look_at_regions();
  }
  const uint64_t round = ret_ticket ? std::exchange(*ret_ticket, 0) : 0;
  Pending<RentResult> answer =
      state_->memory.renting.rent(lane, request, limits, request_id, round, ret_ticket != nullptr, lost_because);
  state_->regions.show_frees();
  if (!answer.now) {
    *ret_ticket = answer.ticket;
    return {};
  }
  const auto lasted = std::chrono::steady_clock::now() - begun;
  state_->core.totals.rent_latency.add(uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(lasted).count()));
  return *std::move(answer.now);
}

RentResult Pool::give_up_rent(uint32_t lane) { return state_->memory.renting.give_up(lane); }

DeleteTreeResult Pool::delete_tree(uint32_t lane, const wire::DeleteTreeRequest& request, uint64_t now_ms,
                                   uint64_t* ret_ticket) {
  state_->core.now_ms = now_ms;
  Pending<DeleteTreeResult> answer = state_->removal.deletions.begin(state_->lanes.id(lane), request);
  *ret_ticket = answer.ticket;
  return answer.now.value_or(DeleteTreeResult());
}

std::vector<DeletedTree> Pool::take_deleted_trees() { return state_->removal.deletions.take_deleted_trees(); }

int Pool::grant_credit(uint32_t lane, const wire::CreditRequest& request, uint64_t now_ms, std::string* ret_why) {
  state_->core.now_ms = now_ms;
  if (state_->lanes.is_live(lane))
    return state_->tenants.grant(lane, request.account, request.tenant, request.bytes, now_ms, ret_why);
  *ret_why = "this lane is not in use";
  return ENOTCONN;
}

void Pool::set_tenant_limits(const TenantSettings& at_run_time,
                             std::function<Result<void>(const TenantSettings& at_run_time)> save) {
  state_->tenants.set_limits(at_run_time, std::move(save));
}

nlohmann::json Pool::admin(const std::string& command, const nlohmann::json& request, uint64_t now_ms,
                           uint64_t* ret_ticket) {
  state_->core.now_ms = now_ms;
  return state_->inspect.administration.run(command, request, ret_ticket);
}

bool Pool::may_rent(uint64_t ticket) const { return state_->memory.renting.may_rent(ticket); }

Result<void> Pool::set_policy(const std::string& name, const PolicyOptions& options, uint64_t now_ms, bool in_turns) {
  state_->core.now_ms = now_ms;
  return state_->eviction.queues.set_policy(name, options, in_turns);
}

nlohmann::json Pool::when_ordered(nlohmann::json reply, uint64_t* ret_ticket) {
  return state_->inspect.late.when_ordered(std::move(reply), ret_ticket);
}

nlohmann::json Pool::late_policy(uint64_t* ret_ticket) { return state_->inspect.late.answer(ret_ticket); }

nlohmann::json Pool::status_json(uint64_t) const {
  metrics::PageCensus census;
  state_->inspect.status.take_census(census, kNever);
  return state_->inspect.status.status(census);
}
nlohmann::json Pool::status_json(const metrics::PageCensus& census) const {
  return state_->inspect.status.status(census);
}
nlohmann::json Pool::lane_json(uint32_t lane, uint64_t) const { return state_->inspect.status.lane(lane); }
nlohmann::json Pool::lanes_elsewhere(uint32_t from) const { return state_->inspect.host_lists.lanes_elsewhere(from); }
bool Pool::is_shared() const { return state_->core.region.is_shared(); }

int Pool::make_room(uint32_t lane, const wire::RoomRequest& request, uint64_t now_ms, std::string* ret_why) {
  state_->core.now_ms = now_ms;
  if (state_->lanes.is_live(lane)) return state_->eviction.bucket_room.make(request, ret_why);
  *ret_why = "this lane is not in use";
  return ENOTCONN;
}

uint64_t Pool::note_copies(std::span<const uint64_t> blocks, uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  uint64_t noted = 0;
  for (const uint64_t bits : blocks) noted += state_->eviction.queues.note_copy(PageRef::from_bits(bits));
  return noted;
}

Result<FollowGrant> Pool::follow(uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  if (!state_->feed.is_there()) state_->eviction.recency.drain(kTouchesPerDrain);  // blocks from before are no news
  return state_->feed.follow();
}

void Pool::unfollow(uint64_t incarnation) { state_->feed.unfollow(incarnation); }

std::optional<uint64_t> Pool::feed_turn_ms() const { return state_->feed.turn_ms(); }

void Pool::set_draining(bool draining, uint64_t now_ms) {
  if (now_ms != 0) state_->core.now_ms = now_ms;
  state_->memory.drain.set(draining);
}

bool Pool::is_drained() const { return state_->memory.drain.is_done(); }
std::vector<TakenRegion> Pool::take_drained_regions() { return state_->memory.drain.take_news(); }
nlohmann::json Pool::drain_json() const { return state_->inspect.status.drain(); }

std::string Pool::bad_control_memory() const { return state_->core.bad_control_memory(); }

std::string Pool::report_bad_page(uint64_t page, uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  return state_->removal.poison.report_bad_page(page);
}

bool Pool::is_quiesced() const { return state_->inspect.audits.is_quiesced(); }

uint64_t Pool::audit_findings() const { return state_->inspect.audits.last_found(); }

bool Pool::take_census(metrics::PageCensus& census, uint64_t pages) const {
  return state_->inspect.status.take_census(census, pages);
}

void Pool::fill(metrics::PoolSnapshot& snapshot) { state_->inspect.status.fill(snapshot); }

Result<Pool::Verified> Pool::verify(const VerifyProgress& progress, uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  return state_->restart.verify(progress, [&] { return state_->turn(); });
}

OverduePins Pool::take_overdue_pins() { return state_->inspect.pin_watch.take_news(); }

void Pool::add_uses(std::map<uid_t, UserUse>& uses) const {
  const State& state = *state_;
  std::vector<uint64_t> rented(state.lanes.records.size(), 0), found(rented);
  for (const RegionEntry& entry : state.regions) {
    if (entry.state != RegionState::kRented || entry.owner.lane >= rented.size()) continue;
    ++rented[entry.owner.lane];
    found[entry.owner.lane] += entry.was_found;
  }
  const uint64_t region_bytes = state.core.region.region_pages() * state.core.region.page_bytes();
  for (uint32_t lane = state.lanes.first + 1; lane < state.lanes.end; ++lane) {
    if (!state.lanes.is_live(lane)) continue;
    UserUse& use = uses[state.lanes.records[lane].who.uid];
    use.regions += rented[lane];
    use.bytes += rented[lane] * region_bytes;
    use.found_regions += found[lane];
    use.found_bytes += found[lane] * region_bytes;
    use.pins += state.lanes.records[lane].pins_seen;
  }
}

// -- adopted lanes ----------------------------------------------------------------------------------------------------

std::vector<Pool::AdoptedLane> Pool::live_lanes() const {
  std::vector<AdoptedLane> live;
  std::vector<bool> has_ended(state_->lanes.records.size(), false);
  for (const LaneId ended : state_->hosts.ended.waiting())
    has_ended[ended.lane] = state_->lanes.id(ended.lane) == ended;
  for (uint32_t lane = state_->lanes.first + 1; lane < state_->lanes.end; ++lane) {
    if (has_ended[lane] || !state_->lanes.is_live(lane)) continue;
    const LaneRecord& record = state_->lanes.records[lane];
    const bool is_elsewhere = record.pid_namespace != state_->core.pid_namespace;
    live.push_back({lane, record.who, record.same_boot, is_elsewhere, record.pid_namespace});
  }
  return live;
}

std::vector<Pool::AdoptedLane> Pool::adopted_lanes() const {
  std::vector<AdoptedLane> lanes = live_lanes();
  std::erase_if(lanes, [&](const AdoptedLane& lane) { return !state_->lanes.records[lane.lane].is_adopted; });
  return lanes;
}

LaneLock Pool::lock_of(uint32_t lane) const { return state_->lanes.lock_of(lane); }

bool Pool::is_unproven(uint32_t lane) const { return state_->lanes.is_unproven(lane); }

uint64_t Pool::unproven_lanes() const { return state_->lanes.unproven(); }

const std::string& Pool::why_no_lane_locks() const { return state_->lanes.locks.why_none(); }

// Any client can have written the user that stands in the pool. A process that lives without its lock keeps its lane while it
// lives: the next marud must not take the missing lock for a proof.
void Pool::lane_is_watched(uint32_t lane, std::optional<uid_t> user) {
  if (!state_->lanes.is_live(lane)) return;
  LaneRecord& record = state_->lanes.records[lane];
  record.is_adopted = false;
  if (user) record.who.uid = *user;
  if (!record.has_lock || state_->lanes.lock_of(lane) == LaneLock::kHeld) return;
  record.has_lock = false;
  state_->lanes.show_lane(lane, format::LaneState::kLive);
}

}  // namespace maru::daemon
