#include "daemon/pool/inspect/late_answers.h"

#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/replies.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

}  // namespace

void LateAnswers::collect() {
  for (const Answered<Removal>& done : deletions_.take_removals())
    answers_.give(done.ticket, removed_json(done.answer));
  for (const Answered<Evicted>& done : evictions_.take_done()) answers_.give(done.ticket, evicted_json(done.answer));
  if (queues_.is_reordering()) return;
  for (Answered<json>& waiting : std::exchange(ordered_, {})) answers_.give(waiting.ticket, std::move(waiting.answer));
}

json LateAnswers::answer(uint64_t* ret_ticket) {
  collect();
  if (answers_.is_pending(*ret_ticket)) return {};
  std::optional<json> reply = answers_.take(*ret_ticket);
  if (!reply) return refusal(ECANCELED, "the pool went away before this was done");
  *ret_ticket = 0;
  return *std::move(reply);
}

json LateAnswers::wait_for(uint64_t ticket, uint64_t* ret_ticket) {
  answers_.expect(*ret_ticket = ticket);
  return {};
}

json LateAnswers::when_ordered(json reply, uint64_t* ret_ticket) {
  if (!ret_ticket || !queues_.is_reordering()) return reply;
  ordered_.push_back({++core_.last_ticket, std::move(reply)});
  return wait_for(core_.last_ticket, ret_ticket);
}

}  // namespace maru::daemon
