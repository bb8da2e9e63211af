#include "daemon/server/requests.h"

#include "daemon/base/log.h"
#include "daemon/server/request_outcome.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace maru::daemon {
namespace {

// An attach that is refused, said in the log with the words of the reply.
Outcome refuse_attach(Users& users, const Session& session, uint32_t request_id, int code, const std::string& why) {
  users.complaints.say(session.account, "{} may not attach: {}", session.text(), why);
  return refuse(uint16_t(wire::Type::kAttach), request_id, code, why);
}

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
    case wire::Type::kBadMemory: return bad_memory(session, *header, payload, now);
    case wire::Type::kFollow: return follow(session, *header, payload, now);
    case wire::Type::kRegionTaken:
    case wire::Type::kPoolLeaves: break;  // only marud sends these
  }
  return drop("an unknown message type");  // decode_request() has refused it
}

// -- attaching --------------------------------------------------------------------------------------------------------

Outcome Requests::attach(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                         std::vector<FileDescriptor>& descriptors, Moment now) {
  const auto request = wire::read_exactly<wire::AttachRequest>(payload);
  if (!request) return drop("an attach request of the wrong size");
  if (const auto wrong = wire::check(*request)) return drop("an attach request: " + std::string(*wrong));
  const bool hands_back = (request->flags & wire::kAttachHandsBack) != 0;
  if (descriptors.empty() == hands_back || descriptors.size() > 2)
    return drop("an attach request with the wrong number of descriptors");
  if (session.is_behind()) return drop("it asks for descriptors and does not read its replies");
  if (session.lane_watch != 0) return refuse(header, EALREADY, "this connection is attached already");
  if (std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.session == session.id(); }))
    return refuse(header, EALREADY, "this connection waits for an attach already");

  const std::string name(request->pool);
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const auto& hosted) { return hosted->name() == name && !hosted->is_gone(); });
  if (found == pools_.end())
    return refuse_attach(users_, session, header.request_id, ENOENT, "there is no pool \"" + name + "\"");
  HostedPool& hosted = **found;
  const auto pool = uint32_t(found - pools_.begin());
  if (const std::string why = why_no_access(session, hosted, *request); !why.empty())
    return refuse(header, EACCES, why);
  if (hosted.condition() == HostedPool::Condition::kWaiting) {
    grace_ends_ms_.resize(pools_.size());
    const bool is_late = grace_ends_ms_[pool] && now.monotonic_ms >= *grace_ends_ms_[pool];
    if (!grace_ends_ms_[pool]) grace_ends_ms_[pool] = now.monotonic_ms + config_.adopt_grace_ms;
    if (hands_back) take_back(session, hosted, descriptors, is_late);
    waiting_.push_back({session.id(), pool, header.request_id, *request});
    return {};
  }
  return attach_to(session, pool, header.request_id, *request, now);
}

// Who handed it back waits like the others until the pool is there. When the grace is over no other try is begun, or somebody
// who always hands back memory that cannot be adopted would keep the pool from beginning anew.
void Requests::take_back(const Session& session, const HostedPool& hosted,
                         const std::vector<FileDescriptor>& descriptors, bool is_late) {
  if (lifecycle_.is_adopting(hosted)) return;  // somebody was faster
  if (is_late || lifecycle_.begins_anew(hosted))
    return users_.complaints.say(session.account, "{} handed back the memory of pool \"{}\" too late: it begins anew",
                                 session.text(), hosted.name());
  // Copies, in the order of AttachReply: what is refused is closed on the spot, and that may last when it is the last
  // descriptor of something that is no memory. Those that came are closed aside.
  const auto copy = [](const FileDescriptor& one) { return FileDescriptor(::fcntl(one.get(), F_DUPFD_CLOEXEC, 3)); };
  HeldMemory held = {copy(descriptors.back()), {}, true};
  if (descriptors.size() == 2) held.pages = copy(descriptors.front());
  auto memory = hosted.recognise(std::move(held));
  if (!memory)
    return users_.complaints.say(session.account, "{} handed back what is not the memory of pool \"{}\": {}",
                                 session.text(), hosted.name(), memory.error().text());
  users_.movements.say(session.account, "{} handed back the memory of pool \"{}\"", session.text(), hosted.name());
  lifecycle_.begin_adoption(hosted, std::move(*memory), session.text());
}

// By the lists as they are now; said in the log, too.
std::string Requests::why_no_access(const Session& session, const HostedPool& hosted,
                                    const wire::AttachRequest& request) {
  const PoolSpec& access = hosted.spec();
  if (may_use(session.peer(), access.users, access.groups)) return {};
  const bool may_read = may_use(session.peer(), access.readers, access.reader_groups);
  if (may_read && (request.flags & wire::kAttachReadOnly) != 0) return {};
  users_.count(may_read ? metrics::Refusal::kWrite : metrics::Refusal::kAttach);
  const std::string why = "the access list of pool \"" + hosted.name() + "\" " +
                          (may_read ? "lets this user only read" : "does not name this user");
  users_.complaints.say(session.account, "{} may not {} pool \"{}\": refused, {}", session.text(),
                        may_read ? "write to" : "use", hosted.name(), why);
  return why;
}

Outcome Requests::attach_to(Session& session, uint32_t pool_index, uint32_t request_id,
                            const wire::AttachRequest& request, Moment now) {
  HostedPool& hosted = *pools_[pool_index];
  constexpr auto kType = uint16_t(wire::Type::kAttach);
  Pool* pool = hosted.serving();
  if (!pool && hosted.condition() == HostedPool::Condition::kUnavailable)
    return refuse_attach(users_, session, request_id, ENODEV,
                         "pool \"" + hosted.name() + "\" is unavailable: " + hosted.reason());
  if (!pool) {
    Outcome outcome = refuse_attach(users_, session, request_id, EIO,
                                    "pool \"" + hosted.name() + "\" is fenced: " + hosted.fenced_because());
    outcome.superseded_session = bind_for_goodbye(session, pool_index, request);
    return outcome;
  }

  static constexpr uint8_t kNoUuid[16] = {};
  if (std::memcmp(request.uuid, kNoUuid, 16) != 0 && std::memcmp(request.uuid, pool->header().uuid, 16) != 0)
    return refuse(kType, request_id, ESTALE, "pool \"" + hosted.name() + "\" is another one now: detach and attach");

  const Device& device = pool->device();
  const bool reads_only = (request.flags & wire::kAttachReadOnly) != 0;
  if (!device.is_split() && !may_use(session.peer(), hosted.spec().users, hosted.spec().groups))
    return refuse_attach(
        users_, session, request_id, EACCES,
        "this user may only read pool \"" + hosted.name() +
            "\", which is in one piece that readers could write: remove the pool and add it anew (marudctl device "
            "remove), a pool in a file with control_path");
  FileDescriptor memory(
      ::fcntl(reads_only && device.is_split() ? device.read_only_fd() : device.fd(), F_DUPFD_CLOEXEC, 3));
  FileDescriptor control(device.is_split() ? ::fcntl(device.control_fd(), F_DUPFD_CLOEXEC, 3) : -1);
  if (device.is_split() && !control.is_open()) memory.reset();
  const bool is_leaving = hosted.condition() == HostedPool::Condition::kLeaving;
  const ClientIdentity& who = session.peer().who;
  const bool keeps_lane = pool->keeps_lane(who, request.previous_lane, request.previous_generation);
  if (is_leaving && !keeps_lane)
    return refuse_attach(users_, session, request_id, ESHUTDOWN,
                         "pool \"" + hosted.name() + "\" is being removed: it takes no clients");
  FileDescriptor pidfd(::fcntl(session.peer().pidfd.get(), F_DUPFD_CLOEXEC, 3));
  if (!memory.is_open() || !pidfd.is_open())
    return refuse_attach(users_, session, request_id, errno, "marud has no descriptor left");

  if (!keeps_lane)
    if (const std::string why = users_.why_no_lane(session.peer(), session.text(), pool_index, now.monotonic_ms);
        !why.empty())
      return refuse(kType, request_id, EDQUOT, why);
  if (pool->is_quiesced()) {
    waiting_.push_back({session.id(), pool_index, request_id, request, true});
    return {};
  }
  FileDescriptor locked;
  auto grant = pool->attach(who, request.previous_lane, request.previous_generation, now.unix_ms, &locked);
  if (!grant && grant.error().code == EAGAIN) {
    waiting_.push_back({session.id(), pool_index, request_id, request, true});
    return {};
  }
  if (!grant) {
    users_.complaints.say(session.account, "{} got no lane of pool \"{}\": {}", session.text(), hosted.name(),
                          grant.error().text());
    return refuse(kType, request_id, grant.error().code, grant.error().doing);
  }

  if (locked.is_open()) (device.is_split() ? control : memory) = std::move(locked);
  Outcome outcome;
  LaneWatch* watch = lanes_.find_lane(pool_index, grant->lane);
  if (watch && (watch->who.pid != who.pid || watch->who.start_time != who.start_time)) {
    // The pool gave the lane of a process that is known to it as gone; our own news of that is still on its way.
    outcome.superseded_session = watch->session;
    outcome.unwatch_lane = watch->id;
    lanes_.remove(watch->id);
    watch = nullptr;
  }
  if (!watch) {
    watch = &lanes_.add({0, pool_index, grant->lane, who, session.peer().command, std::move(pidfd), 0, 0});
    outcome.watch_lane = watch->id;
  } else if (watch->session != 0 && watch->session != session.id()) {
    outcome.superseded_session = watch->session;
  }
  watch->who = who;  // perhaps another user by now
  watch->session = session.id();
  watch->since_ms = now.unix_ms;
  watch->groups = session.peer().groups;
  watch->has_attached = true;
  session.lane_watch = watch->id;
  session.lane_is_news = !grant->kept;
  session.is_read_only = reads_only;

  const format::Header& head = pool->header();
  wire::AttachReply reply = {};
  std::memcpy(reply.uuid, head.uuid, sizeof(reply.uuid));
  reply.pool_bytes = device.bytes();
  reply.control_bytes = head.control_bytes;
  reply.epoch = pool->epoch();
  reply.lane = grant->lane;
  reply.lane_generation = grant->generation;
  reply.lane_kept = grant->kept ? 1 : 0;
  reply.host = pool->host();
  reply.map_alignment = uint32_t(device.map_alignment());
  reply.descriptors = device.is_split() ? 2 : 1;
  reply.pages_offset = device.is_split() ? device.pages_offset() : head.control_bytes;
  reply.control_alignment = device.control_alignment();
  const UserLimits limits = users_.limits_of(who.uid, who.gid, session.peer().groups);
  reply.user_regions_max = limits.regions;
  reply.user_bytes_max = limits.bytes;
  outcome.reply = Packet{wire::encode(wire::Type::kAttach, request_id, 0, wire::bytes_of(reply)), std::move(memory),
                         std::move(control)};
  if (is_leaving) outcome.notices.push_back(lifecycle_.leave_notice(session.id(), hosted, now));
  users_.movements.say(who.uid, "{} {} lane {} of pool \"{}\"", session.text(),
                       grant->kept ? "is back on" : "attached to", grant->lane, hosted.name());
  return outcome;
}

// Who has a lane of a pool that was fenced cannot have it back, and may say goodbye to it on this connection. Returns the one
// that had it until now.
uint64_t Requests::bind_for_goodbye(Session& session, uint32_t pool_index, const wire::AttachRequest& request) {
  const Pool* pool = pools_[pool_index]->known();
  LaneWatch* watch = lanes_.find_lane(pool_index, request.previous_lane);
  if (!pool || !watch || !pool->keeps_lane(session.peer().who, request.previous_lane, request.previous_generation))
    return 0;
  session.lane_watch = watch->id;
  const uint64_t before = std::exchange(watch->session, session.id());
  return before == session.id() ? 0 : before;
}

std::vector<Requests::Settled> Requests::settle_waiting(Moment now) {
  std::vector<Settled> settled;
  if (waiting_.empty()) return settled;
  grace_ends_ms_.resize(pools_.size());
  for (size_t pool = 0; pool < pools_.size(); ++pool) {
    HostedPool& hosted = *pools_[pool];
    if (!grace_ends_ms_[pool] || hosted.condition() != HostedPool::Condition::kWaiting ||
        lifecycle_.begins_anew(hosted) || now.monotonic_ms < *grace_ends_ms_[pool])
      continue;
    lifecycle_.begin_anew(hosted);
    grace_ends_ms_[pool] = now.monotonic_ms + 10'000;  // it is tried again if it could not be done
  }
  std::vector<Waiting> still;
  for (Waiting& waiting : waiting_) {
    const Pool* pool = pools_[waiting.pool]->serving();
    if (waiting.for_lane ? pool && (pool->is_lane_coming() || pool->is_quiesced())
                         : pools_[waiting.pool]->condition() == HostedPool::Condition::kWaiting)
      still.push_back(waiting);
    else
      settled.push_back({waiting.session, waiting.request, waiting.request_id});
  }
  waiting_ = std::move(still);
  return settled;
}

Outcome Requests::attach_again(Session& session, const Settled& settled, Moment now) {
  for (size_t pool = 0; pool < pools_.size(); ++pool)
    if (pools_[pool]->name() == settled.request.pool && !pools_[pool]->is_gone()) {
      // The lists may be others than when it began to wait.
      if (const std::string why = why_no_access(session, *pools_[pool], settled.request); !why.empty())
        return refuse(uint16_t(wire::Type::kAttach), settled.request_id, EACCES, why);
      return attach_to(session, uint32_t(pool), settled.request_id, settled.request, now);
    }
  return refuse(uint16_t(wire::Type::kAttach), settled.request_id, ENOENT,
                "pool \"" + std::string(settled.request.pool) + "\" was removed meanwhile");
}

void Requests::forget(uint64_t session) {
  stop_following(session);
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.session == session; });
  std::erase_if(late_, [&](const Late& late) { return late.session == session; });
  std::erase_if(deletions_, [&](const Deletion& waiting) { return waiting.session == session; });
  // A region that its request has begun to take from another client becomes an orphan; else no client would get it any more.
  for (const Renting& waiting : rents_)
    if (Pool* pool = waiting.session == session ? pools_[waiting.pool]->serving() : nullptr)
      static_cast<void>(pool->give_up_rent(waiting.lane));
  std::erase_if(rents_, [&](const Renting& waiting) { return waiting.session == session; });
}

std::optional<uint64_t> Requests::waiting_ms(Moment now) const {
  std::optional<uint64_t> least;
  for (const Waiting& waiting : waiting_) {
    // The server looks at those that are opened by itself, and turns at lanes.
    if (waiting.for_lane || lifecycle_.begins_anew(*pools_[waiting.pool])) continue;
    const uint64_t ends_ms = grace_ends_ms_[waiting.pool].value_or(0);
    const uint64_t left_ms = pools_[waiting.pool]->condition() != HostedPool::Condition::kWaiting ? 0
                             : ends_ms > now.monotonic_ms ? ends_ms - now.monotonic_ms
                                                          : 0;
    least = std::min(least.value_or(left_ms), left_ms);
  }
  return least;
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

// Trees that turns of their pools have taken away, for those who still wait.
std::vector<Outcome::Notice> Requests::deleted_answers() {
  std::vector<Outcome::Notice> notices;
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    Pool* serving = pools_[pool]->serving();
    std::vector<DeletedTree> done;
    if (serving) done = serving->take_deleted_trees();
    std::erase_if(deletions_, [&](const Deletion& waiting) {
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
