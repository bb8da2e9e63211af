// The queues of the order of eviction. This part keeps them equal to the page words, tells the pool's policy of blocks, and
// builds a shelf anew when its queues are damaged or out of order.
//
//   (1) A READY block without children that is not held is in a queue of its shelf. Otherwise the shelf waits for its turn
//       to be sorted anew, or the sweep finds the block.
//   (2) An entry of a queue is a hint. The page word says whether the block is there and may go.
//   (3) No entry of a foreign region is written: another host keeps its order there.
//   (4) While is_reordering() nothing is chosen by the queues.
//
// Cost: a place at an end of a queue is some lines; other places are searched for (eviction_order.h). A shelf is sorted anew
// from the words of its pages, and a turn does so for a bounded number of shelves.
//
// Thread safety: one thread.
#pragma once

#include "daemon/base/page_bits.h"
#include "daemon/policy/eviction_order.h"
#include "daemon/pool/core.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace maru::daemon {

struct ShelfEntry {
  bool is_unordered = false;   // its queues are empty until they are built anew
  bool is_late = false;        // blocks are missing from its queues until then; it waits in late_shelves_
  uint64_t swept_at_lost = 0;  // lost touches when its queues were last compared with the page words
};

class Queues final : public BlockFacts {
 public:
  Queues(PoolCore& core, RegionTable& regions, PoolTenants& tenants)
      : core_(core), regions_(regions), tenants_(tenants) {}
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;
  void set_up();

  std::unique_ptr<Policy> policy;
  EvictionOrder order;
  std::vector<ShelfEntry> shelves;
  PageBits held;  // out of the queues because a pin was seen

  // The last use of this life of a page, as far as it is known; never in the future.
  uint64_t tick_of(uint32_t page, uint32_t generation) const;
  // The facts for the policy from now on: the time, and the shape of the pool.
  void tell_time();
  void for_shelves(uint32_t region_index, auto&& act) const {
    for (uint32_t i = order.first_shelf(region_index); i < order.first_shelf(region_index + 1); ++i) act(i);
  }

  // -- blocks ---------------------------------------------------------------------------------------------------------
  // A life of a page that the policy has not heard of yet. Its entry may still stand in a queue for an earlier life.
  void know(uint32_t page, uint32_t generation);
  void insert(uint32_t page, uint32_t generation);
  void remove(uint32_t page);
  // A child of this block goes, or a use of a child that is gone was read: the later of the two uses is the block's. Before the
  // child is FREE, so that a death in between leaves no childless parent that is colder than its child was.
  void inherit_use(PageRef parent, uint64_t child_tick);
  // A client says that a copy of this block is elsewhere. False, and nothing happens, if its life is over, if it is another
  // host's, or if its first touch was not applied yet: to learn of it here would make that touch a use.
  bool note_copy(PageRef ref);
  // A child of this block is gone for good: without children left it may go too.
  void child_left(PageRef parent, EvictionOrder::Coldest* coldest);
  // Blocks that belong into a queue and are in none. A shelf that misses many blocks, or whose places are dear to find, is
  // sorted anew. If this turn has no room for that, the shelf waits for the next turns, and a request that waits for `round`
  // waits for it.
  void add_missing(std::vector<uint32_t>& missing, uint64_t round);

  // -- shelves --------------------------------------------------------------------------------------------------------
  // From the page words, the ticks and the policy's words alone; nothing of the old links is believed.
  void rebuild(uint32_t shelf);
  // A client scribbled over the links of this shelf. It may do so again before each touch, so only so much is built anew in a
  // turn. Until its turn comes the shelf has no queues and nothing on it is chosen; the ticks go on.
  void mend(uint32_t shelf);
  // Its queues are no order of this pool. It has its turn among the damaged shelves.
  void leave_unordered(uint32_t shelf);
  // All shelves of our own regions are about to be built: until then no block gets a place in them.
  void begin_adoption();
  // Works on late shelves, of so many pages together.
  void place_late(uint64_t pages_left);
  bool has_late() const { return !late_shelves_.empty(); }
  // Whether a shelf waits whose missing blocks belong to this round, or to an earlier round.
  bool is_awaited(uint64_t round) const;
  // A turn begins, with so much room for shelves; or for all of them.
  void begin_turn();
  void mend_without_limit() { mend_pages_left_ = kNever; }
  // Returns true when shelves still wait.
  bool step_mending();

  // -- the policy -----------------------------------------------------------------------------------------------------
  // Every block is told to the new policy as if it had been stored when it was last used; nothing of the old order is kept.
  // Costs about a tenth of a microsecond a page: in one go, or in turns, in which nothing is chosen by it.
  Result<void> set_policy(const std::string& name, const PolicyOptions& options, bool in_turns);
  bool is_reordering() const { return reorder_next_ != kNotReordering; }
  // Rises when all queues begin to be built anew. A walk that knows the order must begin anew, too.
  uint64_t reorders_begun() const { return reorders_begun_; }
  void reorder_now();

  // -- tenants --------------------------------------------------------------------------------------------------------
  bool is_by_tenant() const { return queues_by_tenant_; }
  // Tenants get queues of their own when the first limit comes, and lose them with the last one.
  void separate_tenants();
  // Before blocks are chosen: the present usage of tenants, and the tenant (0: none) that the memory is for.
  void ask_for_tenant(uint64_t asker);

  void read(uint32_t page, uint32_t needs, PolicyBlock& block) const override;
  uint32_t tenant(uint32_t page) const override;
  uint32_t tenant_class(uint32_t tenant) const override;
  PolicyTenant tenant_usage(uint32_t tenant) const override;

 private:
  static constexpr uint32_t kNotReordering = UINT32_MAX;
  struct LateShelf {
    uint32_t index;
    uint64_t round;  // a work that waits for this one, or a later one, waits for the blocks that were left out
  };

  bool may_rebuild();
  void leave_for_later(uint32_t shelf, uint64_t round);
  void begin_reorder(bool is_new_policy);
  void step_reorder();
  void relearn(uint32_t shelf);
  bool has_queues_by_tenant() const;

  PoolCore& core_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  bool queues_by_tenant_ = false;
  uint32_t asking_tenant_ = 0;                      // index of the tenant that wants memory; 0: none
  std::vector<uint32_t> unordered_shelves_;         // as their entries say; perhaps mended meanwhile
  uint64_t mend_pages_left_ = kMendedPagesPerTurn;  // this turn
  std::deque<LateShelf> late_shelves_;              // each once
  bool mends_late_ = false;                         // in the last step of mending
  uint32_t reorder_next_ = kNotReordering;          // shelf: all queues are built anew from here on
  uint64_t reorders_begun_ = 0;
};

}  // namespace maru::daemon
