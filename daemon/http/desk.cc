#include "daemon/http/desk.h"

#include "daemon/admin/metrics.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/hosting/config_json.h"
#include "daemon/server/users.h"
#include "daemon/system/peer.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon::http {

using nlohmann::json;

std::string health_text(const AdminView& view) {
  json reasons = json::array(), warnings = json::array(), pools = json::array();
  bool is_any_usable = false;
  for (const auto& hosted : view.pools) {
    if (hosted->is_gone()) continue;
    json pool = {{"name", hosted->name()}, {"condition", condition_text(hosted->condition())}};
    if (hosted->condition() == HostedPool::Condition::kFenced)
      reasons.push_back("pool \"" + hosted->name() + "\" is fenced: " + hosted->fenced_because());
    if (hosted->condition() == HostedPool::Condition::kUnavailable)
      warnings.push_back("pool \"" + hosted->name() + "\" is unavailable: " + hosted->reason());
    is_any_usable |= hosted->serving() || hosted->condition() == HostedPool::Condition::kWaiting;
    if (const Pool* serving = hosted->serving()) {
      pool["audit_findings"] = serving->audit_findings();
      if (serving->audit_findings() != 0)
        reasons.push_back("the last audit of pool \"" + hosted->name() + "\" found " +
                          std::to_string(serving->audit_findings()) + " violations: marudctl check lists them");
    }
    pools.push_back(std::move(pool));
  }
  if (!view.socket_trouble.empty()) warnings.push_back(std::string(view.socket_trouble));
  if (!view.http_trouble.empty()) warnings.push_back("HTTP: " + std::string(view.http_trouble));
  const bool is_unhealthy = !reasons.empty() || (!warnings.empty() && !pools.empty() && !is_any_usable);
  const char* status = is_unhealthy ? "unhealthy" : warnings.empty() ? "healthy" : "degraded";
  for (json& warning : warnings) reasons.push_back(std::move(warning));
  const json health = {{"status", status}, {"reasons", std::move(reasons)}, {"pools", std::move(pools)}};
  return json_text(health);
}

bool Desk::turn(const AdminView& view) {
  for (size_t i = 0; i < removals_.size();)
    if (answer_now(view, removals_[i].slot, removals_[i].ticket))
      removals_.erase(removals_.begin() + std::ptrdiff_t(i));
    else
      ++i;
  bool has_more = true;
  for (uint32_t i = 0; i < kQuestionsPerTurn && has_more; ++i) {
    const auto slot = exchange_.next();
    has_more = slot.has_value();
    if (!slot) break;
    const Question& question = exchange_.question(*slot);
    if (question.kind == Question::Kind::kTrouble) {
      trouble_ = question.command;
      sockets_lost_ = question.sockets_lost;
      exchange_.answer(*slot, {});
    } else if (!may_ask(view, question)) {
      exchange_.answer(*slot, {EACCES, "only root, marud's own user and the admin group may administrate", nullptr});
    } else if (question.kind == Question::Kind::kMetrics || question.kind == Question::Kind::kStatus) {
      waiting_.push_back(*slot);
    } else if (question.kind == Question::Kind::kAdmin && removals_.size() >= kWaitingMax) {
      exchange_.answer(*slot, {EAGAIN, "too many questions wait for their pools already: try again", nullptr});
    } else if (uint64_t ticket = 0; !answer_now(view, *slot, ticket)) {
      removals_.push_back({*slot, ticket});
    }
  }
  return step_survey(view) || has_more;
}

bool Desk::answer_now(AdminView view, uint32_t slot, uint64_t& removal) {
  view.removal = &removal;
  Answer now = answer(view, exchange_.question(slot));
  if (removal != 0 && now.code == 0) return false;
  exchange_.answer(slot, std::move(now));
  return true;
}

bool Desk::may_ask(const AdminView& view, const Question& question) const {
  if (!question.peer || may_administrate(config_, *question.peer)) return true;
  if (view.users) {
    view.users->count(metrics::Refusal::kAdministrate);
    view.users->complaints.say(question.peer->who.uid, "{} may not administrate: refused", question.who);
  }
  return false;
}

Answer Desk::answer(const AdminView& view, const Question& question) {
  switch (question.kind) {
    case Question::Kind::kHealth: return {0, health_text(view), nullptr};
    case Question::Kind::kConfiguration: return {0, config_text(config_, view.pools), nullptr};
    case Question::Kind::kMetrics: return {0, "", std::make_shared<const metrics::Snapshot>(snapshot_of(view))};
    case Question::Kind::kStatus:
    case Question::Kind::kAdmin: {
      AdminReply reply = run_admin(view, question.command, question.who);
      return {reply.code, std::move(reply.text), nullptr};
    }
    case Question::Kind::kTrouble: return {};
  }
  return {EOPNOTSUPP, "there is no such question", nullptr};
}

// -- questions that need a census -------------------------------------------------------------------------------------

// Returns true when more work can be done right away.
bool Desk::step_survey(const AdminView& view) {
  if (!survey_) {
    if (waiting_.empty()) return false;
    survey_ = Asked{std::exchange(waiting_, {}), {}};
  }
  if (!survey_->survey.step(view.pools)) return true;
  finish_survey(view);
  return !waiting_.empty();
}

void Desk::finish_survey(AdminView view) {
  const Asked asked = std::move(*survey_);
  survey_.reset();
  view.censuses = &asked.survey.censuses();
  for (const uint32_t slot : asked.slots) exchange_.answer(slot, answer(view, exchange_.question(slot)));
}

}  // namespace maru::daemon::http
