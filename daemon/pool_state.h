// What a Pool knows and does, for the pool*.cc files alone. The shared words are a display of what stands here, except the
// page words, which are the truth about pages for everybody.
//
// Thread safety: one thread. Nothing that comes from shared memory is used without a check; every loop over shared links or
// words counts its steps against a limit that is known before it starts.
#pragma once

#include "daemon/dax/device.h"
#include "daemon/pool.h"
#include "libmaru/shm/block_store.h"
#include "libmaru/shm/lru.h"
#include "libmaru/shm/reclaim.h"
#include "libmaru/shm/touch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace maru::daemon {

using format::RegionState;
using shm::LaneId;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

// -- limits of one step -----------------------------------------------------------------------------------------------

// Touches that one request or turn applies: sixteen full rings of the default size.
inline constexpr size_t kTouchesPerDrain = 1u << 16;
// A turn must not keep requests waiting: about a quarter of a millisecond of cold page words.
inline constexpr uint32_t kSweepPagesPerTurn = 4096;
// Turns come with every request; what is only upkeep rests in between.
inline constexpr uint64_t kUpkeepPauseMs = 10;
inline constexpr uint64_t kPinLookPauseMs = 200;
// What a dead client held is taken back before anything else, a few milliseconds at a time.
inline constexpr uint32_t kReclaimPagesPerTurn = 1u << 16;
// A detach is answered when the lane is free; only in a larger pool does the rest go on in turns.
inline constexpr uint64_t kReclaimPagesAtOnce = 1u << 20;
inline constexpr size_t kRetiredPerTurn = 1024;
inline constexpr size_t kHeldPerRequest = 256;
// Words that one request reads in search of FREE pages, or to find blocks whose touches were lost, before it evicts.
inline constexpr uint64_t kFreeScanPagesPerRequest = 1u << 15;
inline constexpr uint64_t kLostScanPagesPerRequest = 1u << 18;
// Pools up to this size are searched completely before every refusal, larger ones once in a while.
inline constexpr uint64_t kSmallPoolPages = 1u << 16;
inline constexpr uint64_t kFullSearchPauseMs = 200;
// Parents whose recount had to be postponed wait for a live client's next step.
inline constexpr uint64_t kRecountPauseMs = 20;
// Blocks missing from one list that are worth finding their places one by one; more are sorted in together.
inline constexpr size_t kSingleInsertsMax = 32;
// About a tenth of a second; a restart must answer soon.
inline constexpr uint64_t kAuditedAtStartPages = 1u << 18;
inline constexpr size_t kPinAgesMax = 1u << 16;
inline constexpr uint64_t kPinSlotsPerTurn = 1u << 14;

// Whether a pause of this length that ends at `until_ms` is still going on. A clock that was set back ends it.
constexpr bool rests(uint64_t now_ms, uint64_t until_ms, uint64_t pause_ms) {
  return now_ms < until_ms && until_ms - now_ms <= pause_ms;
}

inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// -- parts ------------------------------------------------------------------------------------------------------------

struct LaneRecord {
  enum class Phase : uint8_t { kFree, kLive, kReclaiming };
  Phase phase = Phase::kFree;
  uint32_t generation = 0;       // of the last hand-out, 16 bits; never 0 while the lane is somebody's
  ClientIdentity who;
  uint64_t attached_ms = 0;
  bool is_adopted = false;       // from the marud before, and nobody watches the process yet
  bool same_boot = true;
  shm::TouchReader touches;
  uint64_t lost_before = 0;      // touches that were overwritten before this marud began to read
  uint64_t reclaimed_to = 0;     // kReclaiming: the pages before this one were looked at

  uint64_t lost() const { return touches.lost() - lost_before; }
};

class LaneTable final : public shm::DeadLanes {
 public:
  LaneId daemon;
  std::vector<LaneRecord> records;
  shm::LaneSet in_use;           // whose pins count: from before a lane is handed out until it was reclaimed

  bool is_live(uint32_t lane) const {
    return lane > 0 && lane < records.size() && records[lane].phase == LaneRecord::Phase::kLive;
  }
  LaneId id(uint32_t lane) const { return {lane, records[lane].generation}; }
  bool is_dead(LaneId lane) const override {
    if (lane.lane == 0) return lane != daemon;
    return !is_live(lane.lane) || records[lane.lane].generation != lane.generation;
  }
};

struct RegionEntry {
  RegionState state = RegionState::kUnused;
  uint32_t generation = 0;          // 20 bits
  LaneId owner;
  uint32_t free_pages = 0;          // when it was last swept
  uint32_t used_pages = 0;
  uint64_t no_run_since = kNever;   // frees() when a search for FREE pages found nothing
  uint64_t no_run_pages = 0;        // the shortest run that was not found
  uint64_t swept_at_lost = 0;       // lost touches when its list was last compared with the page words
};

// What reclaim finds, kept until it is worked off.
class Findings final : public shm::ReclaimSink {
 public:
  std::vector<PageRef> parents;
  std::vector<PageRef> taken;
  std::vector<PageRef> orphans;     // READY and in no bucket
  uint64_t freed = 0;

  void parent_suspect(PageRef parent) override { parents.push_back(parent); }
  void retired_taken(PageRef ref) override { taken.push_back(ref); }
  void unregistered(PageRef ref) override { orphans.push_back(ref); }
  void pages_freed(uint32_t pages) override { freed += pages; }
};

// One bit for each page, private.
class PageBits {
 public:
  void resize(uint64_t pages) { words_.assign((pages + 63) / 64, 0); }
  bool has(uint32_t page) const { return (words_[page / 64] >> page % 64 & 1) != 0; }
  void add(uint32_t page) { words_[page / 64] |= 1ull << page % 64; }
  void remove(uint32_t page) { words_[page / 64] &= ~(1ull << page % 64); }

 private:
  std::vector<uint64_t> words_;
};

// What a request still lacks. With lane 0 as the asker pages are only freed, and `runs` counts pages.
struct Shortage {
  LaneId asker;
  uint64_t run_pages = 1;
  uint64_t runs = 0;
  size_t items_left = 0;          // regions and runs that the reply still has room for
  size_t key_bytes_left = 0;
  RentResult* result = nullptr;
  uint64_t blocks_evicted = 0;
  uint64_t pages_evicted = 0;

  bool takes() const { return asker.lane != 0; }
  uint64_t runs_left() const { return takes() ? std::min<uint64_t>(runs, items_left) : runs; }
  bool is_open() const { return runs_left() > 0; }
};

struct Candidate {
  uint64_t tick;
  uint32_t page;
  friend bool operator>(const Candidate& a, const Candidate& b) { return a.tick > b.tick; }
};
using ColdestFirst = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

struct PoolTotals {
  uint64_t evicted_blocks = 0;
  uint64_t evicted_pages = 0;
  uint64_t expired_blocks = 0;
  uint64_t refused_rents = 0;
  uint64_t lists_rebuilt = 0;
  uint64_t clients_reclaimed = 0;
  uint64_t lost_touches = 0;                                       // of lanes that are gone
  std::array<uint64_t, format::kLaneCounterCount> counters = {};   // of lanes that are gone
};

struct Pool::State {
  PoolConfig config;
  std::unique_ptr<Device> device;
  shm::ControlRegion region;
  uint64_t epoch = 0;
  uint64_t boot_id[2] = {};
  uint64_t now_ms = 0;               // of the call that is being served

  std::vector<AtomicU32> pin_counts;
  shm::PinTable pins;
  shm::LaneContext self;             // lane 0
  uint16_t attempt = 0;
  LaneTable lanes;
  uint32_t next_lane = 1;            // where the search for a free lane starts, so that a number rests
  std::vector<RegionEntry> regions;

  shm::LruLists lists;
  PageBits held;                     // out of the lists because a pin was seen
  std::vector<PageRef> held_blocks;
  size_t held_next = 0;
  std::vector<shm::Touch> touches;
  uint32_t drain_next = 0;
  uint64_t sweep_next = 0;           // page
  uint32_t sweep_free = 0, sweep_used = 0;
  uint64_t next_full_search_ms = 0;

  PageBits retired_known;            // in retired_blocks
  std::vector<PageRef> retired_blocks;  // RETIRED by lane 0, waiting for their pins
  size_t retired_next = 0;
  Findings findings;
  std::vector<shm::Recount> recounts;   // the pass that is under way
  uint64_t recount_next = 0;            // page; pages(): none under way
  uint64_t recount_again_ms = 0;
  uint32_t free_scan_next = 0;       // so that requests with little time look at other regions than the last one
  uint64_t own_frees = 0;            // pages freed here and taken by nobody yet

  struct PinAge { uint64_t ref; uint64_t since_ms; };
  std::unordered_map<uint64_t, PinAge> pin_ages;   // by lane << 32 | slot
  uint64_t pin_look_next = 0;
  uint64_t last_upkeep_ms = 0, last_pin_look_ms = 0;
  PoolTotals totals;
  shm::KeyBytes key;                 // scratch
  nlohmann::json audit_json;         // the last audit, for the status

  // pool.cc: lanes and life cycle
  void begin(uint64_t now);
  void show_host(bool is_clean);
  void show_lane(uint32_t lane, format::LaneState state);
  void show_lane_bit(uint32_t lane);
  Result<LaneGrant> attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation);
  bool turn();

  // pool_adopt.cc: taking over what another marud left
  void adopt_lanes(std::vector<LaneId>* ret_dead);
  void adopt_regions();
  void adopt_overflow();
  void adopt_pages(std::span<const LaneId> dead);
  void adopt_audit();

  // pool_regions.cc: who rents which region, and FREE pages
  void show_region(uint32_t index);
  void set_region(uint32_t index, RegionState state, LaneId owner);
  uint64_t frees() const;
  void show_frees() { self.header().frees.store_relaxed(own_frees); }  // a hint to the owners of regions
  uint64_t grant_region(uint32_t index, LaneId owner, uint64_t run_pages);
  void rent_regions(Shortage& shortage);
  void take_free(std::span<const uint32_t> in, Shortage& shortage, uint64_t* pages_left);
  void settle_region(uint32_t index);
  std::vector<uint32_t> regions_of(LaneId owner) const;

  // pool_rent.cc
  RentResult rent(uint32_t lane, const wire::RentRequest& request);

  // pool_evict.cc
  void push_coldest(ColdestFirst& heap, uint32_t region_index) const;
  bool evict_coldest(std::span<const uint32_t> in, Shortage& shortage);
  void finish_evicted(PageRef ref, uint64_t tick, Shortage& shortage, ColdestFirst* heap);
  void report_evicted(PageRef ref, Shortage& shortage);
  void take_freed(uint32_t first, uint32_t pages, Shortage& shortage);
  void evict(std::span<const uint32_t> in, Shortage& shortage, uint32_t rounds_max);
  size_t evict_pages(std::span<const uint32_t> pages);

  // pool_window.cc: room for a run among blocks of other sizes
  bool evict_windows(std::span<const uint32_t> in, Shortage& shortage);

  // pool_recency.cc
  uint64_t tick(uint64_t unix_ms) const;
  uint64_t tick_of(uint32_t page, uint32_t generation) const;
  uint64_t lost_touches() const;
  void drain_touches(size_t limit);
  void list_insert(uint32_t page, uint32_t generation, uint64_t at_tick);
  void list_remove(uint32_t page);
  void rebuild_list(uint32_t region_index);
  void child_left(PageRef parent, uint64_t child_tick, ColdestFirst* heap);
  void hold(PageRef ref);
  void look_at_held(size_t limit);
  void sweep(uint64_t pages);
  void sweep_region(uint32_t region_index);
  void sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired);
  void add_missing(std::vector<uint32_t>& missing);

  // pool_reclaim.cc
  bool is_registered(uint32_t page) const;
  void find_unregistered(uint32_t lane);
  void begin_reclaim(uint32_t lane);
  bool reclaim_lane(uint32_t lane, uint64_t pages);
  void finish_lane(uint32_t lane);
  void add_counters(uint32_t lane);
  void take_findings();
  void queue_retired(PageRef ref);
  void finish_retired(size_t limit);
  bool step_recounts(uint64_t pages);

  // pool_delete.cc
  DeleteTreeResult delete_tree(const wire::DeleteTreeRequest& request);
  void clear(uint64_t* ret_deleted, uint64_t* ret_retired, uint64_t* ret_left);

  // pool_admin.cc
  nlohmann::json admin(const std::string& command, const nlohmann::json& request);
  nlohmann::json list_regions(const nlohmann::json& request);
  nlohmann::json list_blocks(const nlohmann::json& request);
  PageRef named_block(const nlohmann::json& request, shm::Digest* ret_digest, nlohmann::json* ret_refusal) const;
  nlohmann::json one_block(const nlohmann::json& request);
  nlohmann::json list_pins(const nlohmann::json& request);
  nlohmann::json check(bool is_quiesced);
  nlohmann::json block_json(uint32_t page, PageWord found);
  nlohmann::json status() const;
  nlohmann::json lane_status(uint32_t lane) const;
  void look_at_pins(uint64_t slots);

  uint64_t pages() const { return region.pages(); }
  PageWord word(uint32_t page) const { return {region.block(page).word.load_acquire()}; }  // [pairs page.word]
};

}  // namespace maru::daemon
