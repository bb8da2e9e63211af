// Cells for keys that are longer than the inline key, in pools that have fewer cells than pages. A store that finds no cell is
// refused, even with many free pages. No client then runs out of pages, so no other work would take the cold holders away. So
// when stores were refused and few cells are free, marud evicts a quarter of the movable blocks that hold cells, in the order
// of the policy. It stops when a quarter of the cells is free.
//
// Refusals are counted by clients, which may lie. A look therefore reads some cells a turn, with a pause before the next look,
// and its evictions depend on the cells alone.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/recency.h"

#include <cstdint>
#include <map>
#include <vector>

namespace maru::daemon {

class KeyCells {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    Queues& queues;
    HeldBlocks& held;
    Recency& recency;
    Evictor& evictor;
  };
  explicit KeyCells(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        queues_(below.queues),
        held_(below.held),
        recency_(below.recency),
        evictor_(below.evictor) {}
  KeyCells(const KeyCells&) = delete;
  KeyCells& operator=(const KeyCells&) = delete;

  // Returns true when there is more to do right away.
  bool step();

 private:
  struct Look {
    bool is_looking = false, has_looked = false;  // at all cells; then the blocks of `coldest` go
    bool is_freeing = false;                      // until a quarter is free
    uint64_t refused_seen = 0;                    // stores, at the last look at the counters
    uint64_t look_again_ms = 0;
    uint64_t round = 0;                       // of has_caught_up()
    uint64_t next = 0;                        // cell
    uint64_t held = 0, movable = 0;           // of the cells looked at: with a holder, and with a holder that may go
    uint64_t went = 0, pinned = 0;            // of the chosen blocks
    std::vector<EvictionOrder::Key> coldest;  // the holders that may go; sorted when all were looked at
  };

  uint64_t stores_refused() const;
  void begin();
  void look_at(uint64_t cell);
  void choose_holders();
  bool is_enough_of_tenant(uint32_t page, std::map<uint32_t, uint64_t>& taken) const;
  void evict_holders();

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Queues& queues_;
  HeldBlocks& held_;
  Recency& recency_;
  Evictor& evictor_;
  Look look_;
};

}  // namespace maru::daemon
