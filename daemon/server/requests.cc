#include "daemon/server/requests.h"

#include "daemon/base/log.h"
#include "daemon/server/request_outcome.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maru::daemon {
namespace {

Outcome deleted_answer(const wire::MessageHeader& header, const DeleteTreeResult& result) {
  if (result.status < 0) return refuse(header, -result.status, "delete a tree");
  log_debug("a tree is deleted: {} blocks are gone, {} stay", result.deleted, result.left);
  const wire::DeleteTreeReply reply = {result.deleted, result.left};
  return answer(header, wire::bytes_of(reply));
}

}  // namespace

Outcome Requests::turn_away(const Session& session, const Session::Received& received) {
  const auto header = wire::decode_request(received.bytes);
  if (!header) return drop(header.error().doing);
  Outcome outcome = refuse(*header, session.turned_away_code, session.turned_away_because);
  outcome.drop = session.turned_away_because;
  outcome.drop_after_reply = true;
  return outcome;
}

Outcome Requests::handle(Session& session, Session::Received& received, Moment now) {
  const auto header = wire::decode_request(received.bytes);
  if (!header) {
    if (header.error().code != EPROTO) return drop(header.error().doing);
    wire::MessageHeader raw;
    std::memcpy(&raw, received.bytes.data(), sizeof(raw));
    Outcome outcome = refuse(raw.type, raw.request_id, EPROTO, header.error().doing);
    outcome.drop = header.error().doing;
    outcome.drop_after_reply = true;
    return outcome;
  }
  const auto payload = wire::payload_of(received.bytes);
  const auto type = wire::Type(header->type);
  if (type != wire::Type::kAttach && !received.descriptors.empty())
    return drop("a descriptor with a message that has none");
  switch (type) {
    case wire::Type::kAttach: return attach(session, *header, payload, received.descriptors, now);
    case wire::Type::kDetach:
      if (!payload.empty()) return drop("a detach request with a payload");
      return detach(session, *header);
    case wire::Type::kRent: return rent(session, *header, payload, now);
    case wire::Type::kDeleteTree: return delete_tree(session, *header, payload, now);
    case wire::Type::kCredit: return credit(session, *header, payload, now);
    case wire::Type::kAdmin: return admin(session, *header, payload, now);
    case wire::Type::kPing:
      if (!payload.empty()) return drop("a ping with a payload");
      return answer(*header, {});
    case wire::Type::kMakeRoom: return make_room(session, *header, payload, now);
    case wire::Type::kHasCopies: return has_copies(session, *header, payload, now);
    case wire::Type::kBadMemory: return bad_memory(session, *header, payload, now);
    case wire::Type::kFollow: return follow(session, *header, payload, now);
    case wire::Type::kRegionTaken:
    case wire::Type::kPoolLeaves: break;  // only marud sends these
  }
  return drop("an unknown message type");  // decode_request() has refused it
}

void Requests::forget(uint64_t session) {
  stop_following(session);
  std::erase_if(waiting_, [&](const WaitingAttach& waiting) { return waiting.session == session; });
  std::erase_if(late_, [&](const Late& late) { return late.session == session; });
  std::erase_if(deletions_, [&](const WaitingDeletion& waiting) { return waiting.session == session; });
  // A region that its request has begun to take from another client becomes an orphan; else no client would get it any more.
  for (const WaitingRent& waiting : rents_)
    if (Pool* pool = waiting.session == session ? pools_[waiting.pool]->serving() : nullptr)
      static_cast<void>(pool->give_up_rent(waiting.lane));
  std::erase_if(rents_, [&](const WaitingRent& waiting) { return waiting.session == session; });
}

// -- with a lane ------------------------------------------------------------------------------------------------------

LaneWatch* Requests::lane_of(Session& session, const wire::MessageHeader& header, Outcome& outcome) {
  LaneWatch* watch = session.lane_watch == 0 ? nullptr : lanes_.find(session.lane_watch);
  if (!watch) {
    outcome = refuse(header, ENOTCONN, "this connection is not attached");
    return nullptr;
  }
  if (!pools_[watch->pool]->serving()) {
    outcome = refuse(header, EIO, "the pool is fenced: " + pools_[watch->pool]->fenced_because());
    return nullptr;
  }
  return watch;
}

Outcome Requests::detach(Session& session, const wire::MessageHeader& header) {
  LaneWatch* watch = session.lane_watch == 0 ? nullptr : lanes_.find(session.lane_watch);
  if (!watch) return refuse(header, ENOTCONN, "this connection is not attached");
  HostedPool& hosted = *pools_[watch->pool];
  hosted.lane_ended(watch->lane, true);  // of a fenced pool, too
  users_.movements.say(session.account, "{} detached from lane {} of pool \"{}\"", session.text(), watch->lane,
                       hosted.name());
  Outcome outcome = answer(header, {});
  outcome.unwatch_lane = watch->id;
  lanes_.remove(watch->id);
  session.lane_watch = 0;
  return outcome;
}

Outcome Requests::credit(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                         Moment now) {
  const auto request = wire::read_exactly<wire::CreditRequest>(payload);
  if (!request) return drop("a credit request of the wrong size");
  if (const auto wrong = wire::check(*request)) return drop("a credit request: " + std::string(*wrong));
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  if (session.is_read_only) return refuse(header, EROFS, "this client attached to read only");
  std::string why;
  const int code = pools_[watch->pool]->serving()->grant_credit(watch->lane, *request, now.unix_ms, &why);
  if (code == 0) return answer(header, {});
  log_debug("{} gets no credit in pool \"{}\": {}", session.text(), pools_[watch->pool]->name(), why);
  return refuse(header, code, why);
}

Outcome Requests::make_room(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                            Moment now) {
  const auto request = wire::read_exactly<wire::RoomRequest>(payload);
  if (!request) return drop("a request for room of the wrong size");
  if (const auto wrong = wire::check(*request)) return drop("a request for room: " + std::string(*wrong));
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  if (session.is_read_only) return refuse(header, EROFS, "this client attached to read only");
  std::string why;
  const int code = pools_[watch->pool]->serving()->make_room(watch->lane, *request, now.unix_ms, &why);
  if (code == 0) return answer(header, {});
  log_debug("{} gets no room in pool \"{}\": {}", session.text(), pools_[watch->pool]->name(), why);
  return refuse(header, code, why);
}

Outcome Requests::has_copies(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                             Moment now) {
  std::vector<uint64_t> blocks(payload.size() / sizeof(uint64_t));
  if (blocks.empty() || blocks.size() > wire::kCopiesMax || payload.size() % sizeof(uint64_t) != 0)
    return drop("a report of copies of the wrong size");
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  if (session.is_read_only) return refuse(header, EROFS, "this client attached to read only");
  std::memcpy(blocks.data(), payload.data(), payload.size());
  const wire::CopiesReply reply = {pools_[watch->pool]->serving()->note_copies(blocks, now.unix_ms)};
  return answer(header, wire::bytes_of(reply));
}

Outcome Requests::bad_memory(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                             Moment now) {
  const auto report = wire::read_exactly<wire::BadMemoryReport>(payload);
  if (!report || report->reserved0 != 0) return drop("a report of bad memory of the wrong form");
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  const HostedPool& hosted = *pools_[watch->pool];
  const std::string what = hosted.serving()->report_bad_page(report->page, now.unix_ms);
  if (!what.empty()) users_.complaints.say(session.account, "{}, pool \"{}\": {}", session.text(), hosted.name(), what);
  return answer(header, {});
}

std::vector<Outcome::Notice> Requests::drained_notices() {
  std::vector<Outcome::Notice> notices;
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    if (pools_[pool]->condition() != HostedPool::Condition::kDraining) continue;
    for (Outcome::Notice& notice : tell_old_owners(pool, pools_[pool]->serving()->take_drained_regions()))
      notices.push_back(std::move(notice));
  }
  return notices;
}

Outcome Requests::delete_tree(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                              Moment now) {
  const auto request = wire::read_exactly<wire::DeleteTreeRequest>(payload);
  if (!request) return drop("a delete-tree request of the wrong size");
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  if (session.is_read_only) return refuse(header, EROFS, "this client attached to read only");
  uint64_t ticket = 0;
  const DeleteTreeResult result =
      pools_[watch->pool]->serving()->delete_tree(watch->lane, *request, now.unix_ms, &ticket);
  if (ticket == 0) return deleted_answer(header, result);
  deletions_.push_back({session.id(), header, watch->pool, ticket});
  return {};
}

// Trees that turns of their pools have taken away, for the clients that still wait.
std::vector<Outcome::Notice> Requests::deleted_answers() {
  std::vector<Outcome::Notice> notices;
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    Pool* serving = pools_[pool]->serving();
    std::vector<DeletedTree> done;
    if (serving) done = serving->take_deleted_trees();
    std::erase_if(deletions_, [&](const WaitingDeletion& waiting) {
      if (waiting.pool != pool) return false;
      const auto found = std::find_if(done.begin(), done.end(),
                                      [&](const DeletedTree& tree) { return tree.ticket == waiting.ticket; });
      if (serving && found == done.end()) return false;
      Outcome outcome = serving ? deleted_answer(waiting.header, found->result)
                                : refuse(waiting.header, EIO, "the pool went away before the tree did");
      notices.push_back({waiting.session, std::move(*outcome.reply)});
      return true;
    });
  }
  return notices;
}

// -- administration ---------------------------------------------------------------------------------------------------

Outcome Requests::admin(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                        Moment now) {
  AdminView view = this->view(now);
  view.is_for_owner = may_use(session.peer(), {}, {});
  if (!may_administrate(config_, session.peer())) {
    view.only_for = &session.peer();
    if (!users_.may_administrate_anything(session.peer())) {
      users_.count(metrics::Refusal::kAdministrate);
      constexpr const char* kWhy = "only root, marud's own user, the admin group and admins of pools may administrate";
      users_.complaints.say(session.account, "{} may not administrate: refused, {}", session.text(), kWhy);
      return refuse(header, EACCES, kWhy);
    }
  }
  if (std::any_of(late_.begin(), late_.end(), [&](const Late& late) { return late.session == session.id(); }))
    return refuse(header, EBUSY, "this connection waits for an answer already");
  view.can_wait = true;
  uint64_t removal = 0;
  view.removal = &removal;
  const std::string_view text = {reinterpret_cast<const char*>(payload.data()), payload.size()};
  const AdminReply reply = run_admin(view, text, session.text());
  if (reply.ticket != 0 || reply.needs_census || removal != 0) {
    late_.push_back({session.id(), header, reply.ticket, std::string(text), view.only_for, session.text(), removal});
    return {};
  }
  if (reply.code == EACCES) {
    users_.count(metrics::Refusal::kAdministrate);
    users_.complaints.say(session.account, "{} may not administrate: {}", session.text(), reply.text);
  }
  if (reply.code == EBADMSG) return drop("an administration request: " + reply.text);
  if (reply.code != 0) return refuse(header, reply.code, reply.text);
  Outcome outcome = answer(header, std::as_bytes(std::span(reply.text.data(), reply.text.size())));
  outcome.notices = lifecycle_.take_notices();
  return outcome;
}

bool Requests::step_survey() {
  if (!survey_) {
    bool is_wanted = false;
    for (Late& late : late_) is_wanted |= late.is_surveyed = late.waits_for_survey();
    if (!is_wanted) return false;
    survey_.emplace();
  }
  const bool is_done = survey_->step(pools_);
  return !is_done || std::any_of(late_.begin(), late_.end(),
                                 [](const Late& late) { return late.waits_for_survey() && !late.is_surveyed; });
}

std::vector<Outcome::Notice> Requests::late_answers(Moment now) {
  std::vector<Outcome::Notice> notices = deleted_answers();
  const auto give = [&](const Late& late, const AdminReply& reply) {
    Outcome outcome = reply.code != 0 ? refuse(late.header, reply.code, reply.text)
                                      : answer(late.header, std::as_bytes(std::span(reply.text)));
    notices.push_back({late.session, std::move(*outcome.reply)});
  };
  for (const LateAnswer& ready : lifecycle_.take_answers())
    std::erase_if(late_, [&](const Late& late) {
      if (late.ticket != ready.ticket) return false;
      give(late, ready.reply);
      return true;
    });
  for (size_t i = 0; i < late_.size();) {
    Late& late = late_[i++];
    if (late.removal == 0) continue;
    AdminView again = view(now);
    again.only_for = late.only_for;
    again.removal = &late.removal;
    const AdminReply reply = run_admin(again, late.text, late.who);
    if (late.removal != 0 && reply.code == 0) continue;
    give(late, reply);
    late_.erase(late_.begin() + std::ptrdiff_t(--i));
  }
  if (!survey_ || !survey_->step(pools_, 0)) return notices;
  AdminView all = view(now);
  all.censuses = &survey_->censuses();
  std::erase_if(late_, [&](const Late& late) {
    if (!late.waits_for_survey() || !late.is_surveyed) return false;
    all.only_for = late.only_for;
    give(late, run_admin(all, late.text, "a connection"));
    return true;
  });
  survey_.reset();
  return notices;
}

}  // namespace maru::daemon
