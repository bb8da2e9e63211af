// The auditor at work in marud: at its start, and when somebody asks.
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"
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
constexpr size_t kAuditsWantedMax = 64;
// Of a page about a microsecond.
constexpr uint64_t kAuditStepsPerTurn = 1u << 11;
constexpr uint64_t kAuditedAtOncePages = 1u << 10;
// How long a check at rest waits until what is half taken back is done: a parent whose child a client has half stored may be
// recounted for as long as that client stands still.
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

// A live audit that goes on over turns. Who asks while one is under way waits for the next one: that has seen what was there
// when they asked.
struct Pool::State::LiveAudit {
  std::vector<uint64_t> tickets;
  std::unique_ptr<std::byte[]> scratch;
  Collected found;
  shm::AuditRun run;

  explicit LiveAudit(const State& state, std::vector<uint64_t> of)
      : tickets(std::move(of)),
        scratch(std::make_unique_for_overwrite<std::byte[]>(shm::audit_scratch_bytes(state.core.region))),
        run(state.core.region, state.live_audit_request(), {scratch.get(), shm::audit_scratch_bytes(state.core.region)},
            found) {}
};

shm::AuditRequest Pool::State::live_audit_request() const {
  shm::AuditRequest request;
  request.mode = shm::AuditMode::kLiveOwner;
  request.live = shm::with_other_hosts(core.region, lanes.in_use);
  return request;
}

// What holds only at rest, over turns. First, while the pool is served as ever, all of the order of eviction is brought up to
// date, and what holds always is looked at, which needs no rest. Then marud leaves the pool alone until what is left was looked
// at; its clients go on, so that only what every one of several passes saw with the same words is reported.
struct Pool::State::RestAudit {
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

  RestAudit(const State& state, std::vector<uint64_t> of) : tickets(std::move(of)), live(state, {}) {}

  static shm::AuditRequest request(const State& state) {
    shm::AuditRequest at_rest = state.live_audit_request();
    at_rest.mode = shm::AuditMode::kExact;
    for (uint32_t i = 0; i < shm::kInvariantCount; ++i)
      if (shm::invariant_info(shm::Invariant(i)).when != shm::AuditClass::kAtRest)
        at_rest.skip = at_rest.skip.with(shm::Invariant(i));
    return at_rest;
  }
  // True when no pass is left.
  bool step(const State& state) {
    if (!run) {
      seen.findings.clear();
      run.emplace(state.core.region, request(state),
                  std::span(live.scratch.get(), shm::audit_scratch_bytes(state.core.region)), seen);
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
json Pool::State::check(bool is_quiesced, uint64_t* ret_ticket) {
  if (!ret_ticket || (*ret_ticket == 0 && core.pages() <= kAuditedAtOncePages))
    return is_quiesced ? check_at_rest() : check_now();
  if (is_quiesced) return check_in_turns(rest_audits_wanted, ret_ticket);
  return check_in_turns(audits_wanted, ret_ticket);
}

json Pool::State::check_in_turns(std::vector<uint64_t>& wanted, uint64_t* ret_ticket) {
  if (*ret_ticket != 0) return late_answer(ret_ticket);
  if (wanted.size() >= kAuditsWantedMax) return refusal(EAGAIN, "too many audits are wanted already: try again");
  wanted.push_back(++core.last_ticket);
  return wait_for(core.last_ticket, ret_ticket);
}

bool Pool::State::is_quiesced() const { return rest_audit && rest_audit->is_prepared; }
bool Pool::is_quiesced() const { return state_->is_quiesced(); }

bool Pool::State::step_rest_audit() {
  restart_audits();
  if (!rest_audit) {
    if (rest_audits_wanted.empty() || queues.is_reordering()) return false;
    rest_audit = std::make_shared<RestAudit>(*this, std::exchange(rest_audits_wanted, {}));
  }
  RestAudit& audit = *rest_audit;
  if (!audit.is_prepared) {
    if (audit.swept < core.pages()) {
      audit.swept += sweep.step(kSweepPagesPerTurn);
    } else if (audit.settle_until_ms || audit.live.run.step(kAuditStepsPerTurn)) {
      // Whoever waits for that says whether there is more to do right away.
      if (!audit.settle_until_ms) audit.settle_until_ms = core.now_ms + kSettlePauseMs;
      reclaim.take_findings();
      // What is half taken back looks like damage, and does not go on while marud leaves the pool alone.
      const bool has_settled = !lanes.has_lane_in(LaneRecord::Phase::kReclaiming) && !reclaims.is_busy() &&
                               findings.parents.empty() && !recounts.is_under_way() && findings.orphans.empty() &&
                               !deletions.is_busy();
      if (!has_settled && rests(core.now_ms, *audit.settle_until_ms, kSettlePauseMs)) return false;
      recency.drain(kTouchesPerDrain);
      reclaim.take_findings();
      retired.finish(kRetiredLinesPerTurn);
      audit.is_prepared = true;
    }
    return true;
  }
  if (!audit.step(*this)) return true;
  std::vector<shm::Finding> all = std::move(audit.live.found.findings);
  shm::AuditReport report = audit.live.run.report();
  report.findings += audit.found.size();
  all.insert(all.end(), audit.found.begin(), audit.found.end());
  const json reply = tell_audit(all, report, true);
  for (const uint64_t ticket : audit.tickets) answers.give(ticket, reply);
  rest_audit.reset();
  for (const uint32_t lane : take_ended_lanes()) end_lane(lane);
  return !rest_audits_wanted.empty();
}

// While the queues are built anew they are no order, which would look like damage: audits that are under way begin again when
// they are one. Never while the pool is quiesced.
void Pool::State::restart_audits() {
  if (std::exchange(reorders_seen, queues.reorders_begun()) == queues.reorders_begun()) return;
  if (live_audit) audits_wanted.insert(audits_wanted.begin(), live_audit->tickets.begin(), live_audit->tickets.end());
  if (rest_audit)
    rest_audits_wanted.insert(rest_audits_wanted.begin(), rest_audit->tickets.begin(), rest_audit->tickets.end());
  live_audit.reset();
  rest_audit.reset();
}

// Whoever asked is told that the pool went away: late_answer().
void Pool::State::drop_rest_audit() {
  if (rest_audit)
    for (const uint64_t ticket : rest_audit->tickets) answers.drop(ticket);
  for (const uint64_t ticket : rest_audits_wanted) answers.drop(ticket);
  rest_audit.reset();
  rest_audits_wanted.clear();
}

// Those that wait for the end of a check at rest, and are nobody else's meanwhile.
std::vector<uint32_t> Pool::State::take_ended_lanes() {
  std::vector<uint32_t> ended;
  for (const LaneId lane : std::exchange(ended_lanes, {}))
    if (lanes.is_live(lane.lane) && lanes.id(lane.lane) == lane) ended.push_back(lane.lane);
  return ended;
}

// What is found of a lane that begins to be taken back would be taken for damage.
void Pool::State::lane_ended(uint32_t lane) {
  if (!lanes.is_live(lane)) return;
  if (is_quiesced())
    ended_lanes.push_back(lanes.id(lane));
  else
    end_lane(lane);
}

// A lane of a slot that is not ours any more may be another host's client's by now.
void Pool::State::end_lane(uint32_t lane) {
  if (core.region.is_shared() && slot.is_lost())
    lanes.records[lane].phase = LaneRecord::Phase::kFree;
  else
    reclaim.begin(lane);
}

json Pool::State::check_now() {
  LiveAudit live(*this, {});
  live.run.step(kNever);
  return tell_audit(live.found.findings, live.run.report(), false);
}

bool Pool::State::step_audit() {
  restart_audits();
  if (!live_audit) {
    if (audits_wanted.empty() || queues.is_reordering()) return false;
    live_audit = std::make_shared<LiveAudit>(*this, std::exchange(audits_wanted, {}));
  }
  if (!live_audit->run.step(kAuditStepsPerTurn)) return true;
  const json reply = tell_audit(live_audit->found.findings, live_audit->run.report(), false);
  for (const uint64_t ticket : live_audit->tickets) answers.give(ticket, reply);
  live_audit.reset();
  return !audits_wanted.empty();
}

// Everything, also what is only true at rest. Live clients may be in the middle of something, so only what two audits saw with
// the same words is reported.
json Pool::State::check_at_rest() {
  recency.drain_all();
  sweep.step(core.pages());
  reclaim.take_findings();
  retired.finish_all();
  std::vector<std::byte> scratch(shm::audit_scratch_bytes(core.region));
  shm::AuditRequest audit_request = live_audit_request();
  audit_request.mode = shm::AuditMode::kExact;
  Collected first;
  shm::AuditReport report = shm::audit(core.region, audit_request, scratch, first);
  if (!first.findings.empty()) {
    Collected second;
    report = shm::audit(core.region, audit_request, scratch, second);
    std::erase_if(first.findings, [&](const shm::Finding& finding) {
      return std::find(second.findings.begin(), second.findings.end(), finding) == second.findings.end();
    });
    if (first.findings.empty()) report = {};
  }
  return tell_audit(first.findings, report, true);
}

json Pool::State::tell_audit(const std::vector<shm::Finding>& found, const shm::AuditReport& report, bool is_quiesced) {
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
  // Of what holds only at rest a client that stands still in the middle of something is no fault, and would look like damage
  // until the next audit to all who only look at health and metrics.
  const auto lasts = [](const shm::Finding& finding) {
    return shm::invariant_info(finding.invariant).when != shm::AuditClass::kAtRest;
  };
  const auto lasting = uint64_t(std::count_if(found.begin(), found.end(), lasts));
  ++core.totals.audits;
  audit_json = {
      {"at_ms", core.now_ms}, {"found", is_quiesced ? json(lasting) : reply["found"]}, {"mode", reply["mode"]}};
  return reply;
}

uint64_t Pool::audit_findings() const {
  const auto found = state_->audit_json.find("found");
  return found == state_->audit_json.end() ? 0 : found->get<uint64_t>();
}

}  // namespace maru::daemon
