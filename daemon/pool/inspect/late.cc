// Answers that come in a later turn, as administrators get them.
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

json removed_json(const Removal& removal) {
  if (!removal.is_whole) return {{"deleted_blocks", removal.deleted}, {"left_blocks", removal.left}};
  return {{"deleted_blocks", removal.deleted},
          {"deleted_when_unpinned", removal.retired},
          {"left_blocks", removal.left - removal.retired}};
}

json evicted_json(const Evicted& evicted) {
  return {{"evicted_blocks", evicted.blocks}, {"evicted_pages", evicted.pages}};
}

}  // namespace

// What the parts have done for tickets becomes their answers.
void Pool::State::collect_answers() {
  for (const Answered<Removal>& done : deletions.take_removals()) answers.give(done.ticket, removed_json(done.answer));
  for (const Answered<Evicted>& done : evictions.take_done()) answers.give(done.ticket, evicted_json(done.answer));
  if (queues.is_reordering()) return;
  for (Answered<json>& waiting : std::exchange(ordered_replies, {}))
    answers.give(waiting.ticket, std::move(waiting.answer));
}

// Nothing while it is under way.
json Pool::State::late_answer(uint64_t* ret_ticket) {
  collect_answers();
  if (answers.is_pending(*ret_ticket)) return {};
  std::optional<json> reply = answers.take(*ret_ticket);
  if (!reply) return refusal(ECANCELED, "the pool went away before this was done");
  *ret_ticket = 0;
  return *std::move(reply);
}

// The ticket of an answer that comes later.
json Pool::State::wait_for(uint64_t ticket, uint64_t* ret_ticket) {
  answers.expect(*ret_ticket = ticket);
  return {};
}

// "delete_tree" or "clear", which takes everything that may go; of what is pinned the key goes now, and the memory when the
// last pin does. Without a place for a ticket it is done when this returns, and so below.
json Pool::State::remove(const std::string& command, const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return late_answer(ret_ticket);
  const bool is_clear = command == "clear";
  shm::Digest digest;
  json none;
  if (!is_clear && named_block(request, &digest, &none).is_none()) return none;
  const auto removed = deletions.remove(digest, is_clear, ret_ticket == nullptr);
  if (!removed) return refusal(removed.error().code, removed.error().doing);
  return removed->now ? removed_json(*removed->now) : wait_for(removed->ticket, ret_ticket);
}

// "evict": so many pages become FREE.
json Pool::State::make_room(const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return late_answer(ret_ticket);
  const uint64_t pages = number_in(request, "pages", 0);
  if (pages == 0) return refusal(EINVAL, "\"pages\" is a number above zero");
  const auto evicted = evictions.evict(pages, ret_ticket == nullptr);
  if (!evicted) return refusal(evicted.error().code, evicted.error().doing);
  return evicted->now ? evicted_json(*evicted->now) : wait_for(evicted->ticket, ret_ticket);
}

// The reply, now or when the queues are built.
json Pool::State::when_ordered(json reply, uint64_t* ret_ticket) {
  if (!ret_ticket || !queues.is_reordering()) return reply;
  ordered_replies.push_back({++core.last_ticket, std::move(reply)});
  return wait_for(core.last_ticket, ret_ticket);
}

json Pool::State::drain_json() const {
  json row = {{"pages", core.pages()}};
  if (!drain.is_on()) return row;
  row["drained"] = drain.is_done();
  if (!drain.has_counted()) return row;
  row["left_pages"] = drain.left().pages;
  row["left_blocks"] = drain.left().blocks;
  row["pinned_blocks"] = drain.left().pinned;
  return row;
}

}  // namespace maru::daemon
