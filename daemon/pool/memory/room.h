// Room for the regions of a pool whose file system has not promised it (region_room.h): clients get regions with room alone.
//
//   (1) A page is FREE only where its region has room. Pages that lanes hold stay theirs.
//
// Cost: memory of marud's own; the file system is asked by a thread aside.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/shortage.h"
#include "daemon/pool/memory/region_room.h"
#include "daemon/pool/region_table.h"

#include <cstdint>
#include <memory>
#include <string>

namespace maru::daemon {

class PoolRoom {
 public:
  PoolRoom(PoolCore& core, RegionTable& regions) : core_(core), regions_(regions) {}
  PoolRoom(const PoolRoom&) = delete;
  PoolRoom& operator=(const PoolRoom&) = delete;
  Result<void> set_up();

  bool has(uint32_t index) const { return !room_ || room_->has(index); }
  // An earlier marud may have given out pages that have no room.
  void adopt();
  // FREE pages without room become OUT, so that no client takes them.
  void close_bare_pages();
  // A turn. Regions that an earlier marud gave out get room as soon as the file system has some.
  void step();
  // For a request that has got nothing. A caller that may not wait takes the room now.
  bool waits_for_room(const Shortage& shortage, bool may_wait);

  bool is_asked() const { return room_ != nullptr; }  // the file system promised nothing
  bool is_busy() const { return room_ && room_->is_busy(); }
  uint64_t lacking_bytes() const { return room_ ? room_->lacking_bytes() : 0; }
  std::string full_because() const { return room_ ? room_->full_because() : std::string(); }

 private:
  PoolCore& core_;
  RegionTable& regions_;
  std::unique_ptr<RegionRoom> room_;  // null: every region has some
  uint64_t again_ms_ = 0;
};

}  // namespace maru::daemon
