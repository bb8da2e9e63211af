// Recency: touches from the rings of the lanes, applied to the order of eviction in the order of their ticks. Rings carry
// times, never membership: a block whose touch was lost is found by the sweep (memory/sweep.h).
//
//   (1) A round reads each ring once, as far as it has touches when its turn comes. It applies these touches as if all of them
//       had been read at once.
//   (2) This part hands on things that it must not act on: expired blocks in met_expired, and RETIRED blocks to RetiredBlocks.
//       Parents that another host's marud asks about go to Findings.
//
// Cost: some lines for each touch; a step reads and applies a bounded number of them (limits.h).
//
// Thread safety: one thread. If marud dies here: touches that were read and not applied are lost, and they are hints.
#pragma once

#include "daemon/pool/eviction/held_blocks.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/eviction/touch_backlog.h"
#include "daemon/pool/feed/pool_feed.h"
#include "daemon/pool/findings.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class Recency {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolFeed& feed;
    Findings& findings;
    Queues& queues;
    RetiredBlocks& retired;
    Rounds& rounds;
    HeldBlocks& held;
  };
  explicit Recency(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        feed_(below.feed),
        findings_(below.findings),
        queues_(below.queues),
        retired_(below.retired),
        rounds_(below.rounds),
        held_(below.held) {}
  Recency(const Recency&) = delete;
  Recency& operator=(const Recency&) = delete;

  std::vector<uint32_t> met_expired;  // pages of blocks that lookups missed since they have expired: removal/expired.h

  // A step of a round: reads and applies at most `limit` touches. Returns true at its end.
  bool drain(size_t limit);
  // All touches that are there, in one go. A ring has at most as many touches as places, so this ends for any client.
  void drain_all();
  // Reads the whole ring of a client that is gone: it ends with its lane.
  void take_last_of(uint32_t lane);
  bool has_backlog() const { return !backlog_.empty(); }

  // Whether every touch was applied, and every held block looked at, that was there when this was first asked, with `round` 0;
  // it is for the next time. Asks for one step of either at most, and turns go on.
  bool has_caught_up(uint64_t& round);
  bool has_ended(uint64_t round) const {
    return rounds_.done >= round && rounds_.held_seen >= round && !queues_.is_awaited(round);
  }

 private:
  size_t gather_lane(uint32_t lane, size_t limit);
  bool gather(size_t limit);
  void apply(size_t limit);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolFeed& feed_;
  Findings& findings_;
  Queues& queues_;
  RetiredBlocks& retired_;
  Rounds& rounds_;
  HeldBlocks& held_;
  std::vector<shm::Touch> touches_, ring_touches_;  // scratch
  TouchBacklog backlog_;                            // read and not applied
  uint32_t lanes_unread_ = 0;                       // in the round that is under way
  uint32_t drain_next_ = 0;                         // the lane that is read next
  uint64_t ring_left_ = 0;                          // that may be read of it
  size_t touches_unapplied_ = 0;                    // of the round's touches; meanwhile it reads no more
};

}  // namespace maru::daemon
