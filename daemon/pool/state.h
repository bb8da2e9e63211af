// What a Pool knows and does, for the pool*.cc files alone. The shared words are a display of what stands here, except the
// page words, which are the truth about pages for everybody.
//
// Thread safety: one thread. Nothing that comes from shared memory is used without a check; every loop over shared links or
// words counts its steps against a limit that is known before it starts.
#pragma once

#include "daemon/base/line_meter.h"
#include "daemon/memory/device.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/policy/eviction_order.h"
#include "daemon/pool/core.h"
#include "daemon/pool/eviction/background.h"
#include "daemon/pool/eviction/bucket_room.h"
#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/held_blocks.h"
#include "daemon/pool/eviction/key_cells.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/feed/pool_feed.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/hosts/pool_hosts.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/memory/region_room.h"
#include "daemon/pool/memory/search.h"
#include "daemon/pool/page_bits.h"
#include "daemon/pool/parts.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/removal/tree_walk.h"
#include "daemon/pool/tenants/pool_tenants.h"
#include "daemon/pool/totals.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/poison.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace maru::daemon {

using format::RegionState;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

struct Pool::State final {
  PoolCore core;
  RegionTable regions{core};
  uint64_t lines_before = 0;  // the meter, when the last turn ended
  uint32_t work_next = 0;     // what the next turn does first

  LaneTable lanes{core};
  std::vector<ShelfEntry> shelves;
  std::unique_ptr<RegionRoom> room;  // null: every region has some
  uint64_t room_again_ms = 0;

  PoolTenants tenants;
  Findings findings;
  PoolFeed feed{core, lanes, regions};
  Queues queues{core, regions, tenants};
  RetiredBlocks retired{core, regions, lanes, queues};
  Rounds rounds;
  HeldBlocks held{core, regions, lanes, queues, rounds};
  Recency recency{{core, lanes, regions, feed, findings, queues, retired, rounds, held}};
  Evictor evictor{{core, lanes, regions, tenants, feed, queues, held}};
  Background background{core, regions, queues, recency, evictor};
  KeyCells key_cells{{core, lanes, regions, tenants, queues, held, recency, evictor}};
  BucketRoom bucket_room{core, regions, queues, recency, evictor};
  uint64_t reorders_seen = 0;
  struct Ordered {
    uint64_t ticket;
    nlohmann::json reply;
  };
  std::vector<Ordered> ordered_replies;  // of those who wait for the end of that
  uint64_t sweep_next = 0;               // page
  uint32_t sweep_free = 0, sweep_used = 0;
  uint64_t sweep_walked = 0;  // pages, for the tails of the dead
  uint64_t next_full_search_ms = 0;
  uint32_t window_next = 0;  // page: where a search for windows goes on that had not time for all

  std::vector<shm::Recount> recounts;  // the pass that is under way
  enum class RecountPart : uint8_t { kBegin, kPages, kCommit, kPlaces } recount_part = RecountPart::kBegin;  // of it
  uint64_t recount_next = 0;                                                                                 // page
  size_t recounts_settled = 0;  // the first ones, whose counts are in; then those that have their places in the order
  uint64_t recount_again_ms = 0;

  bool is_draining = false;
  uint32_t drain_region = 0;                                                                         // the next one
  enum class DrainPart : uint8_t { kBegin, kEvict, kClose, kCount } drain_part = DrainPart::kBegin;  // of it
  uint32_t drain_page = 0;              // of it, the next one
  uint64_t drain_used_before = 0;       // counted before it
  uint64_t drain_again_ms = 0;          // a whole round took nothing away: not before this
  bool drain_took = false;              // something in this round
  DrainCount drain_counts, drain_left;  // of this round so far, and of the last whole one
  bool drain_counted = false;           // there was a whole one
  std::vector<TakenRegion> drained_news;

  struct PoisonedPage {
    PageRef ref;
    std::optional<LaneId> filler;  // that may still write to pages behind it
    uint64_t filled_before;        // so may clients that arrived before this number
    enum class Others : uint8_t { kNone, kUnknown, kNoted } others = Others::kNone;  // so may clients of other hosts
  };
  struct PoisonReport {
    uint32_t page;
    uint64_t at_ms;
  };
  std::vector<PoisonedPage> poison_held;     // whose blocks still hold something
  PageBits poison_known;                     // in poison_held
  std::vector<uint32_t> poison_others;       // whom kNoted pages wait for: generations by lane, 0: for nobody there
  std::vector<PageRef> poison_heads;         // of runs with a bad page that were being filled
  std::vector<uint32_t> poison_waiting;      // bad, and being published when that was said
  std::vector<PoisonReport> poison_reports;  // by clients, and marud read them
  uint64_t poison_pause_ms = 0, poison_again_ms = 0;
  std::optional<TreeWalk> poison_walk;  // what is below poison_held, as that was when it began
  size_t poison_head_next = 0;          // of poison_heads
  // Letting go: poison_held from here on is to be looked at, and what was looked at and stays is its first part.
  size_t poison_go_next = 0, poison_go_kept = 0;

  struct Deletion {
    LaneId asker;
    uint64_t ticket;
    TreeWalk walk;
  };
  // Of expired blocks with children that lookups met: the roots of what the next walk takes away.
  std::vector<PageRef> expired_roots;
  std::optional<TreeWalk> expired_walk;
  uint64_t expired_again_ms = 0;
  std::deque<Deletion> deletions;  // the first one is under way
  // What a `clear` has left above blocks that are held, children before their parents. A pass is at `cleared_next`, and what it
  // has looked at and keeps are the first `cleared_kept`.
  std::vector<PageRef> cleared;
  size_t cleared_next = 0, cleared_kept = 0;
  bool is_clearing = false;  // a pass is under way
  std::vector<DeletedTree> deleted_trees;
  std::map<uint64_t, nlohmann::json> late_answers;  // what administrators asked for and did not fetch yet, by ticket
  struct QuotaCommand {
    uint64_t ticket;
    std::string command;
    nlohmann::json request;
  };
  std::deque<QuotaCommand> quotas;  // the first one is being written down
  struct Eviction {
    uint64_t ticket = 0;
    uint64_t round = 0;       // of touches, and of a pass over held blocks, which it waits for
    uint64_t sweep_left = 0;  // pages
    Shortage shortage;
  };
  std::deque<Eviction> evictions;  // for administrators; the first one is under way

  std::unordered_map<uint32_t, Search> searches;  // by lane: of requests that go on in a later turn
  std::optional<Takeover> giving;                 // for another host
  uint32_t free_scan_next = 0;  // so that requests with little time look at other regions than the last one

  PinAges pin_ages;
  uint64_t pin_look_next = 0;
  uint64_t pin_look_count = 0;  // of the lane that is being looked at
  uint64_t pins_overdue_total = 0;
  OverduePins overdue_news;  // not logged yet
  Upkeep upkeep;             // what is left until the next pause
  uint64_t last_upkeep_ms = 0, last_pin_look_ms = 0, last_cooling_ms = 0;
  PoolHosts hosts;
  nlohmann::json audit_json;  // the last audit, for the status

  // pool.cc: lanes and life cycle
  Result<void> begin(uint64_t now);
  bool keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const;
  Result<LaneGrant> attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation,
                           FileDescriptor* ret_control);
  // pool/turn.cc
  bool turn();
  bool do_work(uint32_t which, const LineBudget& budget);
  bool step_upkeep(const LineBudget& budget);
  void end_turn();

  // restart/adopt.cc: taking over what another marud left
  void adopt_lanes(std::vector<LaneId>* ret_begun);
  void adopt_regions();
  void adopt_pages(std::span<const LaneId> begun);
  void finish_begun_lanes(std::span<const LaneId> begun);
  void adopt_audit();

  // restart/verify.cc: after a loss of power
  Result<Verified> verify(const VerifyProgress& progress);
  Result<void> verify_payloads(const VerifyProgress& progress, std::span<uint8_t> bad, Verified& verified,
                               std::vector<uint32_t>& ret_unreadable) const;
  void drop_bad(std::span<uint8_t> bad, Verified& verified);
  nlohmann::json repair_bookkeeping(Verified& verified);  // restart/repair.cc
  // pool_hosts.cc: a pool that several hosts share
  Result<void> claim_slot();
  void write_machine_id();
  void leave_slot();
  void watch_hosts();
  void watch_host(uint32_t host);
  void log_host_change(uint32_t host, shm::HostClaim from, shm::HostClaim to);
  void suspect_if_silent(uint32_t host);
  void fence_if_suspect(uint32_t host);
  void take_over_reclaim(uint32_t host);
  bool is_own_slot_lost();
  std::string why_not_fenced(uint32_t host, const std::string& name) const;
  void start_fencing(uint32_t host);
  void watch_fencing();
  bool declare_dead(uint32_t host, uint32_t generation, const std::string& proof);
  void look_at_regions();
  nlohmann::json list_hosts() const;
  nlohmann::json lanes_elsewhere(uint32_t from) const;
  // How many are live, suspect and dead; nothing of a pool that one host has for itself.
  std::optional<std::array<uint64_t, metrics::kHostStates>> hosts_by_state() const;
  nlohmann::json declare_host_dead(const nlohmann::json& request);

  // hosts/host_reclaim.cc: what a dead host held
  void begin_host_reclaim(uint32_t host);
  bool step_host_reclaim(uint64_t pages);
  template <typename Take>
  bool take_dead_lanes(uint32_t& next, uint64_t count, Take&& take);
  bool compare_children(uint64_t pages);
  bool settle_inherited(uint64_t pages);
  bool release_overflow(uint64_t count);
  bool drop_host_reclaim();
  void finish_host_reclaim();

  // memory/regions.cc: who rents which region, and FREE pages
  bool claim_region(uint32_t index, LaneId owner);
  uint64_t frees() const;
  uint64_t grant_region(uint32_t index, LaneId owner, uint64_t run_pages);
  bool rent_regions(Search& search);
  std::optional<bool> look_for_row(uint32_t index, uint64_t run_pages, uint64_t frees_now, uint64_t* pages_left);
  uint64_t take_free(std::span<const uint32_t> in, Shortage& shortage, uint64_t* pages_left);
  void settle_region(uint32_t index);
  void orphan_region(uint32_t index);

  // memory/room.cc: room in the file system of a pool's file
  Result<void> begin_room();
  void adopt_room();
  void close_bare_pages();
  void step_room();
  bool has_room(uint32_t index) const { return !room || room->has(index); }
  bool waits_for_room(const Shortage& shortage, bool may_wait);

  // memory/rent.cc
  RentResult rent(uint32_t lane, const wire::RentRequest& request, const RentLimits& limits, uint32_t request_id,
                  uint64_t* ret_ticket);
  std::optional<RentResult> refusal_to(uint32_t lane, const wire::RentRequest& request);
  bool may_choose(uint64_t* round);
  RentResult give_up_rent(uint32_t lane);
  Search take_search(uint32_t lane, bool was_begun);
  void drop_search(uint32_t lane);
  void begin_turn(Search& search, LaneId asker, const wire::RentRequest& request, const RentLimits& limits,
                  uint32_t request_id) const;
  void begin_search(Search& search) const;
  void choose(Search& search, const wire::RentRequest& request, const RentLimits& limits);
  void choose_at_last(Search& search, std::span<const uint32_t> all);
  void look_at_retired(Search& search, std::span<const uint32_t> all);
  void look_for_free(Search& search, std::span<const uint32_t> all);
  void search_everywhere(Search& search, std::span<const uint32_t> all);
  uint64_t window_part(uint64_t run_pages) const;
  uint64_t window_pages(uint64_t run_pages) const;
  bool takes_another_turn(Search& search) const;
  RentResult finish(Search& search, const wire::RentRequest& request, const RentLimits& limits);

  // memory/takeover.cc: a region of one client for another
  uint64_t pin_lines() const;
  bool begin_takeover(Search& search, TakeFrom whom);
  void step_takeover(Search& search);
  bool look_for_pins(Takeover& takeover, Shortage& shortage) const;
  void sort_candidates(Takeover& takeover) const;
  RegionOutlook look_at_region(uint32_t index) const;
  bool choose_region(Takeover& takeover, Shortage& shortage) const;
  bool is_still_anothers(const Takeover& takeover, LaneId asker) const;
  void close_region(Takeover& takeover, Shortage& shortage);
  bool empty_region(Takeover& takeover, Shortage& shortage);
  void hand_over(Takeover& takeover, Shortage& shortage);
  void end_takeover(Search& search);

  // hosts/wish.cc: a region of this host for another one
  void ask_for_region();
  void begin_giving();
  bool step_giving();
  void answer_wish();

  // eviction/evict.cc
  void evict(std::span<const uint32_t> in, Shortage& shortage, uint32_t rounds_max);
  void evict_expired(std::vector<uint32_t> leaves, uint64_t limit);
  bool step_expired();

  // eviction/background.cc: between the watermarks

  // eviction/evict_key_cells.cc: room for long keys

  // eviction/make_room.cc: "evict" of administrators
  nlohmann::json make_room(const nlohmann::json& request, uint64_t* ret_ticket);
  bool step_eviction(Eviction& eviction);
  bool step_evictions();

  // memory/window.cc: room for a run among blocks of other sizes
  bool evict_windows(std::span<const uint32_t> in, Shortage& shortage);
  enum class WindowLook : uint8_t { kMayGo, kMustStay, kUnfinished };
  WindowLook may_all_go(std::span<const uint32_t> heads, Shortage& shortage);
  bool empty_window(uint32_t first, Shortage& shortage);

  // eviction/policy.cc: what the policy is asked, and told of the blocks
  nlohmann::json when_ordered(nlohmann::json reply, uint64_t* ret_ticket);
  nlohmann::json late_policy(uint64_t* ret_ticket);
  void settle_ordered();

  // eviction/recency.cc
  uint64_t sweep(uint64_t pages);
  void sweep_shelf(uint32_t shelf);
  void sweep_page(uint32_t page, std::vector<uint32_t>& missing, std::vector<uint32_t>& expired);

  // lanes/reclaim.cc
  void begin_reclaim(uint32_t lane);
  bool end_pins(uint32_t lane, const LineBudget& budget);
  void end_pins_of_the_dead(const LineBudget& budget);
  bool step_reclaim(const LineBudget& budget);
  bool reclaim_lane(uint32_t lane, uint64_t lines);
  bool settle_lane(uint32_t lane, const LineBudget& budget);
  void finish_lane(uint32_t lane);
  void finish_lanes(uint64_t pages);
  void take_findings(uint64_t lines = kLinesPerTurn);
  void evict_orphans(const LineBudget& budget);
  bool begin_recounts(size_t most, size_t a_step);
  bool commit_recounts(size_t a_step);
  bool step_recounts(bool in_turns);

  // removal/tree.cc
  void begin_tree(TreeWalk& walk, std::vector<PageRef> roots) const;
  void begin_whole(TreeWalk& walk) const;
  bool is_higher(PageRef parent, uint32_t page) const;
  bool step_tree(TreeWalk& walk, uint64_t& budget);
  bool gather_links(TreeWalk& walk, uint64_t& budget);
  bool climb(TreeWalk& walk, uint64_t& budget);
  bool take_tree(TreeWalk& walk, uint64_t& budget);
  bool counts_for_parent(uint32_t page, PageWord found) const;

  // removal/delete.cc
  bool begin_deletion(const wire::DeleteTreeRequest& request, TreeWalk& walk) const;
  nlohmann::json remove(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  nlohmann::json late_answer(uint64_t* ret_ticket);
  void keep_answer(uint64_t ticket, nlohmann::json reply);
  DeleteTreeResult begin_delete_tree(LaneId asker, const wire::DeleteTreeRequest& request, uint64_t* ret_ticket);
  bool step_deletions();
  void keep_clearing(TreeWalk& walk);
  bool take_key(PageRef ref);
  bool step_cleared();

  // tenants/quota.cc
  nlohmann::json quota(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  void step_quotas();

  // memory/drain.cc
  bool step_drain(const LineBudget& budget);
  bool drain_one_region(uint32_t index, const LineBudget& budget);

  // removal/poison.cc: bad memory
  shm::PoisonStatus poison(uint32_t page);
  void keep_poisoned(const PoisonedPage& poisoned);
  bool look_at_poison_heads();
  bool let_poison_go(const std::vector<bool>& has_below, uint64_t& budget);
  bool is_over(LaneId lane) const;
  void note_others();
  bool are_others_gone();
  bool step_poison();
  void adopt_poison(uint32_t page);
  void know_poison(uint32_t page);
  std::string report_bad_page(uint64_t page);
  nlohmann::json poison_command(const nlohmann::json& request);
  nlohmann::json list_poisoned(const nlohmann::json& request);

  // inspect/lists.cc
  nlohmann::json admin(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  static const char* page_state_name(PageState state);
  static const char* reason_name(EvictReason reason);
  nlohmann::json list_regions(const nlohmann::json& request);
  struct BlockFilter;
  bool passes(const BlockFilter& filter, uint32_t page, PageWord found);
  nlohmann::json list_blocks(const nlohmann::json& request);
  PageRef named_block(const nlohmann::json& request, shm::Digest* ret_digest, nlohmann::json* ret_refusal) const;
  nlohmann::json one_block(const nlohmann::json& request);
  struct LiveAudit;
  std::shared_ptr<LiveAudit> live_audit;
  struct RestAudit;  // with "quiesce"
  std::shared_ptr<RestAudit> rest_audit;
  std::vector<uint64_t> rest_audits_wanted;  // tickets
  std::vector<LaneId> ended_lanes;           // while it was quiesced
  bool is_quiesced() const;
  bool step_rest_audit();
  void restart_audits();
  void drop_rest_audit();
  std::vector<uint32_t> take_ended_lanes();
  nlohmann::json check_in_turns(std::vector<uint64_t>& wanted, const std::vector<uint64_t>* asked,
                                uint64_t* ret_ticket);
  void lane_ended(uint32_t lane);
  void end_lane(uint32_t lane);
  std::vector<uint64_t> audits_wanted;  // by ticket, when the one that is under way is done
  nlohmann::json check(bool is_quiesced, uint64_t* ret_ticket);
  nlohmann::json check_now();
  nlohmann::json check_at_rest();
  nlohmann::json tell_audit(const std::vector<shm::Finding>& found, const shm::AuditReport& report, bool is_quiesced);
  shm::AuditRequest live_audit_request() const;
  bool step_audit();
  nlohmann::json block_json(uint32_t page, PageWord found);
  void put_metadata(PageRef ref, nlohmann::json& row) const;  // block_metadata.cc
  nlohmann::json status(const metrics::PageCensus& census) const;
  nlohmann::json lane_status(uint32_t lane) const;

  // inspect/map.cc
  void cool_regions();
  nlohmann::json map() const;

  // feed/pool_feed.cc: blocks that come and go, for followers

  // inspect/metrics.cc
  bool take_census(metrics::PageCensus& census, uint64_t count) const;
  void fill(metrics::PoolSnapshot& snapshot);

  // inspect/pins.cc
  PageRef pin_in(uint32_t lane, uint64_t slot) const;
  const PinAge* age_of(uint32_t lane, uint64_t slot, PageRef ref) const;
  bool is_overdue(const PinAge& age) const;
  void look_at_pins(uint64_t slots);
  void count_overdue(uint32_t lane, PinAge& age);
  uint64_t pins_overdue() const;
  struct PinSummary {
    uint64_t pins = 0, overdue = 0;
    std::optional<uint64_t> oldest_ms;
  };
  PinSummary pins_of(uint32_t lane) const;
  nlohmann::json list_pins(const nlohmann::json& request);
};

}  // namespace maru::daemon
