// Which process holds which lane, and how it will be known that it is gone. The end of a connection only freezes a lane:
// nothing of it is reclaimed until its pidfd says that the process ended, or the same process takes it again.
#pragma once

#include "daemon/pool/pool.h"
#include "libmaru/base/file_descriptor.h"

#include <cstdint>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::daemon {

struct LaneWatch {
  uint64_t id = 0;    // never used twice, so that a late event of an earlier holder of the lane finds no watch
  uint32_t pool = 0;  // index of the hosted pool
  uint32_t lane = 0;
  ClientIdentity who;
  std::string command;
  FileDescriptor pidfd;
  uint64_t session = 0;            // 0: frozen
  uint64_t since_ms = 0;           // Unix milliseconds: connected or frozen since
  std::vector<gid_t> groups = {};  // supplementary, of the process; none known after a restart, until it connects
  // The client attached to this marud, by a socket of its own. For other watches only the pool says that the lane is theirs.
  // Any process that may write to the pool may have written that, so marud ends none of these processes.
  bool has_attached = false;
};

class LaneWatches {
 public:
  LaneWatch* find(uint64_t id) {
    const auto found = watches_.find(id);
    return found == watches_.end() ? nullptr : &found->second;
  }
  LaneWatch* find_lane(uint32_t pool, uint32_t lane) {
    const auto found = ids_.find(key_of(pool, lane));
    return found == ids_.end() ? nullptr : find(found->second);
  }
  const LaneWatch* find_lane(uint32_t pool, uint32_t lane) const {
    const auto found = ids_.find(key_of(pool, lane));
    if (found == ids_.end()) return nullptr;
    const auto watch = watches_.find(found->second);
    return watch == watches_.end() ? nullptr : &watch->second;
  }
  // Gives the watch its id. The lane has none.
  LaneWatch& add(LaneWatch watch) {
    watch.id = next_id_++;
    ids_[key_of(watch.pool, watch.lane)] = watch.id;
    return watches_[watch.id] = std::move(watch);
  }
  void remove(uint64_t id) {
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    ids_.erase(key_of(found->second.pool, found->second.lane));
    watches_.erase(found);
  }
  size_t size() const { return watches_.size(); }
  const std::map<uint64_t, LaneWatch>& all() const { return watches_; }  // in the order of their ids

 private:
  static uint64_t key_of(uint32_t pool, uint32_t lane) { return uint64_t(pool) << 32 | lane; }

  std::map<uint64_t, LaneWatch> watches_;
  std::map<uint64_t, uint64_t> ids_;  // by pool and lane
  uint64_t next_id_ = 1;
};

}  // namespace maru::daemon
