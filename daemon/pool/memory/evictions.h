// An administrator wants so many pages to be FREE. Every use until then is read, and every block whose pins have ended goes
// back to its queue. Every page is looked at once, so that the coldest blocks of all go. Each of this takes turns.
//
//   (1) The first eviction is under way; the others wait.
//
// Cost: a sweep of the pool, then a batch a turn.
//
// Thread safety: one thread. If marud dies here: a part has gone, and the administrator has no answer.
#pragma once

#include "daemon/pool/answers.h"
#include "daemon/pool/memory/renting.h"

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace maru::daemon {

struct Evicted {
  uint64_t blocks = 0, pages = 0;
};

class Evictions {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    Queues& queues;
    Rounds& rounds;
    Recency& recency;
    Evictor& evictor;
    Sweep& sweep;
    Renting& renting;
  };
  explicit Evictions(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        queues_(below.queues),
        rounds_(below.rounds),
        recency_(below.recency),
        evictor_(below.evictor),
        sweep_(below.sweep),
        renting_(below.renting) {}
  Evictions(const Evictions&) = delete;
  Evictions& operator=(const Evictions&) = delete;

  static constexpr uint64_t kPagesMax = 1u << 16;  // for one request
  // Done when this returns with `at_once`. Errors: EAGAIN too many wait.
  Result<Pending<Evicted>> evict(uint64_t pages, bool at_once);
  // Returns true when there is more to do right away.
  bool step();
  std::vector<Answered<Evicted>> take_done() { return std::exchange(done_, {}); }

 private:
  struct Eviction {
    uint64_t ticket = 0;
    uint64_t round = 0;       // of touches, and of a pass over held blocks, which it waits for
    uint64_t sweep_left = 0;  // pages
    Shortage shortage;
  };
  bool step(Eviction& eviction);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Queues& queues_;
  Rounds& rounds_;
  Recency& recency_;
  Evictor& evictor_;
  Sweep& sweep_;
  Renting& renting_;
  std::deque<Eviction> waiting_;  // the first one is under way
  std::vector<Answered<Evicted>> done_;
};

}  // namespace maru::daemon
