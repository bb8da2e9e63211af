#include "daemon/pool/restart/restart.h"

#include "libmaru/shm/recovery/adopt.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"

namespace maru::daemon {

void Restart::adopt_lanes(std::vector<LaneId>* ret_begun) {
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i)
    core_.totals.counters[i] =
        core_.region.lane(lanes_.first).header->counters[i].load_relaxed();  // the last marud is gone
  uint64_t bits[limits::kLanesMax / 64];
  for (uint32_t w = 0; w < std::size(bits); ++w) bits[w] = core_.region.lane_bitmap().words[w].load_seq_cst();
  for (uint32_t lane = lanes_.first + 1; lane < lanes_.end; ++lane) {
    const format::LaneIdentity& identity = core_.region.identity(lane);
    const uint64_t state = identity.state.load_acquire();
    LaneRecord& record = lanes_.records[lane];
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
      record.touches.resume(core_.region.lane_header(lane).touches_read.load_relaxed());  // the last marud is gone
      record.pid_namespace = identity.pid_namespace.load_relaxed();
      record.same_boot = identity.boot_id_lo.load_relaxed() == core_.boot_id[0] &&
                         identity.boot_id_hi.load_relaxed() == core_.boot_id[1];
      lanes_.in_use.add(lane);
      continue;
    }
    // The last marud was taking it back, or about to hand it out: no client has it.
    if (!has_bit && (state & 0xFF) == uint64_t(format::LaneState::kFree)) continue;
    ret_begun->push_back(lanes_.id(lane));
    lanes_.show_lane(lane, format::LaneState::kDead);  // until all is done (finish_begun_lanes)
    lanes_.take_counters(lane);
    shm::adopt_lane(core_.region, lane, findings_);
  }
  shm::adopt_lane(core_.region, lanes_.first, findings_);
  if (core_.region.is_shared()) lanes_.in_use.add(lanes_.first);
  lanes_.show_lane_bits();
}

void Restart::adopt_regions() {
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    const bool is_own = !core_.region.is_shared() || shm::adopt_region(core_.region, i, core_.host);
    const shm::RegionWord shown{core_.region.region(i).word.load_acquire()};  // [pairs region.word]
    RegionEntry& entry = regions_[i];
    entry.generation = shown.generation();
    entry.is_foreign = false;
    if (!is_own) {
      entry.is_foreign = shown.state() != RegionState::kUnused;
      entry.state = entry.is_foreign ? RegionState::kDraining : RegionState::kUnused;
      continue;
    }
    entry.state = RegionState::kDraining;  // until its pages show its real state
    if (shown.state() == RegionState::kRented && lanes_.is_live(shown.owner().lane) && !lanes_.is_dead(shown.owner())) {
      entry.state = RegionState::kRented;
      entry.owner = shown.owner();
      entry.was_found = true;
    }
  }
}

void Restart::adopt_pages(std::span<const LaneId> begun) {
  std::vector<uint32_t> children(core_.pages(), 0);
  shm::Adoption adoption = {
      .daemon = &core_.self, .dead = &lanes_, .sink = &findings_, .begun = begun, .children = children};
  for (uint64_t page = 0; page < core_.pages(); ++page)
    if (regions_.owns_page(uint32_t(page))) shm::flag_count(core_.region, uint32_t(page));
  lanes_.is_adopting = true;
  for (uint64_t i = 0; i < core_.pages(); ++i) {
    const auto page = uint32_t(i);
    const PageWord now = shm::adopt_page(adoption, page);
    if (now.is(PageState::kPoisoned) || now.is(PageState::kReady) || now.is(PageState::kReserved)) poison_.adopt(page);
    if (now.is(PageState::kRetired) && now.lane() == lanes_.daemon) retired_.add(PageRef::of(page, now.generation()));
  }
  shm::adopt_overflow(core_.region, lanes_);
  lanes_.is_adopting = false;
  for (uint64_t i = 0; i < core_.pages(); ++i) {
    const auto page = uint32_t(i);
    // In other hosts' regions: parents that the last marud's death may have left too high; these hosts' own recounts are
    // separate.
    if (const PageRef parent = shm::suspect_of(adoption, page, regions_.owns_page(page)); !parent.is_none())
      findings_.parent_suspect(parent);
  }
  children = {};
  // No block gets a place in the order yet: rebuild_queues() below sorts all of them, and single places would be searched for.
  queues_.begin_adoption();
  for (int tries = 0; tries < 3 && !findings_.parents.empty(); ++tries) {
    recounts_.resume();
    recounts_.step(false);
  }
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].state == RegionState::kRented) {
      if (room_.has(i)) shm::open_region_pages(core_.region, i);  // the pages that the last marud was about to give
      regions_.show_region(i);
    } else if (!regions_[i].is_foreign && !(core_.region.is_shared() && regions_[i].state == RegionState::kUnused)) {
      grants_.settle_region(i);
    }
  queues_.tell_time();
  for (uint32_t i = 0; i < queues_.shelves.size(); ++i) queues_.rebuild(i);
  core_.totals.queues_rebuilt = 0;
  recency_.drain_all();
  // Nothing tells how far the last marud had read the lanes of other hosts.
  for (uint32_t lane = 0; lane < lanes_.records.size(); ++lane)
    if (!lanes_.is_own(lane)) lanes_.records[lane].lost_before = lanes_.records[lane].touches.lost();
  reclaim_.take_findings(kNever);
  retired_.finish_all();
}

// Only now: a marud that dies before this leaves the next one the same lanes to ask for.
void Restart::finish_begun_lanes(std::span<const LaneId> begun) {
  for (const LaneId id : begun) {
    shm::clear_lane(core_.region, id.lane);
    lanes_.show_lane(id.lane, format::LaneState::kFree);
  }
}

}  // namespace maru::daemon
