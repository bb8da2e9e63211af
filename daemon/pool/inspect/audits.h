// The auditor at work in marud: at its start, and when an administrator asks.
//
//   (1) A request that comes during an audit waits for the next audit, which sees the pool as it was at the request.
//   (2) While a check at rest looks, marud leaves the pool alone, and lanes that end wait. Its clients go on, so a finding is
//       reported only if each of several passes saw it with the same words.
//   (3) An audit that sees the queues be built anew begins again when they are an order.
//
// Cost: about a microsecond a page, in steps.
//
// Thread safety: one thread. If marud dies here: an audit changes nothing.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/eviction/retired_blocks.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/hosts/ended_lanes.h"
#include "daemon/pool/hosts/host_reclaims.h"
#include "daemon/pool/inspect/late_answers.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/memory/sweep.h"
#include "daemon/pool/reclaim/reclaim.h"
#include "daemon/pool/reclaim/recounts.h"
#include "daemon/pool/removal/deletions.h"
#include "libmaru/shm/audit/audit.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace maru::daemon {

class Audits {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    Findings& findings;
    Queues& queues;
    RetiredBlocks& retired;
    Recency& recency;
    Deletions& deletions;
    Sweep& sweep;
    Reclaim& reclaim;
    Recounts& recounts;
    EndedLanes& ended;
    HostReclaims& reclaims;
    LateAnswers& late;
  };
  explicit Audits(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        findings_(below.findings),
        queues_(below.queues),
        retired_(below.retired),
        recency_(below.recency),
        deletions_(below.deletions),
        sweep_(below.sweep),
        reclaim_(below.reclaim),
        recounts_(below.recounts),
        ended_(below.ended),
        reclaims_(below.reclaims),
        late_(below.late) {}
  Audits(const Audits&) = delete;
  Audits& operator=(const Audits&) = delete;

  // At the start of marud. The whole audit costs more than all the rest of it, so a large pool is audited when an administrator
  // asks.
  void adopt();
  // "check": in turns, unless the pool is small or there is no place for a ticket.
  nlohmann::json check(bool is_quiesced, uint64_t* ret_ticket);
  // Checks the invariants that hold always, and those that hold only at rest, in one go.
  nlohmann::json check_now();
  nlohmann::json check_at_rest();
  // The last audit for a log: how many violations there are, and the first of them as text.
  struct AtRest {
    uint64_t found = 0;
    std::string text;
  };
  AtRest look_at_rest();
  // Returns true when there is more to do right away, and so below.
  bool step();
  bool step_at_rest();
  bool is_quiesced() const;
  // The pool has no turns any more: a check at rest has no answer.
  void drop_at_rest();
  // Of the last audit: {} before the first one.
  const nlohmann::json& last() const { return last_; }
  // Violations that the last audit found; 0 before the first one.
  uint64_t last_found() const;
  shm::AuditRequest live_request() const;

  // The client of this lane has ended, by proof or by its goodbye. Its lane is taken back when no check at rest is under way.
  void lane_ended(uint32_t lane);

 private:
  struct LiveAudit;
  struct RestAudit;  // with "quiesce"
  void restart();
  nlohmann::json check_in_turns(std::vector<uint64_t>& wanted, uint64_t* ret_ticket);
  nlohmann::json tell(const std::vector<shm::Finding>& found, const shm::AuditReport& report, bool is_quiesced);

  PoolCore& core_;
  LaneTable& lanes_;
  Findings& findings_;
  Queues& queues_;
  RetiredBlocks& retired_;
  Recency& recency_;
  Deletions& deletions_;
  Sweep& sweep_;
  Reclaim& reclaim_;
  Recounts& recounts_;
  EndedLanes& ended_;
  HostReclaims& reclaims_;
  LateAnswers& late_;
  nlohmann::json last_;
  std::shared_ptr<LiveAudit> live_;
  std::shared_ptr<RestAudit> rest_;
  std::vector<uint64_t> wanted_, rest_wanted_;  // by ticket, for after the audit under way
  uint64_t reorders_seen_ = 0;
};

}  // namespace maru::daemon
