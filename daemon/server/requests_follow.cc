// Followers: connections without a lane that read the comings and goings in a pool (docs/events.md).
#include "daemon/base/log.h"
#include "daemon/server/request_outcome.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace maru::daemon {
namespace {

// Users who may read the pool, or administrate it.
bool may_follow(const Config& config, const PoolSpec& spec, const Peer& peer) {
  return may_use(peer, spec.users, spec.groups) || may_use(peer, spec.readers, spec.reader_groups) ||
         may_administrate(config, peer) || may_administrate(spec, peer);
}

}  // namespace

Outcome Requests::follow(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                         Moment now) {
  const auto request = wire::read_exactly<wire::FollowRequest>(payload);
  if (!request) return drop("a follow request of the wrong size");
  if (const auto wrong = wire::check(*request)) return drop("a follow request: " + std::string(*wrong));
  if (session.is_behind()) return drop("it asks for descriptors and does not read its replies");
  const auto is_own = [&](const Following& following) { return following.session == session.id(); };
  if (std::ranges::any_of(followings_, is_own))
    return refuse(header, EALREADY, "this connection follows a pool already");

  const std::string name(request->pool);
  const auto found =
      std::ranges::find_if(pools_, [&](const auto& hosted) { return hosted->name() == name && !hosted->is_gone(); });
  if (found == pools_.end()) return refuse(header, ENOENT, "there is no pool \"" + name + "\"");
  HostedPool& hosted = **found;
  if (!may_follow(config_, hosted.spec(), session.peer())) {
    users_.count(metrics::Refusal::kAttach);
    const std::string why = "the access list of pool \"" + name + "\" does not name this user";
    users_.complaints.say(session.account, "{} may not follow pool \"{}\": refused, {}", session.text(), name, why);
    return refuse(header, EACCES, why);
  }
  Pool* pool = hosted.serving();
  if (!pool) {
    using Condition = HostedPool::Condition;
    if (hosted.condition() == Condition::kWaiting)
      return refuse(header, ENODEV, "pool \"" + name + "\" waits for its memory: ask again");
    if (hosted.condition() == Condition::kUnavailable)
      return refuse(header, ENODEV, "pool \"" + name + "\" is unavailable: " + hosted.reason());
    return refuse(header, EIO, "pool \"" + name + "\" is fenced: " + hosted.fenced_because());
  }
  auto grant = pool->follow(now.unix_ms);
  if (!grant) {
    users_.complaints.say(session.account, "{} cannot follow pool \"{}\": {}", session.text(), name,
                          grant.error().text());
    return refuse(header, grant.error().code == ENOMEM ? ENOSPC : grant.error().code, grant.error().text());
  }
  followings_.push_back({session.id(), uint32_t(found - pools_.begin()), grant->reply.incarnation});
  users_.movements.say(session.peer().who.uid, "{} follows pool \"{}\"", session.text(), name);
  Outcome outcome;
  outcome.reply = OutgoingPacket{wire::encode(wire::Type::kFollow, header.request_id, 0, wire::bytes_of(grant->reply)),
                                 std::move(grant->feed), std::move(grant->control), std::move(grant->pages)};
  return outcome;
}

void Requests::stop_following(uint64_t session) {
  std::erase_if(followings_, [&](const Following& following) {
    if (following.session != session) return false;
    if (Pool* pool = pools_[following.pool]->serving()) pool->unfollow(following.incarnation);
    return true;
  });
}

}  // namespace maru::daemon
