// The order of eviction: queues of blocks from cold to warm, as the pool's policy places them. The links are in the policy
// table, so that they cost no memory of marud's own; the ends of the queues are private.
//
// The pages of a region lie on shelves, some thousand pages on each, and each shelf has queues of its own. So a sort of damaged
// queues is short, and so is a search for a place. A choice merges the cold ends of all shelves, so the order does not depend
// on them.
//
// Only marud writes the policy table, but a client can scribble over it. So every index is checked before it is used. A link
// whose neighbour does not agree makes the queue count as damaged, and the caller answers with rebuild(). If the process dies
// here: the next marud rebuilds every queue from the words and ticks, never repairs.
//
// A queue belongs to a shelf, a tenant and a queue number of the policy. Invariants: a block stands in one queue at most, of
// its own shelf; `order` never falls from the cold end to the warm end.
//
// Thread safety: one thread. Every walk counts its steps. A search for a place looks at some hundred sampled blocks. It goes a
// bounded number of steps from the nearest sample, even if a client has scribbled over the links.
#pragma once

#include "daemon/base/line_meter.h"
#include "daemon/base/page_bits.h"
#include "maru/format/control_region.h"
#include "maru/policy.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

namespace maru::daemon {

// Where the order gets its facts from: the pool, or a simulation.
class BlockFacts {
 public:
  // Fills the fields in `needs`; word and last_use are filled already.
  virtual void read(uint32_t page, uint32_t needs, PolicyBlock& block) const = 0;
  // A small number for the block's tenant; 0 when tenants do not matter.
  virtual uint32_t tenant(uint32_t page) const = 0;
  // The tenant's class: a lower class goes first under every policy; kTenantProtected does not go at all.
  virtual uint32_t tenant_class(uint32_t tenant) const = 0;
  virtual PolicyTenant tenant_usage(uint32_t tenant) const = 0;

 protected:
  ~BlockFacts() = default;
};
inline constexpr uint32_t kTenantProtected = ~0u;

class EvictionOrder final : private PolicyQueues {
 public:
  EvictionOrder() = default;
  // `entries` is one per page of whole regions. All live as long as the order.
  EvictionOrder(std::span<format::PolicyEntry> entries, uint32_t region_pages, const BlockFacts& facts);

  // Empties all queues; words count as unknown to this policy unless keep_words says that it wrote them. Not owned.
  // keep_unknown: shelves that have no queue here belong to another host, and their entries stay.
  void set_policy(Policy& policy, bool keep_words, bool keep_unknown = false);
  Policy& policy() const { return *policy_; }
  // Another policy chooses from now on. The queues of a shelf stay until unlearn() ends them. Not owned.
  void change_policy(Policy& policy) { policy_ = &policy; }
  void set_pool(const PolicyPool& pool) { pool_ = pool; }  // the policy's facts from now on
  // Counts there from now on the lines of memory that searches for a place read. It must live as long. Null: no count.
  void count_lines(LineMeter* meter) { meter_ = meter; }

  // -- a block --------------------------------------------------------------------------------------------------------
  bool contains(uint32_t page) const { return entry(page).list.load_relaxed() != 0; }
  // Whether the entry speaks of this life of the page. Of the last life before generations wrap around it says 0, as if of
  // none: such a block is known while it is in a queue.
  bool knows(uint32_t page, uint32_t generation) const {
    const uint32_t mark = generation + 1;
    return entry(page).generation.load_relaxed() == mark && (mark != 0 || contains(page));
  }
  uint64_t last_use(uint32_t page) const { return entry(page).last_use_ms.load_relaxed(); }

  // A life of the page that was not known before: sets the tick, forgets the old word, tells the policy. Not in a queue yet.
  void learn(uint32_t page, uint32_t generation, uint64_t tick);
  // A use at this tick, of a known block in or out of a queue: tells the policy. A block in a queue moves if its new place is
  // the warm end of a queue; otherwise it is left out of the queues, for insert(). False if a queue was damaged.
  bool use(uint32_t page, uint64_t tick);
  // Raises the last use without telling the policy of a use: for a parent whose child left. As use() for the queues.
  bool inherit(uint32_t page, uint64_t tick);
  // Tells the policy of the known block `page` that its child `child` was evicted. As use() for the queues.
  bool child_left(uint32_t page, uint32_t child);
  // Puts a known block that is in no queue to its place: at once at either end, by a bounded search elsewhere. False if the
  // queue was damaged, or if the search finds no place within its bound: rebuild() sorts the block in.
  bool insert(uint32_t page);
  // Whether insert() would find its place at an end.
  bool is_at_an_end(uint32_t page) const;
  // Takes it out, if it is in. False if the queue was damaged.
  bool remove(uint32_t page);
  void was_evicted(uint32_t page);
  // A copy of the known block is elsewhere, as in a tier: it goes before blocks that the policy finds equally cold. This
  // holds for this life of the page, as long as its shelf is ours.
  void note_copy(uint32_t page);
  bool has_copy(uint32_t page) const { return has_copies_ && copies_.has(page); }

  // -- a shelf --------------------------------------------------------------------------------------------------------
  // Pages of a shelf at most: so many are sorted at once. In a pool of very many pages a shelf has more of them, since each
  // choice looks at every shelf.
  static constexpr uint32_t kShelfPages = 1u << 11;
  static constexpr uint64_t kShelvesMax = 1u << 10;  // or as many as regions
  uint32_t shelf_pages() const { return shelf_pages_; }
  uint32_t shelves() const { return uint32_t(shelves_.size()); }
  uint32_t shelf_of(uint32_t page) const {
    if (shelves_per_region_ == 1) return page / region_pages_;
    return page / region_pages_ * shelves_per_region_ + page % region_pages_ / shelf_pages_;
  }
  // The first shelf of a region. Shelves of a region follow each other.
  uint32_t first_shelf(uint32_t region) const { return region * shelves_per_region_; }
  uint32_t region_of_shelf(uint32_t shelf) const { return shelf / shelves_per_region_; }
  uint32_t first_page(uint32_t shelf) const {
    return region_of_shelf(shelf) * region_pages_ + shelf % shelves_per_region_ * shelf_pages_;
  }
  uint32_t end_page(uint32_t shelf) const {
    return std::min(first_page(shelf) + shelf_pages_, (region_of_shelf(shelf) + 1) * region_pages_);
  }

  // Empties the shelf's queues.
  void clear(uint32_t shelf_index);
  // The same without a write to the entries, which are another host's by now.
  void forget(uint32_t shelf_index);
  // The shelf was another host's, and its blocks may be others by now. No copy of them is known.
  void forget_copies(uint32_t shelf_index);
  // Empties them, and puts these known blocks of the shelf in, sorted.
  void rebuild(uint32_t shelf_index, std::span<const uint32_t> pages);
  uint64_t count(uint32_t shelf_index) const { return shelves_[shelf_index].count; }
  // Choosing met damage: the choice of Coldest from this shelf is incomplete until rebuild().
  bool is_damaged(uint32_t shelf_index) const { return shelves_[shelf_index].is_damaged; }
  // The words of the shelf's entries belong to another policy: until learn_anew() this policy is told nothing of its blocks,
  // and only their ticks go on. Its queues end.
  void unlearn(uint32_t shelf_index);
  bool is_unlearned(uint32_t shelf_index) const { return shelves_[shelf_index].is_unlearned; }
  // Its words are void, and the policy is told of its blocks again: for learn(), and then rebuild().
  void learn_anew(uint32_t shelf_index);
  // From cold to warm, queue by queue, for listings and tests.
  std::vector<uint32_t> listed(uint32_t shelf_index) const;

  // -- choosing -------------------------------------------------------------------------------------------------------
  // Among equally cold blocks, those with a copy elsewhere go first. All blocks are kHere until the first copy is noted.
  enum class Copy : uint8_t {
    kHere,
    kNotLooked,  // not of this block, and perhaps of an equally cold one behind it in its queue
    kNone
  };
  // Decides between two blocks: the lower key goes first.
  struct Key {
    uint32_t tenant_class = 0;
    uint64_t major = 0;  // queue, or rank
    uint64_t order = 0;
    Copy copy = Copy::kHere;
    uint32_t page = 0;  // makes the order total
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  Key key(uint32_t page) const;
  // The key that the block would have with this last use.
  Key key(uint32_t page, uint64_t last_use) const;

  // Merges the cold ends of regions' queues. Blocks may enter and leave queues while it is used: push() tells it of blocks that
  // entered. One entry of the heap for each queue is live; it may be too early, never too late.
  class Coldest {
   public:
    // `lines_left` (may be null, lives as long): lines of memory that may be read yet, of which each spared block costs
    // kLinesOfASpare; with none left after a spare peek() gives nothing. A quarter of them may go into looks for copies; then
    // equally cold blocks go in the order of their queues.
    Coldest(EvictionOrder& order, std::span<const uint32_t> regions, uint64_t* lines_left = nullptr);
    // The block that goes next; it stays in its queue. False: none is left. Blocks that the policy spares are moved on the way.
    bool peek(uint32_t* ret_page, Key* ret_key);
    // The queue that this block stands in may have a new cold end. Blocks of other regions than those given are ignored.
    void push(uint32_t page);
    // The queues of this shelf were built anew.
    void push_shelf(uint32_t shelf);

   private:
    static constexpr uint64_t kLinesOfASpare =
        4;  // its entry, its neighbours' entries before and after, the block's own
    // With Ranking::kByPlace only the lowest queue of a tenant on a shelf competes, and `queue` is 0.
    struct End {
      uint32_t shelf;
      uint32_t tenant;
      uint32_t queue;
      friend bool operator==(const End&, const End&) = default;
    };
    struct EndHash {
      size_t operator()(const End& end) const {
        return (uint64_t(end.shelf) << 32 | end.tenant) * 0x9e3779b97f4a7c15ull + end.queue;
      }
    };
    struct Entry {
      Key key;
      End end;
      friend bool operator>(const Entry& a, const Entry& b) { return a.key > b.key; }
    };
    uint32_t cold_link(const End& end) const;
    uint32_t copy_behind(const Key& cold);
    void push_end(const End& end);
    EvictionOrder& order_;
    bool by_rank_;
    std::vector<uint32_t> regions_;  // sorted
    uint64_t* lines_left_;
    uint64_t look_lines_left_;
    uint64_t spares_left_ = 0;
    uint64_t turns_left_ = 0;  // of all calls of peek()
    std::unordered_map<End, Key, EndHash> live_;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
  };

 private:
  struct List {
    uint32_t shelf = 0;
    uint32_t queue = 0;
    uint32_t tenant = 0;
    uint32_t cold = 0, warm = 0;  // page + 1; 0: empty
    uint64_t count = 0;
  };
  struct Shelf {
    std::map<uint64_t, uint32_t> lists;  // tenant << 32 | queue -> number of the list; none is empty
    uint64_t count = 0;
    bool is_damaged = false;
    bool is_unlearned = false;
  };

  bool is_unlearned_page(uint32_t page) const { return shelves_[shelf_of(page)].is_unlearned; }
  format::PolicyEntry& entry(uint32_t page) const { return entries_[page]; }
  uint32_t region_of(uint32_t page) const { return page / region_pages_; }
  PolicyBlock block(uint32_t page) const;
  List* list_of(uint32_t page, uint32_t said);
  uint32_t list_for(uint32_t page, uint32_t queue);
  void count_off(uint32_t queue, uint64_t blocks);
  void drop_list(uint32_t number);
  bool is_linked(uint32_t link, uint32_t number) const;
  void link(uint32_t page, uint32_t number, uint32_t colder, uint32_t warmer);
  bool change(uint32_t page, const PolicyBlock& before, const PolicyBlock& changed);
  uint64_t order_of(uint32_t link) const;
  bool goes_to_an_end(uint32_t page, const PolicyPlace& place) const;
  bool insert_at(uint32_t page, const PolicyPlace& place);
  Copy copy_of(uint32_t page) const { return !has_copies_ || copies_.has(page) ? Copy::kHere : Copy::kNotLooked; }
  uint32_t sample_below(uint32_t number, uint64_t order);
  uint64_t blocks(uint32_t queue) const override;  // PolicyQueues

  std::span<format::PolicyEntry> entries_;
  uint32_t region_pages_ = 1, shelf_pages_ = 1, shelves_per_region_ = 1;
  const BlockFacts* facts_ = nullptr;
  Policy* policy_ = nullptr;
  PolicyPool pool_;
  LineMeter* meter_ = nullptr;
  uint32_t samples_ = 0;    // blocks at which a search for a place looks first: about the root of a shelf's pages
  uint32_t steps_max_ = 0;  // that it goes from there
  uint64_t sample_seed_ = 0x9e37'79b9'7f4a'7c15;
  std::vector<Shelf> shelves_;
  std::vector<List> lists_;
  std::vector<uint32_t> unused_lists_;
  std::unordered_map<uint32_t, uint64_t> queue_blocks_;
  PageBits copies_;  // pages of blocks of which a copy is known
  bool has_copies_ = false;
};

}  // namespace maru::daemon
