// The auditor at work in marud: at its start, and when somebody asks.
#include "daemon/pool_state.h"
#include "libmaru/shm/audit.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kViolationsShown = 100;

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

// Quiesced: everything, also what is only true at rest. Live clients may be in the middle of something, so of that only
// what two audits saw with the same words is reported.
json Pool::State::check(bool is_quiesced) {
  if (is_quiesced) {
    drain_touches(kTouchesPerDrain);
    sweep(pages());
    take_findings();
    finish_retired(retired_blocks.size());
  }
  std::vector<std::byte> scratch(shm::audit_scratch_bytes(region));
  shm::AuditRequest audit_request;
  audit_request.mode = is_quiesced ? shm::AuditMode::kExact : shm::AuditMode::kLiveOwner;
  audit_request.live = shm::with_other_hosts(region, lanes.in_use);
  Collected first;
  shm::AuditReport report = shm::audit(region, audit_request, scratch, first);
  if (is_quiesced && !first.findings.empty()) {
    Collected second;
    report = shm::audit(region, audit_request, scratch, second);
    std::erase_if(first.findings, [&](const shm::Finding& finding) {
      return std::find(second.findings.begin(), second.findings.end(), finding) == second.findings.end();
    });
    if (first.findings.empty()) report = {};
  }
  json violations = json::array();
  for (const shm::Finding& finding : first.findings) {
    if (violations.size() == kViolationsShown) break;
    const shm::InvariantInfo& info = shm::invariant_info(finding.invariant);
    violations.push_back({{"invariant", info.name},
                          {"place", place_name(info.place)},
                          {"index", finding.index},
                          {"slot", finding.slot},
                          {"words", {finding.words[0], finding.words[1], finding.words[2]}}});
  }
  json reply = {{"violations", std::move(violations)},
                {"found", first.findings.empty() ? 0 : std::max<uint64_t>(report.findings, first.findings.size())},
                {"mode", is_quiesced ? "quiesced" : "live"}};
  // Of what holds only at rest a client that stands still in the middle of something is no fault, and would look like damage
  // until the next audit to all who only look at health and metrics.
  const auto lasts = [](const shm::Finding& finding) {
    return shm::invariant_info(finding.invariant).when != shm::AuditClass::kAtRest;
  };
  const auto lasting = uint64_t(std::count_if(first.findings.begin(), first.findings.end(), lasts));
  ++totals.audits;
  audit_json = {{"at_ms", now_ms}, {"found", is_quiesced ? json(lasting) : reply["found"]}, {"mode", reply["mode"]}};
  return reply;
}

uint64_t Pool::audit_findings() const {
  const auto found = state_->audit_json.find("found");
  return found == state_->audit_json.end() ? 0 : found->get<uint64_t>();
}

}  // namespace maru::daemon
