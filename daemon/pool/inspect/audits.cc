#include "daemon/pool/inspect/audits.h"

#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "libmaru/shm/audit/run.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kViolationsShown = 100;
constexpr size_t kTextMax = 400;  // bytes of violations, for the log
constexpr size_t kAuditsWantedMax = 64;
// Of a page about a microsecond.
constexpr uint64_t kAuditStepsPerTurn = 1u << 11;
constexpr uint64_t kAuditedAtOncePages = 1u << 10;
// How long a check at rest waits for unfinished reclaims: a parent whose child a client has half stored may be recounted for as
// long as that client stands still.
constexpr uint64_t kSettlePauseMs = 10'000;

class Collected final : public shm::FindingSink {
 public:
  std::vector<shm::Finding> findings;
  void found(const shm::Finding& finding) override { findings.push_back(finding); }
};

const char* place_name(shm::AuditPlace place) {
  switch (place) {
    case shm::AuditPlace::kPool: return "pool";
    case shm::AuditPlace::kPage: return "page";
    case shm::AuditPlace::kBucket: return "bucket";
    case shm::AuditPlace::kOverflowBucket: return "overflow_bucket";
    case shm::AuditPlace::kRegion: return "region";
    case shm::AuditPlace::kLane: return "lane";
    case shm::AuditPlace::kKeyExtent: return "key_extent";
    case shm::AuditPlace::kTenant: return "tenant";
  }
  return "unknown";
}

}  // namespace

// A live audit that goes on over turns. A request that comes during an audit waits for the next audit, which sees the pool as
// it was at the request.
struct Audits::LiveAudit {
  std::vector<uint64_t> tickets;
  std::unique_ptr<std::byte[]> scratch;
  Collected found;
  shm::AuditRun run;

  explicit LiveAudit(const Audits& audits, std::vector<uint64_t> of)
      : tickets(std::move(of)),
        scratch(std::make_unique_for_overwrite<std::byte[]>(shm::audit_scratch_bytes(audits.core_.region))),
        run(audits.core_.region, audits.live_request(), {scratch.get(), shm::audit_scratch_bytes(audits.core_.region)},
            found) {}
};

shm::AuditRequest Audits::live_request() const {
  shm::AuditRequest request;
  request.mode = shm::AuditMode::kLiveOwner;
  request.live = shm::with_other_hosts(core_.region, lanes_.in_use);
  return request;
}

// Checks the invariants that hold only at rest, over turns. First, while the pool is served as ever, the order of eviction is
// brought up to date, and the invariants that hold always are looked at, which needs no rest. Then marud leaves the pool alone
// until the rest was looked at. Its clients go on, so a finding is reported only if each of several passes saw it with the same
// words.
struct Audits::RestAudit {
  static constexpr uint32_t kPasses = 3;
  std::vector<uint64_t> tickets;
  LiveAudit live;
  uint64_t swept = 0;
  std::optional<uint64_t> settle_until_ms;
  bool is_prepared = false;
  std::vector<shm::Finding> found;  // by every pass until now
  uint32_t pass = 0;
  Collected seen;
  std::optional<shm::AuditRun> run;

  RestAudit(const Audits& audits, std::vector<uint64_t> of) : tickets(std::move(of)), live(audits, {}) {}

  static shm::AuditRequest request(const Audits& audits) {
    shm::AuditRequest at_rest = audits.live_request();
    at_rest.mode = shm::AuditMode::kExact;
    for (uint32_t i = 0; i < shm::kInvariantCount; ++i)
      if (shm::invariant_info(shm::Invariant(i)).when != shm::AuditClass::kAtRest)
        at_rest.skip = at_rest.skip.with(shm::Invariant(i));
    return at_rest;
  }
  // True when no pass is left.
  bool step(const Audits& audits) {
    if (!run) {
      seen.findings.clear();
      run.emplace(audits.core_.region, request(audits),
                  std::span(live.scratch.get(), shm::audit_scratch_bytes(audits.core_.region)), seen);
    }
    if (!run->step(kAuditStepsPerTurn)) return false;
    run.reset();
    if (pass++ == 0)
      found = std::exchange(seen.findings, {});
    else
      std::erase_if(found, [&](const shm::Finding& finding) {
        return std::find(seen.findings.begin(), seen.findings.end(), finding) == seen.findings.end();
      });
    return found.empty() || pass == kPasses;
  }
};

// Without a place for a ticket it is done when this returns, and so it is when the pool is small.
json Audits::check(bool is_quiesced, uint64_t* ret_ticket) {
  if (!ret_ticket || (*ret_ticket == 0 && core_.pages() <= kAuditedAtOncePages))
    return is_quiesced ? check_at_rest() : check_now();
  if (is_quiesced) return check_in_turns(rest_wanted_, ret_ticket);
  return check_in_turns(wanted_, ret_ticket);
}

json Audits::check_in_turns(std::vector<uint64_t>& wanted, uint64_t* ret_ticket) {
  if (*ret_ticket != 0) return late_.answer(ret_ticket);
  if (wanted.size() >= kAuditsWantedMax) return refusal(EAGAIN, "too many audits are wanted already: try again");
  wanted.push_back(++core_.last_ticket);
  return late_.wait_for(core_.last_ticket, ret_ticket);
}

bool Audits::is_quiesced() const { return rest_ && rest_->is_prepared; }

bool Audits::step_at_rest() {
  restart();
  if (!rest_) {
    if (rest_wanted_.empty() || queues_.is_reordering()) return false;
    rest_ = std::make_shared<RestAudit>(*this, std::exchange(rest_wanted_, {}));
  }
  RestAudit& audit = *rest_;
  if (!audit.is_prepared) {
    if (audit.swept < core_.pages()) {
      audit.swept += sweep_.step(kSweepPagesPerTurn);
    } else if (audit.settle_until_ms || audit.live.run.step(kAuditStepsPerTurn)) {
      // The work that the audit waits for reports whether more can be done right away.
      if (!audit.settle_until_ms) audit.settle_until_ms = core_.now_ms + kSettlePauseMs;
      reclaim_.take_findings();
      // A half finished reclaim looks like damage, and does not go on while marud leaves the pool alone.
      const bool has_settled = !lanes_.has_lane_in(LaneRecord::Phase::kReclaiming) && !reclaims_.is_busy() &&
                               findings_.parents.empty() && !recounts_.is_under_way() && findings_.orphans.empty() &&
                               !deletions_.is_busy();
      if (!has_settled && rests(core_.now_ms, *audit.settle_until_ms, kSettlePauseMs)) return false;
      recency_.drain(kTouchesPerDrain);
      reclaim_.take_findings();
      retired_.finish(kRetiredLinesPerTurn);
      audit.is_prepared = true;
    }
    return true;
  }
  if (!audit.step(*this)) return true;
  std::vector<shm::Finding> all = std::move(audit.live.found.findings);
  shm::AuditReport report = audit.live.run.report();
  report.findings += audit.found.size();
  all.insert(all.end(), audit.found.begin(), audit.found.end());
  const json reply = tell(all, report, true);
  for (const uint64_t ticket : audit.tickets) late_.give(ticket, reply);
  rest_.reset();
  for (const uint32_t lane : ended_.take()) ended_.end(lane);
  return !rest_wanted_.empty();
}

// While the queues are built anew they are no order, which would look like damage: audits that are under way begin again when
// they are one. Never while the pool is quiesced.
void Audits::restart() {
  if (std::exchange(reorders_seen_, queues_.reorders_begun()) == queues_.reorders_begun()) return;
  if (live_) wanted_.insert(wanted_.begin(), live_->tickets.begin(), live_->tickets.end());
  if (rest_) rest_wanted_.insert(rest_wanted_.begin(), rest_->tickets.begin(), rest_->tickets.end());
  live_.reset();
  rest_.reset();
}

// Each asker is told that the pool went away: late_answer().
void Audits::drop_at_rest() {
  if (rest_)
    for (const uint64_t ticket : rest_->tickets) late_.drop(ticket);
  for (const uint64_t ticket : rest_wanted_) late_.drop(ticket);
  rest_.reset();
  rest_wanted_.clear();
}

void Audits::lane_ended(uint32_t lane) {
  if (!lanes_.is_live(lane)) return;
  is_quiesced() ? ended_.put_off(lane) : ended_.end(lane);
}

json Audits::check_now() {
  LiveAudit live(*this, {});
  live.run.step(kNever);
  return tell(live.found.findings, live.run.report(), false);
}

bool Audits::step() {
  restart();
  if (!live_) {
    if (wanted_.empty() || queues_.is_reordering()) return false;
    live_ = std::make_shared<LiveAudit>(*this, std::exchange(wanted_, {}));
  }
  if (!live_->run.step(kAuditStepsPerTurn)) return true;
  const json reply = tell(live_->found.findings, live_->run.report(), false);
  for (const uint64_t ticket : live_->tickets) late_.give(ticket, reply);
  live_.reset();
  return !wanted_.empty();
}

// Checks everything, also invariants that hold only at rest. Live clients may be in the middle of an operation, so only
// findings that two audits saw with the same words are reported.
json Audits::check_at_rest() {
  recency_.drain_all();
  sweep_.step(core_.pages());
  reclaim_.take_findings();
  retired_.finish_all();
  std::vector<std::byte> scratch(shm::audit_scratch_bytes(core_.region));
  shm::AuditRequest audit_request = live_request();
  audit_request.mode = shm::AuditMode::kExact;
  Collected first;
  shm::AuditReport report = shm::audit(core_.region, audit_request, scratch, first);
  if (!first.findings.empty()) {
    Collected second;
    report = shm::audit(core_.region, audit_request, scratch, second);
    std::erase_if(first.findings, [&](const shm::Finding& finding) {
      return std::find(second.findings.begin(), second.findings.end(), finding) == second.findings.end();
    });
    if (first.findings.empty()) report = {};
  }
  return tell(first.findings, report, true);
}

uint64_t Audits::last_found() const {
  const auto found = last_.find("found");
  return found == last_.end() ? 0 : found->get<uint64_t>();
}

Audits::AtRest Audits::look_at_rest() {
  const json report = check_at_rest();
  return {report["found"].get<uint64_t>(), json_text(report["violations"]).substr(0, kTextMax)};
}

json Audits::tell(const std::vector<shm::Finding>& found, const shm::AuditReport& report, bool is_quiesced) {
  json violations = json::array();
  for (const shm::Finding& finding : found) {
    if (violations.size() == kViolationsShown) break;
    const shm::InvariantInfo& info = shm::invariant_info(finding.invariant);
    violations.push_back({{"invariant", info.name},
                          {"place", place_name(info.place)},
                          {"index", finding.index},
                          {"slot", finding.slot},
                          {"words", {finding.words[0], finding.words[1], finding.words[2]}}});
  }
  json reply = {{"violations", std::move(violations)},
                {"found", found.empty() ? 0 : std::max<uint64_t>(report.findings, found.size())},
                {"mode", is_quiesced ? "quiesced" : "live"}};
  // A client that stands still in the middle of an operation breaks invariants that hold only at rest. That is no fault, and
  // would look like damage until the next audit to readers of health and metrics.
  const auto lasts = [](const shm::Finding& finding) {
    return shm::invariant_info(finding.invariant).when != shm::AuditClass::kAtRest;
  };
  const auto lasting = uint64_t(std::count_if(found.begin(), found.end(), lasts));
  ++core_.totals.audits;
  last_ = {{"at_ms", core_.now_ms}, {"found", is_quiesced ? json(lasting) : reply["found"]}, {"mode", reply["mode"]}};
  return reply;
}

void Audits::adopt() {
  if (core_.pages() > kAuditedAtStartPages) {
    last_ = {{"mode", "not at the start of so large a pool"}};
    return;
  }
  const nlohmann::json report = check_now();
  if (report["found"] != 0)
    log_warning("pool \"{}\" violates invariants of its format, which stay as they are: {}", core_.config.name,
                json_text(report["violations"]).substr(0, kTextMax));
}

}  // namespace maru::daemon
