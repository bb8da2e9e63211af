// Renting: the one request by which a client gets memory. In this order: a region that no client rents; a region whose owner is
// gone; FREE pages of the asker's own regions that it does not know of; the coldest blocks of its own regions; a whole region
// of a client that rents more than its share; the coldest blocks anywhere; FREE pages of other owners; a whole region of any
// client. Refused only when nothing of this is left.
//
//   (1) A request that waits has one place, here, by its lane: the pages from earlier turns, and the regions still to be seen.
//   (2) Blocks are chosen when every use until now was read, and every block whose pins have ended is back in its queue.
//   (3) The keys of blocks that were evicted for a request are in its answer, also in a refusal.
//
// Cost: a turn of marud reads so many lines of memory for a request (limits.h), for any number of lanes. Then the request goes
// on in the next turn where it was: blocks that it has seen pinned are out of the queues. A request that has found some pages
// goes on for some turns at most (kChoiceLinesPerRequest), and then returns with them.
//
// Thread safety: one thread. If marud dies here: the grants stand in the pages and regions, under the mark of their request.
#pragma once

#include "daemon/pool/answers.h"
#include "daemon/pool/memory/drain.h"
#include "daemon/pool/memory/sweep.h"
#include "daemon/pool/memory/takeovers.h"
#include "daemon/pool/memory/windows.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

namespace maru::daemon {

class Renting {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    Queues& queues;
    RetiredBlocks& retired;
    HeldBlocks& held;
    Recency& recency;
    Evictor& evictor;
    Expired& expired;
    PoolRoom& room;
    Grants& grants;
    Sweep& sweep;
    Windows& windows;
    Takeovers& takeovers;
    Drain& drain;
  };
  explicit Renting(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        queues_(below.queues),
        retired_(below.retired),
        held_(below.held),
        recency_(below.recency),
        evictor_(below.evictor),
        expired_(below.expired),
        room_(below.room),
        grants_(below.grants),
        sweep_(below.sweep),
        windows_(below.windows),
        takeovers_(below.takeovers),
        drain_(below.drain) {}
  Renting(const Renting&) = delete;
  Renting& operator=(const Renting&) = delete;

  // `round`: 0, or the ticket of the answer before, to a request that waits. Without `may_wait` it is done when this returns.
  // `lost_because`: not empty in a pool that another host has taken from this one.
  Pending<RentResult> rent(uint32_t lane, const wire::RentRequest& request, const RentLimits& limits,
                           uint32_t request_id, uint64_t round, bool may_wait, const std::string& lost_because);
  // Whether a request with this ticket has something to go on with.
  bool may_rent(uint64_t ticket) const {
    return recency_.has_ended(ticket) && !queues_.is_reordering() && !room_.is_busy();
  }
  // A request of this lane that waited goes on no more: the keys that were evicted for it, which no client has been told.
  RentResult give_up(uint32_t lane);
  // Of a client that asks no more.
  void drop_search(uint32_t lane);
  // Whether blocks can be chosen now. Their queues must be built. Every use that was left before the first call, with `round`
  // 0, must have been read. Every block whose pins had ended by then must be back in its queue. Without a place for a round
  // that is done at once.
  bool may_choose(uint64_t* round);

 private:
  std::optional<RentResult> refusal_to(uint32_t lane, const wire::RentRequest& request,
                                       const std::string& lost_because) const;
  Search take_search(uint32_t lane, bool was_begun);
  void begin_turn(Search& search, LaneId asker, const wire::RentRequest& request, const RentLimits& limits,
                  uint32_t request_id) const;
  void begin_search(Search& search) const;
  void choose(Search& search, const wire::RentRequest& request, const RentLimits& limits);
  void choose_at_last(Search& search, std::span<const uint32_t> all);
  void look_at_retired(Search& search, std::span<const uint32_t> all);
  void look_for_free(Search& search, std::span<const uint32_t> all);
  void search_everywhere(Search& search, std::span<const uint32_t> all);
  bool takes_another_turn(Search& search) const;
  RentResult finish(Search& search, const wire::RentRequest& request, const RentLimits& limits);
  void evict(std::span<const uint32_t> in, Shortage& shortage, uint32_t rounds_max);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Queues& queues_;
  RetiredBlocks& retired_;
  HeldBlocks& held_;
  Recency& recency_;
  Evictor& evictor_;
  Expired& expired_;
  PoolRoom& room_;
  Grants& grants_;
  Sweep& sweep_;
  Windows& windows_;
  Takeovers& takeovers_;
  Drain& drain_;
  std::unordered_map<uint32_t, Search> searches_;  // by lane: of requests that go on in a later turn
  uint64_t next_full_search_ms_ = 0;
};

}  // namespace maru::daemon
