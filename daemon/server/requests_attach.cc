// Attaching: a client gets a lane of a pool and descriptors of its memory. A client of a pool that waits for its
// memory, or that takes its last lane back, waits as long as the pool does.
#include "daemon/base/log.h"
#include "daemon/server/request_outcome.h"
#include "daemon/server/requests.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace maru::daemon {
namespace {

constexpr auto kType = uint16_t(wire::Type::kAttach);

FileDescriptor copy_of(int fd) { return FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

}  // namespace

// One attach to a pool that does not wait for its memory.
struct Requests::Attach {
  Session& session;
  HostedPool& hosted;
  uint32_t pool;  // its index
  uint32_t request_id;
  const wire::AttachRequest& request;
  Moment now;

  bool is_read_only() const { return (request.flags & wire::kAttachReadOnly) != 0; }
  // Whether the client comes back to the lane that it has.
  bool keeps_lane() const {
    return hosted.known()->keeps_lane(session.peer().who, request.previous_lane, request.previous_generation);
  }
};

// The descriptors that an attached client gets, and the descriptor that tells marud of the client's death.
struct Requests::AttachDescriptors {
  FileDescriptor memory;   // the pool, or its pages where it lies in two pieces
  FileDescriptor control;  // the control region of a pool in two pieces
  FileDescriptor pidfd;
};

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
  if (std::any_of(waiting_.begin(), waiting_.end(), [&](const WaitingAttach& w) { return w.session == session.id(); }))
    return refuse(header, EALREADY, "this connection waits for an attach already");

  const std::string name(request->pool);
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const auto& hosted) { return hosted->name() == name && !hosted->is_gone(); });
  if (found == pools_.end())
    return refuse_attach(session, header.request_id, ENOENT, "there is no pool \"" + name + "\"");
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

// The client that handed memory back waits like the others until the pool is there. When the grace is over no other try
// is begun, or a client that always hands back memory that cannot be adopted would keep the pool from beginning anew.
void Requests::take_back(const Session& session, const HostedPool& hosted,
                         const std::vector<FileDescriptor>& descriptors, bool is_late) {
  if (lifecycle_.is_adopting(hosted)) return;  // another client was faster
  if (is_late || lifecycle_.begins_anew(hosted))
    return users_.complaints.say(session.account, "{} handed back the memory of pool \"{}\" too late: it begins anew",
                                 session.text(), hosted.name());
  // Copies, in the order of AttachReply: a refused one is closed on the spot, and that may last when it is the last
  // descriptor of something that is no memory. The descriptors of the message are closed aside.
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

// Refusals are said in the log with the words of the reply.
Outcome Requests::refuse_attach(const Session& session, uint32_t request_id, int code, const std::string& why) {
  users_.complaints.say(session.account, "{} may not attach: {}", session.text(), why);
  return refuse(kType, request_id, code, why);
}

Outcome Requests::attach_to(Session& session, uint32_t pool_index, uint32_t request_id,
                            const wire::AttachRequest& request, Moment now) {
  const Attach attach = {session, *pools_[pool_index], pool_index, request_id, request, now};
  Pool* const pool = attach.hosted.serving();
  if (!pool) return refuse_unserved(attach);
  if (auto refusal = refuse_client(attach)) return std::move(*refusal);
  auto descriptors = descriptors_for(attach);
  if (!descriptors) return refuse_attach(session, request_id, descriptors.error().code, "marud has no descriptor left");
  if (!attach.keeps_lane())
    if (const std::string why = users_.why_no_lane(session.peer(), session.text(), pool_index, now.monotonic_ms);
        !why.empty())
      return refuse(kType, request_id, EDQUOT, why);
  if (pool->is_quiesced()) return wait_for_lane(attach);

  FileDescriptor locked;
  const auto grant =
      pool->attach(session.peer().who, request.previous_lane, request.previous_generation, now.unix_ms, &locked);
  if (!grant && grant.error().code == EAGAIN) return wait_for_lane(attach);
  if (!grant) {
    users_.complaints.say(session.account, "{} got no lane of pool \"{}\": {}", session.text(), attach.hosted.name(),
                          grant.error().text());
    return refuse(kType, request_id, grant.error().code, grant.error().doing);
  }
  if (locked.is_open()) (pool->device().is_split() ? descriptors->control : descriptors->memory) = std::move(locked);

  Outcome outcome;
  watch_lane(attach, *grant, std::move(descriptors->pidfd), outcome);
  outcome.reply =
      OutgoingPacket{wire::encode(wire::Type::kAttach, request_id, 0, wire::bytes_of(reply_to(attach, *grant))),
                     std::move(descriptors->memory), std::move(descriptors->control)};
  if (attach.hosted.condition() == HostedPool::Condition::kLeaving)
    outcome.notices.push_back(lifecycle_.leave_notice(session.id(), attach.hosted, now));
  users_.movements.say(session.peer().who.uid, "{} {} lane {} of pool \"{}\"", session.text(),
                       grant->kept ? "is back on" : "attached to", grant->lane, attach.hosted.name());
  return outcome;
}

// The pool is unavailable or fenced. A client with a lane of a fenced pool may say goodbye to it on this connection.
Outcome Requests::refuse_unserved(const Attach& attach) {
  const HostedPool& hosted = attach.hosted;
  if (hosted.condition() == HostedPool::Condition::kUnavailable)
    return refuse_attach(attach.session, attach.request_id, ENODEV,
                         "pool \"" + hosted.name() + "\" is unavailable: " + hosted.reason());
  Outcome outcome = refuse_attach(attach.session, attach.request_id, EIO,
                                  "pool \"" + hosted.name() + "\" is fenced: " + hosted.fenced_because());
  outcome.superseded_session = bind_for_goodbye(attach.session, attach.pool, attach.request);
  return outcome;
}

// Reasons in the pool and in the client's own request, or nothing.
std::optional<Outcome> Requests::refuse_client(const Attach& attach) {
  const HostedPool& hosted = attach.hosted;
  const Pool& pool = *hosted.serving();
  static constexpr uint8_t kNoUuid[16] = {};
  const uint8_t(&uuid)[16] = attach.request.uuid;
  if (std::memcmp(uuid, kNoUuid, 16) != 0 && std::memcmp(uuid, pool.header().uuid, 16) != 0)
    return refuse(kType, attach.request_id, ESTALE,
                  "pool \"" + hosted.name() + "\" is another one now: detach and attach");
  if (!pool.device().is_split() && !may_use(attach.session.peer(), hosted.spec().users, hosted.spec().groups))
    return refuse_attach(
        attach.session, attach.request_id, EACCES,
        "this user may only read pool \"" + hosted.name() +
            "\", which is in one piece that readers could write: remove the pool and add it anew (marudctl device "
            "remove), a pool in a file with control_path");
  if (hosted.condition() == HostedPool::Condition::kLeaving && !attach.keeps_lane())
    return refuse_attach(attach.session, attach.request_id, ESHUTDOWN,
                         "pool \"" + hosted.name() + "\" is being removed: it takes no clients");
  return std::nullopt;
}

Result<Requests::AttachDescriptors> Requests::descriptors_for(const Attach& attach) {
  const Device& device = attach.hosted.serving()->device();
  const bool reads_only = attach.is_read_only() && device.is_split();
  AttachDescriptors all;
  all.memory = copy_of(reads_only ? device.read_only_fd() : device.fd());
  if (all.memory.is_open() && device.is_split()) all.control = copy_of(device.control_fd());
  const bool is_mapped = all.memory.is_open() && (!device.is_split() || all.control.is_open());
  if (is_mapped) all.pidfd = copy_of(attach.session.peer().pidfd.get());
  if (!all.pidfd.is_open()) return failure(errno, "copy the descriptors of a pool");
  return all;
}

// Until the pool has taken a lane back, or is no longer at rest.
Outcome Requests::wait_for_lane(const Attach& attach) {
  waiting_.push_back({attach.session.id(), attach.pool, attach.request_id, attach.request, true});
  return {};
}

// The lane's watch is this session's from now on.
void Requests::watch_lane(const Attach& attach, const LaneGrant& grant, FileDescriptor pidfd, Outcome& outcome) {
  Session& session = attach.session;
  const ClientIdentity& who = session.peer().who;
  LaneWatch* watch = lanes_.find_lane(attach.pool, grant.lane);
  if (watch && (watch->who.pid != who.pid || watch->who.start_time != who.start_time)) {
    // The pool knows that the lane's earlier process is gone; the event loop has not heard of it yet.
    outcome.superseded_session = watch->session;
    outcome.unwatch_lane = watch->id;
    lanes_.remove(watch->id);
    watch = nullptr;
  }
  if (!watch) {
    watch = &lanes_.add({0, attach.pool, grant.lane, who, session.peer().command, std::move(pidfd), 0, 0});
    outcome.watch_lane = watch->id;
  } else if (watch->session != 0 && watch->session != session.id()) {
    outcome.superseded_session = watch->session;
  }
  watch->who = who;  // perhaps another user by now
  watch->session = session.id();
  watch->since_ms = attach.now.unix_ms;
  watch->groups = session.peer().groups;
  watch->has_attached = true;
  session.lane_watch = watch->id;
  session.lane_is_news = !grant.kept;
  session.is_read_only = attach.is_read_only();
}

wire::AttachReply Requests::reply_to(const Attach& attach, const LaneGrant& grant) const {
  const Pool& pool = *attach.hosted.serving();
  const Device& device = pool.device();
  const format::Header& head = pool.header();
  const Peer& peer = attach.session.peer();
  const UserLimits limits = users_.limits_of(peer.who.uid, peer.who.gid, peer.groups);
  wire::AttachReply reply = {};
  std::memcpy(reply.uuid, head.uuid, sizeof(reply.uuid));
  reply.pool_bytes = device.bytes();
  reply.control_bytes = head.control_bytes;
  reply.epoch = pool.epoch();
  reply.lane = grant.lane;
  reply.lane_generation = grant.generation;
  reply.lane_kept = grant.kept ? 1 : 0;
  reply.host = pool.host();
  reply.map_alignment = uint32_t(device.map_alignment());
  reply.descriptors = device.is_split() ? 2 : 1;
  reply.pages_offset = device.is_split() ? device.pages_offset() : head.control_bytes;
  reply.control_alignment = device.control_alignment();
  reply.user_regions_max = limits.regions;
  reply.user_bytes_max = limits.bytes;
  return reply;
}

// A client with a lane of a pool that was fenced cannot have it back, and may say goodbye to it on this connection.
// Returns the session that had the lane until now.
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
  std::vector<WaitingAttach> still;
  for (WaitingAttach& waiting : waiting_) {
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

std::optional<uint64_t> Requests::waiting_ms(Moment now) const {
  std::optional<uint64_t> least;
  for (const WaitingAttach& waiting : waiting_) {
    // The server looks itself at pools that are opened, and turns look at lanes.
    if (waiting.for_lane || lifecycle_.begins_anew(*pools_[waiting.pool])) continue;
    const uint64_t ends_ms = grace_ends_ms_[waiting.pool].value_or(0);
    const uint64_t left_ms = pools_[waiting.pool]->condition() != HostedPool::Condition::kWaiting ? 0
                             : ends_ms > now.monotonic_ms ? ends_ms - now.monotonic_ms
                                                          : 0;
    least = std::min(least.value_or(left_ms), left_ms);
  }
  return least;
}

}  // namespace maru::daemon
