// Draining a pool: no client gets memory of it any more, and blocks without pins go, region by region, a bounded step a turn. A
// region is taken as docs/format.md has it ("A region is taken from its owner", steps 2 to 4 and 7), and given to no client.
// Its word is DRAINING, its free pages OUT. Blocks go leaves first; blocks with children have their turn in a later round. A
// pinned block stays where it is, readable, until it is released. A pool is drained when every page is OUT or POISONED.
//
// In a pool that several hosts share, a host drains its own part: the regions that it looks after. Each becomes unused, for the
// others to rent, when it is empty. It does not empty regions of other hosts, or unused regions.
//
//   (1) left() has the counts of the last whole round.
//
// Cost: a turn's budget of lines; after a round that took nothing away a pause.
//
// Thread safety: one thread. If marud dies here: the next marud finds DRAINING regions and settles them, and its host tells it
// to go on draining.
#pragma once

#include "daemon/pool/memory/grants.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace maru::daemon {

// The pages and blocks that draining has left.
struct DrainCount {
  uint64_t pages = 0;   // in use
  uint64_t blocks = 0;  // among them
  uint64_t pinned = 0;  // among those
};

class Drain {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Evictor& evictor;
    Grants& grants;
  };
  explicit Drain(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        evictor_(below.evictor),
        grants_(below.grants) {}
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // Off: clients may rent again.
  void set(bool is_draining);
  bool is_on() const { return is_on_; }
  bool is_done() const { return is_on_ && counted_ && left_.pages == 0; }
  bool has_counted() const { return counted_; }
  const DrainCount& left() const { return left_; }
  // Regions that it took from their owners since this was last asked.
  std::vector<TakenRegion> take_news() { return std::exchange(news_, {}); }
  // Returns true when there is more to do right away.
  bool step(const LineBudget& budget);

 private:
  enum class Part : uint8_t { kBegin, kEvict, kClose, kCount };
  bool drain_one_region(uint32_t index, const LineBudget& budget);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Evictor& evictor_;
  Grants& grants_;
  bool is_on_ = false;
  uint32_t region_ = 0;       // the next one
  Part part_ = Part::kBegin;  // of it
  uint32_t page_ = 0;         // of it, the next one
  uint64_t used_before_ = 0;  // counted before it
  uint64_t again_ms_ = 0;     // a whole round took nothing away: not before this
  bool took_ = false;         // something in this round
  DrainCount counts_, left_;  // of this round so far, and of the last whole one
  bool counted_ = false;      // there was a whole one
  std::vector<TakenRegion> news_;
};

}  // namespace maru::daemon
