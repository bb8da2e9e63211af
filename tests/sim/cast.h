// The cast: what a client or marud does in a scenario, through the functions of libmaru/shm alone, and after each call
// whether the result was right. A result is right if it was true at some step of the call.
#pragma once

#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/block_store.h"
#include "world.h"

#include <array>
#include <span>

namespace maru::sim {

// One client: a process with a lane. Several fibres of the process may share it, as threads do.
struct Client {
  LaneId lane;
  shm::PinTable pins;
  shm::LaneContext context;
  unsigned process = 0;
};

// Client number `lane`, fresh. `generation` of its lane.
Client& client(uint32_t lane);
void make_client(uint32_t lane);
// All of `keys` in turn, each under the one before, as engines do; goes on with the winner where it lost. How many are there.
uint32_t store_chain(Client& who, uint32_t first, uint32_t count);
// How many of the keys from `first` are there, by match_prefix; holds them, looks at their payload, releases them.
uint32_t match_chain(Client& who, uint32_t first, uint32_t count);
// A fibre's argument that says which lane it plays.
inline void* argument_of(uint32_t lane) { return reinterpret_cast<void*>(uintptr_t(lane)); }
inline uint32_t lane_of(void* argument) { return uint32_t(reinterpret_cast<uintptr_t>(argument)); }
inline Client& client_of(void* argument) { return client(lane_of(argument)); }
// marud: lane 0 of the running epoch.
Client& marud();
void make_marud();
// The next marud, after the one before died: another epoch, and it knows nothing. It adopts the pool: reclaims what no live
// lane and no marud of this epoch owns.
void make_marud_again();
void adopt();
// For the process of the next marud: waits for the end of the first marud. If the first died, makes marud again: true, and
// the caller adopts the pool.
bool make_next_marud();

// A page for a block, taken from FREE; none if there is no FREE page. Tries from a page that chance chooses.
PageRef take_page(Client& who);
// A run of `pages` contiguous pages inside one region.
PageRef take_run(Client& who, uint32_t pages);
void give_back(Client& who, PageRef page);

// Stores `key` under `parent` in a page of its own, with payload. What became of it.
struct Stored {
  shm::PublishStatus status = shm::PublishStatus::kNotReserved;
  PageRef block;  // kStored and kDuplicate
};
Stored store(Client& who, uint32_t key, PageRef parent = PageRef::none(), uint32_t pages = 1);
// The same in a page that the client has taken already. What was not stored stays RESERVED when `keeps`.
Stored store_in(Client& who, uint32_t key, PageRef own, PageRef parent, bool keeps = false);
// The same with bytes that are there already.
Stored publish_in(Client& who, uint32_t key, PageRef own, PageRef parent, bool keeps = false);
// All of `keys` as one batch: all pages first, then each block under the one before. How many are there.
uint32_t store_chain_batch(Client& who, uint32_t first, uint32_t count);
// Everything that is stored from now on counts for this tenant, 0 for none. marud's returns go to `returns`, and a dead lane's
// accounts to `fold`. Until the next make_marud().
void play_with_tenant(uint64_t tenant, shm::TenantReturns* returns, void (*fold)(uint32_t lane));
// The wall clock of the world, in milliseconds; and how long blocks live that are stored from now on, 0 for ever.
uint64_t now_ms();
void advance_time(uint64_t milliseconds);
void set_time_to_live(uint64_t milliseconds);
// Somebody stores below a block whose store has not returned yet: it may lose its key to another and stay for its children.
void allow_early_children();
bool has_early_children();

// Finds and pins; while it holds the pin, looks at the payload and lets others go on; unpins. Returns whether it was a hit.
bool retrieve(Client& who, uint32_t key);
// The two halves of it. None: a miss.
struct Held {
  PageRef ref;
  uint32_t slot = 0;
};
// Stores as maru_store_pinned does: under a pin from before the first step, which stays when the block was stored.
Held store_and_hold(Client& who, uint32_t key, PageRef parent = PageRef::none());
Held find_and_hold(Client& who, uint32_t key);
// Fails unless a valid entry of this key named this life of this page since `start`, a former value of steps().
void expect_named(PageRef ref, uint32_t key, uint64_t start);
// The bytes that the scenarios store as `key`; check_key() fails unless the block shows them. The caller holds the block.
std::span<const std::byte> key_text(uint32_t key);
void check_key(PageRef ref, uint32_t key, const char* who);
void release(Client& who, Held held);
// Moves a pin to another slot: the new slot goes through the whole protocol before the old one is cleared.
Held move_pin(Client& who, Held held);

bool exists(uint32_t key);

// The same of at most kBatchMax keys in one call (cast_batch.cc); of what was found all is held at a time. How many are there.
// Not where blocks expire.
inline constexpr size_t kBatchMax = 8;
uint32_t retrieve_batch(Client& who, std::span<const uint32_t> keys);
uint32_t exists_batch(std::span<const uint32_t> keys);

// A call's result is compared with what was true during the call. What the caller has stored last may still be in its
// buffer, and then nobody could know the result yet; so the comparison is made after everything became visible, and in
// some schedules not at all, or no store would ever linger beyond a call. Whether it is to be made now.
bool compare_result();

// Deletes the key and frees its page, or leaves it to marud when it is pinned.
shm::RetireStatus remove(Client& who, uint32_t key);
// Frees what is RETIRED by `who` and not pinned.
void free_or_hand_over(Client& who, PageRef ref);

// marud evicts pages that are READY, childless and unpinned, in one batch. `thread`: 0 or 1; each counts its attempts.
void evict_pages(std::span<const uint32_t> pages, uint32_t thread = 0);
void evict_page(uint32_t page);
// marud retires every childless block, pinned or not, also one that is being published.
void clear_blocks();
// marud frees RETIRED pages that were handed to it.
void free_handed_over();
// For make_marud and play_with_tenant: nothing is reclaimed yet; who folds a dead lane's accounts.
void begin_reclaims();
void fold_lanes_with(void (*fold)(uint32_t lane));
// marud takes back what a dead client held. The client must be dead.
void reclaim_lane(uint32_t lane);
bool is_lane_live(uint32_t lane);  // by its identity: it may be rented a region
// marud's part in most scenarios: reclaims whoever dies, until every process in the mask has ended.
void reclaim_the_dead(unsigned process_mask);

// For finish: what is dead and not reclaimed yet is reclaimed, what was handed over is freed, and then the world must be
// at rest (rest.cc).
void settle_world();
void check_rest();

// Counts the children of one block again until the count is in.
void recount(PageRef parent);

// Bad memory (cast_poison.cc). marud says that a page is bad; and lets go of what POISONED blocks still hold, as far as it may,
// as removal/poison.cc does. `at_rest`: nobody works any more, so all of it must go.
void poison(uint32_t page);
void settle_poison(bool at_rest);
bool poisons();  // something was POISONED in this schedule
bool is_poisoned_by_scenario(uint32_t page);
bool is_poison_let_go(uint32_t page);
void begin_poison(bool of_schedule);  // a new marud knows nothing; a new schedule neither
// The same for maruds that are not lane 0's: what each knows, in its private memory.
struct PoisonKnowledge {
  std::array<bool, kWorldPages> is_held = {}, was_let_go = {};
  std::array<unsigned, kWorldPages> filled_by = {};  // processes that may still write behind this head, as a mask
};
// Whether the page is POISONED because of this call.
bool poison_as(Client& who, uint32_t page, PoisonKnowledge& known);
// Takes away what is below a POISONED block, leaves first. Whether nothing is left that names it.
bool take_descendants(Client& who, PageRef above, const PoisonKnowledge& known);
bool has_filler(uint32_t page, const PoisonKnowledge& known);

shm::LaneSet live_lanes();

// Valid registry entries that name this life of the page.
uint32_t entries_of(uint32_t page, uint32_t generation);

}  // namespace maru::sim
