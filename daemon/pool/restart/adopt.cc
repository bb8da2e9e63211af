// Taking over a pool that another marud left. Clients may be at work meanwhile: lanes that the identities call live stay
// live until their processes are proven gone, and nothing of theirs is touched. What names nobody is freed, counts of
// children are checked in one pass, and the lists are built anew from the ticks.
#include "libmaru/shm/recovery/adopt.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>

namespace maru::daemon {

// ret_begun: lanes that the last marud was taking back.
void Pool::State::adopt_lanes(std::vector<LaneId>* ret_begun) {
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i)
    core.totals.counters[i] =
        core.region.lane(lanes.first).header->counters[i].load_relaxed();  // the last marud is gone
  uint64_t bits[limits::kLanesMax / 64];
  for (uint32_t w = 0; w < std::size(bits); ++w) bits[w] = core.region.lane_bitmap().words[w].load_seq_cst();
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane) {
    const format::LaneIdentity& identity = core.region.identity(lane);
    const uint64_t state = identity.state.load_acquire();
    LaneRecord& record = lanes.records[lane];
    record.generation = uint32_t(state >> 48);
    const bool has_bit = (bits[lane / 64] >> lane % 64 & 1) != 0;
    const uint64_t pid = identity.process.load_relaxed();
    if ((state & 0xFF) == uint64_t(format::LaneState::kLive) && record.generation != 0 && pid > 0 &&
        pid <= 0x7FFF'FFFF) {
      record.phase = LaneRecord::Phase::kLive;
      record.is_adopted = true;
      record.has_lock = (state & format::kLaneHasLock) != 0;
      record.who.pid = pid_t(pid);
      record.who.start_time = identity.start_time.load_relaxed();
      const uint64_t credentials = identity.credentials.load_relaxed();
      record.who.uid = uid_t(credentials >> 32);
      record.who.gid = gid_t(credentials);
      record.attached_ms = identity.attached_ms.load_relaxed();
      record.touches.resume(core.region.lane_header(lane).touches_read.load_relaxed());  // the last marud is gone
      record.pid_namespace = identity.pid_namespace.load_relaxed();
      record.same_boot = identity.boot_id_lo.load_relaxed() == core.boot_id[0] &&
                         identity.boot_id_hi.load_relaxed() == core.boot_id[1];
      lanes.in_use.add(lane);
      continue;
    }
    // The last marud was taking it back, or about to hand it out: nobody knows of it.
    if (!has_bit && (state & 0xFF) == uint64_t(format::LaneState::kFree)) continue;
    ret_begun->push_back(lanes.id(lane));
    lanes.show_lane(lane, format::LaneState::kDead);  // until all is done (finish_begun_lanes)
    lanes.take_counters(lane);
    shm::adopt_lane(core.region, lane, findings);
  }
  shm::adopt_lane(core.region, lanes.first, findings);
  if (core.region.is_shared()) lanes.in_use.add(lanes.first);
  lanes.show_lane_bits();
}

void Pool::State::adopt_regions() {
  for (uint32_t i = 0; i < regions.size(); ++i) {
    const bool is_own = !core.region.is_shared() || shm::adopt_region(core.region, i, core.host);
    const shm::RegionWord shown{core.region.region(i).word.load_acquire()};  // [pairs region.word]
    RegionEntry& entry = regions[i];
    entry.generation = shown.generation();
    entry.is_foreign = false;
    if (!is_own) {
      entry.is_foreign = shown.state() != RegionState::kUnused;
      entry.state = entry.is_foreign ? RegionState::kDraining : RegionState::kUnused;
      continue;
    }
    entry.state = RegionState::kDraining;  // until its pages have said what it is
    if (shown.state() == RegionState::kRented && lanes.is_live(shown.owner().lane) && !lanes.is_dead(shown.owner())) {
      entry.state = RegionState::kRented;
      entry.owner = shown.owner();
      entry.was_found = true;
    }
  }
}

void Pool::State::adopt_pages(std::span<const LaneId> begun) {
  std::vector<uint32_t> children(core.pages(), 0);
  shm::Adoption adoption = {
      .daemon = &core.self, .dead = &lanes, .sink = &findings, .begun = begun, .children = children};
  for (uint64_t page = 0; page < core.pages(); ++page)
    if (regions.owns_page(uint32_t(page))) shm::flag_count(core.region, uint32_t(page));
  lanes.is_adopting = true;
  for (uint64_t i = 0; i < core.pages(); ++i) {
    const auto page = uint32_t(i);
    const PageWord now = shm::adopt_page(adoption, page);
    if (now.is(PageState::kPoisoned) || now.is(PageState::kReady) || now.is(PageState::kReserved)) poison.adopt(page);
    if (now.is(PageState::kRetired) && now.lane() == lanes.daemon) retired.add(PageRef::of(page, now.generation()));
  }
  shm::adopt_overflow(core.region, lanes);
  lanes.is_adopting = false;
  for (uint64_t i = 0; i < core.pages(); ++i) {
    const auto page = uint32_t(i);
    // Of other hosts' what a death of the last marud may have left too high; their own recounts are their own.
    if (const PageRef parent = shm::suspect_of(adoption, page, regions.owns_page(page)); !parent.is_none())
      findings.parent_suspect(parent);
  }
  children = {};
  // No block gets a place in the order yet: rebuild_queues() below sorts all of them, and single places would be searched for.
  queues.begin_adoption();
  for (int tries = 0; tries < 3 && !findings.parents.empty(); ++tries) {
    recounts.resume();
    recounts.step(false);
  }
  for (uint32_t i = 0; i < regions.size(); ++i)
    if (regions[i].state == RegionState::kRented) {
      if (room.has(i)) shm::open_region_pages(core.region, i);  // what the last marud was about to give
      regions.show_region(i);
    } else if (!regions[i].is_foreign && !(core.region.is_shared() && regions[i].state == RegionState::kUnused)) {
      grants.settle_region(i);
    }
  queues.tell_time();
  for (uint32_t i = 0; i < queues.shelves.size(); ++i) queues.rebuild(i);
  core.totals.queues_rebuilt = 0;
  recency.drain_all();
  // What the last marud had read of the lanes of other hosts nobody knows.
  for (uint32_t lane = 0; lane < lanes.records.size(); ++lane)
    if (!lanes.is_own(lane)) lanes.records[lane].lost_before = lanes.records[lane].touches.lost();
  reclaim.take_findings(kNever);
  retired.finish_all();
}

// Only now: a marud that dies before this leaves the next one the same lanes to ask for.
void Pool::State::finish_begun_lanes(std::span<const LaneId> begun) {
  for (const LaneId id : begun) {
    shm::clear_lane(core.region, id.lane);
    lanes.show_lane(id.lane, format::LaneState::kFree);
  }
}

// The whole audit costs more than everything above together, so a large pool is audited when somebody asks.
void Pool::State::adopt_audit() {
  if (core.pages() > kAuditedAtStartPages) {
    audit_json = {{"mode", "not at the start of so large a pool"}};
    return;
  }
  const nlohmann::json report = check_now();
  if (report["found"] != 0)
    log_warning("pool \"{}\" violates invariants of its format, which stay as they are: {}", core.config.name,
                json_text(report["violations"]).substr(0, 400));
}

// -- adopted lanes ----------------------------------------------------------------------------------------------------

std::vector<Pool::AdoptedLane> Pool::live_lanes() const {
  std::vector<AdoptedLane> live;
  std::vector<bool> has_ended(state_->lanes.records.size(), false);
  for (const LaneId ended : state_->ended_lanes) has_ended[ended.lane] = state_->lanes.id(ended.lane) == ended;
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
