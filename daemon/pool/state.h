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
#include "daemon/pool/answers.h"
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
#include "daemon/pool/hosts/hosts.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/lanes/pin_ages.h"
#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/parts.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/reclaim/reclaim.h"
#include "daemon/pool/reclaim/recounts.h"
#include "daemon/pool/region_table.h"
#include "daemon/pool/removal/deletions.h"
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
  Trees trees{{core, lanes, feed, queues, retired, evictor}};
  Deletions deletions{{core, lanes, evictor, trees}};
  Expired expired{{core, lanes, regions, recency, evictor, trees}};
  Poison poison{{core, lanes, regions, feed, findings, queues, trees}};
  PoolRoom room{core, regions};
  Grants grants{{core, lanes, regions, queues, evictor, room}};
  Sweep sweep{{core, lanes, regions, findings, queues, retired, rounds, expired, poison, grants}};
  Windows windows{{core, lanes, queues, held, evictor}};
  Takeovers takeovers{{core, lanes, regions, queues, evictor, room, grants}};
  Drain drain{{core, lanes, regions, evictor, grants}};
  Renting renting{{core, lanes, regions, tenants, queues, retired, held, recency, evictor, expired, room, grants, sweep,
                   windows, takeovers, drain}};
  Evictions evictions{{core, lanes, regions, tenants, queues, rounds, recency, evictor, sweep, renting}};
  PinAges pin_ages;
  Reclaim reclaim{{core, lanes, pin_ages, regions, tenants, findings, retired, recency, evictor, grants, renting}};
  Recounts recounts{{core, lanes, regions, findings, queues}};
  OwnSlot slot{core};
  HostReclaims reclaims{{core, lanes, regions, tenants, findings, queues, recency, grants}};
  Wishes wishes{core, regions, grants, takeovers};
  Hosts hosts{{core, regions, queues, drain, slot, reclaims, wishes}};
  uint64_t reorders_seen = 0;
  std::vector<Answered<nlohmann::json>> ordered_replies;  // of those who wait for the end of a new order
  Answers<nlohmann::json> answers;

  struct QuotaCommand {
    uint64_t ticket;
    std::string command;
    nlohmann::json request;
  };
  std::deque<QuotaCommand> quotas;  // the first one is being written down

  uint64_t pin_look_next = 0;
  uint64_t pin_look_count = 0;  // of the lane that is being looked at
  uint64_t pins_overdue_total = 0;
  OverduePins overdue_news;  // not logged yet
  Upkeep upkeep;             // what is left until the next pause
  uint64_t last_upkeep_ms = 0, last_pin_look_ms = 0, last_cooling_ms = 0;
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
  void leave_slot();
  nlohmann::json list_hosts() const;
  nlohmann::json lanes_elsewhere(uint32_t from) const;
  // How many are live, suspect and dead; nothing of a pool that one host has for itself.
  std::optional<std::array<uint64_t, metrics::kHostStates>> hosts_by_state() const;
  nlohmann::json declare_host_dead(const nlohmann::json& request);

  // eviction/policy.cc: what the policy is asked, and told of the blocks
  nlohmann::json when_ordered(nlohmann::json reply, uint64_t* ret_ticket);

  // removal/delete.cc
  nlohmann::json remove(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  nlohmann::json late_answer(uint64_t* ret_ticket);
  void collect_answers();
  nlohmann::json wait_for(uint64_t ticket, uint64_t* ret_ticket);
  nlohmann::json drain_json() const;
  nlohmann::json make_room(const nlohmann::json& request, uint64_t* ret_ticket);

  // tenants/quota.cc
  nlohmann::json quota(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  void step_quotas();

  // removal/poison.cc: bad memory
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
  nlohmann::json check_in_turns(std::vector<uint64_t>& wanted, uint64_t* ret_ticket);
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
