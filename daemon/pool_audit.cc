// The auditor at work in marud: at its start, and when somebody asks.
#include "daemon/admin_request.h"
#include "daemon/pool_state.h"
#include "libmaru/shm/audit_run.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kViolationsShown = 100;
constexpr size_t kAuditsWantedMax = 64;
// Of a page about a microsecond.
constexpr uint64_t kAuditStepsPerTurn = 1u << 11;
constexpr uint64_t kAuditedAtOncePages = 1u << 10;

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
        scratch(std::make_unique_for_overwrite<std::byte[]>(shm::audit_scratch_bytes(state.region))),
        run(state.region, state.live_audit_request(), {scratch.get(), shm::audit_scratch_bytes(state.region)}, found) {}
};

shm::AuditRequest Pool::State::live_audit_request() const {
  shm::AuditRequest request;
  request.mode = shm::AuditMode::kLiveOwner;
  request.live = shm::with_other_hosts(region, lanes.in_use);
  return request;
}

// Without a place for a ticket it is done when this returns, and so it is when the pool is small or `is_quiesced`.
json Pool::State::check(bool is_quiesced, uint64_t* ret_ticket) {
  if (is_quiesced || !ret_ticket) return is_quiesced ? check_at_rest() : check_now();
  if (*ret_ticket != 0) {
    const auto waits = [&](const std::vector<uint64_t>& tickets) {
      return std::find(tickets.begin(), tickets.end(), *ret_ticket) != tickets.end();
    };
    if (waits(audits_wanted) || (live_audit && waits(live_audit->tickets))) return {};
    return late_answer(ret_ticket);
  }
  if (pages() <= kAuditedAtOncePages) return check_now();
  if (audits_wanted.size() >= kAuditsWantedMax) return refusal(EAGAIN, "too many audits are wanted already: try again");
  audits_wanted.push_back(*ret_ticket = ++last_ticket);
  return {};
}

json Pool::State::check_now() {
  LiveAudit live(*this, {});
  live.run.step(kNever);
  return tell_audit(live.found.findings, live.run.report(), false);
}

bool Pool::State::step_audit() {
  if (!live_audit) {
    if (audits_wanted.empty()) return false;
    live_audit = std::make_shared<LiveAudit>(*this, std::exchange(audits_wanted, {}));
  }
  if (!live_audit->run.step(kAuditStepsPerTurn)) return true;
  const json reply = tell_audit(live_audit->found.findings, live_audit->run.report(), false);
  for (const uint64_t ticket : live_audit->tickets) keep_answer(ticket, reply);
  live_audit.reset();
  return !audits_wanted.empty();
}

// Everything, also what is only true at rest. Live clients may be in the middle of something, so only what two audits saw with
// the same words is reported.
json Pool::State::check_at_rest() {
  drain_touches(kTouchesPerDrain);
  sweep(pages());
  take_findings();
  finish_all_retired();
  std::vector<std::byte> scratch(shm::audit_scratch_bytes(region));
  shm::AuditRequest audit_request = live_audit_request();
  audit_request.mode = shm::AuditMode::kExact;
  Collected first;
  shm::AuditReport report = shm::audit(region, audit_request, scratch, first);
  if (!first.findings.empty()) {
    Collected second;
    report = shm::audit(region, audit_request, scratch, second);
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
  ++totals.audits;
  audit_json = {{"at_ms", now_ms}, {"found", is_quiesced ? json(lasting) : reply["found"]}, {"mode", reply["mode"]}};
  return reply;
}

uint64_t Pool::audit_findings() const {
  const auto found = state_->audit_json.find("found");
  return found == state_->audit_json.end() ? 0 : found->get<uint64_t>();
}

}  // namespace maru::daemon
