#include "daemon/pool/lanes/lane_table.h"

#include "daemon/system/peer.h"
#include "libmaru/shm/recovery/host_reclaim.h"

#include <algorithm>
#include <span>
#include <unistd.h>

namespace maru::daemon {

void LaneTable::set_up() {
  first = core_.region.daemon_lane_of(core_.host);
  end = first + core_.region.lanes_per_host();
  hosts = core_.region.hosts();
  locks.begin(*core_.device, first);
  records.assign(core_.region.lanes(), {});
}

void LaneTable::set_up_own(uint64_t now_ms) {
  records[first].generation = core_.self.id.generation;
  records[first].who.pid = ::getpid();
  records[first].attached_ms = now_ms;
  in_use.add(first);
  show_lane(first, format::LaneState::kLive);
  shm::set_lane_bit(core_.region, first, true);
}

uint64_t LaneTable::oldest_arrival() const {
  uint64_t oldest = UINT64_MAX;
  for (uint32_t lane = first + 1; lane < end; ++lane)
    if (is_live(lane)) oldest = std::min(oldest, records[lane].arrival);
  return oldest;
}

uint64_t LaneTable::unproven() const {
  uint64_t count = 0;
  for (uint32_t lane = first + 1; lane < end; ++lane) count += is_unproven(lane);
  return count;
}

bool LaneTable::keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const {
  if (!is_live(lane)) return false;
  const LaneRecord& record = records[lane];
  // A process stays itself after it has changed its user: no other process could take the lane back. For a process of another
  // namespace only its start is known, and its user has to be the same.
  const bool is_same_process = record.pid_namespace == core_.pid_namespace
                                   ? record.who.pid == who.pid && record.who.start_time == who.start_time
                                   : is_same_start(record.who.start_time, who.start_time) && record.who.uid == who.uid;
  return record.generation == generation && is_same_process && record.same_boot;
}

LaneGrant LaneTable::keep(const ClientIdentity& who, uint32_t lane) {
  LaneRecord& record = records[lane];
  record.is_adopted = false;
  // It goes on with the description that it has, and its lock; without that the next marud must not ask for one.
  const bool has_lock = record.has_lock && lock_of(lane) == LaneLock::kHeld;
  if (record.pid_namespace != core_.pid_namespace || record.who.uid != who.uid || record.who.gid != who.gid ||
      record.has_lock != has_lock) {
    record.has_lock = has_lock;
    record.who = who;
    record.pid_namespace = core_.pid_namespace;
    show_lane(lane, format::LaneState::kLive);
  }
  return {lane, record.generation, true};
}

std::optional<LaneGrant> LaneTable::give(const ClientIdentity& who, const FileDescriptor& control) {
  const uint32_t count = core_.region.lanes_per_host() - 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t number = 1 + (next_lane_ - 1 + i) % count, lane = first + number;
    LaneRecord& record = records[lane];
    if (record.phase != LaneRecord::Phase::kFree) continue;
    next_lane_ = number % count + 1;
    const uint32_t generation = record.generation % 0xFFFF + 1;
    record = {};
    record.phase = LaneRecord::Phase::kLive;
    record.generation = generation;
    record.who = who;
    record.pid_namespace = core_.pid_namespace;
    record.attached_ms = core_.now_ms;
    record.arrival = next_arrival++;
    record.has_lock = control.is_open() && LaneLocks::lock(control.get(), lane, generation);
    show_lane(lane, format::LaneState::kLive);
    in_use.add(lane);
    shm::set_lane_bit(core_.region, lane, true);
    return LaneGrant{lane, generation, false};
  }
  return std::nullopt;
}

bool LaneTable::has_lane_in(LaneRecord::Phase phase) const {
  const auto own = std::span(records).subspan(first + 1, end - first - 1);
  return std::any_of(own.begin(), own.end(), [&](const LaneRecord& record) { return record.phase == phase; });
}

void LaneTable::show_lane(uint32_t lane, format::LaneState lane_state) {
  const LaneRecord& record = records[lane];
  format::LaneIdentity& identity = core_.region.identity(lane);
  // Until the last of them is there, a live lane is one of no namespace at all: a marud that finds it so believes no pid.
  constexpr uint64_t kNowhere = UINT64_MAX;
  identity.pid_namespace.store_relaxed(kNowhere);
  identity.process.store_release(uint64_t(record.who.pid));
  identity.start_time.store_relaxed(record.who.start_time);
  identity.boot_id_lo.store_relaxed(core_.boot_id[0]);
  identity.boot_id_hi.store_relaxed(core_.boot_id[1]);
  identity.credentials.store_relaxed(uint64_t(record.who.uid) << 32 | record.who.gid);
  identity.attached_ms.store_relaxed(record.attached_ms);
  identity.pid_namespace.store_release(record.pid_namespace);
  const bool has_lock = record.has_lock && lane_state == format::LaneState::kLive;
  identity.state.store_release(uint64_t(record.generation) << 48 | (has_lock ? format::kLaneHasLock : 0) |
                               uint64_t(lane_state));  // last: a whole identity
}

// A search for pins reads this after its RETIRED; a lane is handed out after it. The bits of other hosts stay.
void LaneTable::show_lane_bits() {
  for (uint32_t lane = first + !core_.region.is_shared(); lane < end; ++lane)
    shm::set_lane_bit(core_.region, lane, in_use.has(lane));
}

// The totals lie in marud's own lane as well, for the next marud. Each counter is shown there before it ends in the client's
// lane. So a marud that dies between the two has it counted twice, and never lost. A total that fell would look like a total
// that began anew, and all of it like new.
void LaneTable::take_counters(uint32_t lane) {
  format::LaneHeader& header = *core_.region.lane(lane).header;
  format::LaneHeader& own = *core_.region.lane(first).header;
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) {
    core_.totals.counters[i] += header.counter(i);  // the client's words: any value
    own.counters[i].store_relaxed(core_.totals.counters[i]);
    header.own_counters[i].store_relaxed(0);  // its writer is gone
    header.counters[i].store_relaxed(0);      // as above
  }
}

uint64_t LaneTable::lost_touches() const {
  uint64_t lost = core_.totals.lost_touches;
  for (const LaneRecord& record : records) lost += record.lost();
  return lost;
}

uint64_t LaneTable::look_lines() const {
  constexpr uint64_t kOwnLines = 4, kSlotsPerLine = 8;
  uint64_t lines = kOwnLines;
  shm::with_other_hosts(core_.region, in_use).for_each(core_.region.lanes(), [&](uint32_t lane) {
    ++lines;
    if (core_.region.lane_header(lane).pin_overflow.load_relaxed() != 0)  // a guess
      lines += core_.region.layout().pin_overflow_slots / kSlotsPerLine;
  });
  return lines;
}

}  // namespace maru::daemon
