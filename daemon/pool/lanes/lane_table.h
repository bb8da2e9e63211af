// The lanes, as marud knows them: the process of each, and whether it is dead. marud's own truth, merely shown in the
// region.
//
//   (1) A lane that is handed out has its bit set before, and until it was reclaimed: a look for pins misses no client.
//   (2) A generation never returns to a lane before 2^16 others, so words of an earlier client name no later one.
//
// Cost: memory of marud's own; lost_touches(), give() and a look are a walk over the lanes.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/lanes/lane_locks.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

namespace maru::daemon {

struct LaneRecord {
  enum class Phase : uint8_t { kFree, kLive, kReclaiming };
  Phase phase = Phase::kFree;
  uint32_t generation = 0;  // of the last hand-out, 16 bits; never 0 while a client has the lane
  ClientIdentity who;
  uint64_t attached_ms = 0;
  bool has_lock = false;    // its client was given a locked description of the control region: lane_locks.h
  bool is_adopted = false;  // from the marud before, and its process is not watched yet
  bool same_boot = true;
  uint64_t pid_namespace = 0;  // in which who.pid counts; 0: not known
  shm::TouchReader touches;
  uint64_t pins_seen = 0;    // at the last look at its slots
  uint64_t lost_before = 0;  // of another host's lane: overwritten before this marud began to read
  // kReclaiming: the pins and then the pages before these were looked at, and then so many overflow buckets.
  uint32_t pins_looked_to = 0;
  bool has_pins = false;       // they have not ended yet
  uint64_t orphans_until = 0;  // the blocks that this lane left are before this number in the queue of orphans
  uint64_t reclaimed_to = 0, overflow_next = 0;
  uint64_t arrival = 0;  // a number that rises with each client that this marud gives a lane; 0: adopted

  uint64_t lost() const { return touches.lost() - lost_before; }
};

class LaneTable final : public shm::DeadLanes {
 public:
  explicit LaneTable(PoolCore& core) : core_(core) {}
  LaneTable(const LaneTable&) = delete;
  LaneTable& operator=(const LaneTable&) = delete;
  // Once the region is mapped and the slot of this host is known.
  void set_up();
  // marud's own lane is a lane like any other to the other hosts of a pool.
  void set_up_own(uint64_t now_ms);

  LaneId daemon;
  std::vector<LaneRecord> records;
  std::unordered_set<uint32_t> let_go;  // POISONED pages whose parents need not count them any more
  shm::LaneSet in_use;  // lanes whose pins count: from before a lane is handed out until it was reclaimed

  // Lanes [first, end) are this marud's to give out, `first` is its own. The lanes beyond, in a pool of several hosts, are the
  // others', which are alive unless their host is being taken back.
  uint32_t first = 0, end = 0;
  uint32_t hosts = 1;
  uint32_t dead_host = kNoHost;
  uint64_t next_arrival = 1;
  // The marud that adopts has touched nothing yet. Clients can write the epoch, so its lane may have the generation of an
  // earlier marud: a word that names the lane is an earlier marud's in any case.
  bool is_adopting = false;
  LaneLocks locks;

  bool is_own(uint32_t lane) const { return lane >= first && lane < end; }
  bool is_live(uint32_t lane) const {
    return is_own(lane) && lane != first && records[lane].phase == LaneRecord::Phase::kLive;
  }
  LaneId id(uint32_t lane) const { return {lane, records[lane].generation}; }
  // Whether one of the lanes to give out is in this phase.
  bool has_lane_in(LaneRecord::Phase phase) const;
  LaneLock lock_of(uint32_t lane) const {
    return records[lane].has_lock ? locks.ask(lane, records[lane].generation) : LaneLock::kUnknown;
  }
  // marud cannot watch its process from this pid namespace, and no lock says whether a process maps the lane.
  bool is_unproven(uint32_t lane) const {
    const LaneRecord& record = records[lane];
    return is_live(lane) && record.is_adopted && record.same_boot && record.pid_namespace != core_.pid_namespace &&
           lock_of(lane) == LaneLock::kUnknown;
  }
  uint64_t unproven() const;
  // Of the live clients. A client with a higher number came later; UINT64_MAX: there is none.
  uint64_t oldest_arrival() const;
  bool is_dead(LaneId lane) const override {
    if (!is_own(lane.lane)) {
      const uint32_t host = lane.lane / (end - first);
      return host >= hosts || host == dead_host;
    }
    if (lane.lane == first) return is_adopting || lane != daemon;
    return !is_live(lane.lane) || records[lane.lane].generation != lane.generation;
  }
  bool is_let_go(uint32_t page) const override { return let_go.contains(page); }

  // Whether a process has this life of this lane.
  bool keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const;
  // It goes on with that lane.
  LaneGrant keep(const ClientIdentity& who, uint32_t lane);
  // A free lane for a process, which gets its lock when `control` is open; nothing when none is free.
  std::optional<LaneGrant> give(const ClientIdentity& who, const FileDescriptor& control);

  // The words of a lane, for clients and for the marud after this one.
  void show_lane(uint32_t lane, format::LaneState state);
  void show_lane_bits();
  // The totals of a client that is gone become marud's.
  void take_counters(uint32_t lane);

  // Of all lanes, since this marud began.
  uint64_t lost_touches() const;
  // The cache lines that a look at all lanes for one block reads: the block's own line, a set of slots of each lane, and the
  // overflow slots of lanes that have some.
  uint64_t look_lines() const;

 private:
  PoolCore& core_;
  uint32_t next_lane_ = 1;  // where the search for a free lane starts, so that a number rests
};

}  // namespace maru::daemon
