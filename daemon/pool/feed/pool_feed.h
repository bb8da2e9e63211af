// A pool's feed: when there is one, and where each turn looks for news. feed.h describes the news.
//
//   (1) There is a feed while a program follows, and for a while after the last one.
//   (2) A part that takes a block away says so here before the block's page is FREE.
//
// Cost: nothing while no program follows; then two lines for each touch that is read, and walks with budgets (limits.h).
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/feed/feed.h"
#include "daemon/pool/feed/follow.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/region_table.h"
#include "libmaru/shm/blocks/touch.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace maru::daemon {

class PoolFeed {
 public:
  PoolFeed(PoolCore& core, LaneTable& lanes, RegionTable& regions) : core_(core), lanes_(lanes), regions_(regions) {}
  PoolFeed(const PoolFeed&) = delete;
  PoolFeed& operator=(const PoolFeed&) = delete;

  bool is_there() const { return feed_ != nullptr; }
  // One more follower. Errors: of Feed::make; EFBIG; EMFILE.
  Result<FollowGrant> follow();
  void unfollow(uint64_t incarnation);
  // The pool has no turns any more, and its followers no news.
  void end() { feed_.reset(); }

  // marud has taken a block away: its page is RETIRED or POISONED, and its line is still there. `reason`: as the feed has it.
  void removed(PageRef ref, EvictReason reason);
  void removed_by(PageRef ref, uint32_t reason);
  // By its touch a publisher says where its block is. Touches of other hosts' lanes count as well. A request for memory may
  // wait for this call: it notes the pages, and the ends of turns look at them.
  void touched(std::span<const shm::Touch> found);

  // A step of the first look at all pages. Returns true when it is not complete.
  bool fill(uint64_t pages) { return feed_ && feed_->is_filling() && feed_->fill(pages); }
  // Before a walk: which lanes may have removed blocks, or stored some without a trace in their rings.
  void note_moves();
  // Pages that the next walk is worth.
  uint64_t pages_wanted() const { return feed_ ? feed_->looks.pages_now() : 0; }
  void walk(uint64_t pages);
  // The end of a turn. Returns true when there is more to do right away.
  bool end_turn(bool has_more);
  // How soon the next turn is wanted.
  std::optional<uint64_t> turn_ms() const;

 private:
  void look(uint32_t page);
  bool look_at_touched();

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  std::unique_ptr<Feed> feed_;  // null: no program follows
};

}  // namespace maru::daemon
