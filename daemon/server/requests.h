// One message: marud checks it, decides, and answers. The connection that brought it is the server's business
// (server.h), and the inside of a pool the pool's.
#pragma once

#include "daemon/admin/admin.h"
#include "daemon/config/config.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/pool_lifecycle.h"
#include "daemon/hosting/survey.h"
#include "daemon/server/lane_watch.h"
#include "daemon/server/session.h"
#include "daemon/server/users.h"
#include "maru/format/wire.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

// The consequences of a request for connections.
struct Outcome {
  std::optional<OutgoingPacket> reply;
  std::string drop;  // not empty: end the session, for this reason
  bool drop_after_reply = false;
  uint64_t superseded_session = 0;  // its process attached again on another connection
  using Notice = maru::daemon::Notice;
  std::vector<Notice> notices;  // for others, unasked
  uint64_t watch_lane = 0;      // a new lane watch: wait for its pidfd
  uint64_t unwatch_lane = 0;    // its watch is gone
};

class Requests {
 public:
  Requests(const Config& config, HostedPools& pools, LaneWatches& lanes, PoolLifecycle& lifecycle)
      : config_(config), pools_(pools), lanes_(lanes), lifecycle_(lifecycle), users_(config, pools, lanes) {}

  Outcome handle(Session& session, Session::Received& received, Moment now);
  // Instead of handle(), for a connection that may not stay: the reply to any request says why the connection goes.
  static Outcome turn_away(const Session& session, const Session::Received& received);

  // An attach that came while a pool waited for its memory or took its last lane back, and can be answered now.
  struct Settled {
    uint64_t session;
    wire::AttachRequest request;
    uint32_t request_id;
  };
  // Ends the wait of pools whose grace is over, and returns the attaches that can go on. The caller passes each to
  // attach_again(), if its session still lives.
  std::vector<Settled> settle_waiting(Moment now);
  Outcome attach_again(Session& session, const Settled& settled, Moment now);

  // A request for memory that waits for turns of its pool. Later messages of its connection wait behind it.
  bool has_waiting_rent(uint64_t session) const;
  // The sessions of requests that can go on, each once: the caller passes it to rent_again(), if it still lives.
  std::vector<uint64_t> ready_rents();
  Outcome rent_again(Session& session, Moment now);
  void forget(uint64_t session);
  // Milliseconds until settle_waiting() has something to do; nothing when no attach waits.
  std::optional<uint64_t> waiting_ms(Moment now) const;

  // Regions that draining took, for their owners.
  std::vector<Outcome::Notice> drained_notices();

  // A step of the look that "status" needs; true when there is more to do right away.
  bool step_survey();
  // Answers that are ready by now: to administrators, and to clients whose trees are deleted.
  std::vector<Outcome::Notice> late_answers(Moment now);

  AdminView view(Moment now) {
    AdminView view = {pools_,      lanes_,           connections, start_.unix_ms, start_.monotonic_ms,
                      now.unix_ms, now.monotonic_ms, &lifecycle_, &users_};
    view.state_dir = &config_.state_dir;
    view.http_trouble = http_trouble;
    view.socket_trouble = socket_trouble;
    view.sockets_lost = sockets_lost;
    view.http_sockets_lost = http_sockets_lost;
    view.turns = turns;
    return view;
  }
  Users& users() { return users_; }
  // For "status".
  void set_start(Moment start) { start_ = start; }
  size_t connections = 0;
  std::string http_trouble;
  std::string socket_trouble;
  uint64_t sockets_lost = 0, http_sockets_lost = 0;
  const metrics::TurnTimes* turns = nullptr;  // of the event loop, which has it as long as it has this object

 private:
  struct WaitingAttach {
    uint64_t session;
    uint32_t pool;
    uint32_t request_id;
    wire::AttachRequest request;
    bool for_lane = false;  // the pool serves, and takes a lane back or is quiesced
  };

  // A tree that is deleted in turns.
  struct WaitingDeletion {
    uint64_t session;
    wire::MessageHeader header;
    uint32_t pool;
    uint64_t ticket;  // of the pool
  };

  // One for each connection at most.
  struct WaitingRent {
    uint64_t session;
    wire::MessageHeader header;
    wire::RentRequest request;
    uint32_t pool;
    uint32_t lane;
    uint64_t ticket;  // of the pool
    std::chrono::steady_clock::time_point came;
    uint64_t turns;        // so far
    bool is_said = false;  // by ready_rents()
  };

  // A connection that follows a pool.
  struct Following {
    uint64_t session;
    uint32_t pool;
    uint64_t incarnation;
  };

  // An administration request that is answered later. One for each connection, so that a client cannot pile them up.
  struct Late {
    uint64_t session;
    wire::MessageHeader header;
    uint64_t ticket = 0;  // not 0: it waits for PoolLifecycle
    std::string text = {};
    const Peer* only_for = nullptr;  // AdminView; lives as long as the session
    std::string who = {};            // for the log
    uint64_t removal = 0;            // AdminView; not 0: it waits until blocks are removed
    bool is_surveyed = false;        // by the survey that is under way

    bool waits_for_survey() const { return ticket == 0 && removal == 0; }
  };

  Outcome attach(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                 std::vector<FileDescriptor>& descriptors, Moment now);
  // The steps of an attach to a pool that has its memory, in order.
  struct Attach;
  struct AttachDescriptors;
  Outcome attach_to(Session& session, uint32_t pool, uint32_t request_id, const wire::AttachRequest& request,
                    Moment now);
  Outcome refuse_unserved(const Attach& attach);
  std::optional<Outcome> refuse_client(const Attach& attach);
  Result<AttachDescriptors> descriptors_for(const Attach& attach);
  Outcome wait_for_lane(const Attach& attach);
  void watch_lane(const Attach& attach, const LaneGrant& grant, FileDescriptor pidfd, Outcome& outcome);
  wire::AttachReply reply_to(const Attach& attach, const LaneGrant& grant) const;
  Outcome refuse_attach(const Session& session, uint32_t request_id, int code, const std::string& why);
  void take_back(const Session& session, const HostedPool& hosted, const std::vector<FileDescriptor>& descriptors,
                 bool is_late);
  std::string why_no_access(const Session& session, const HostedPool& hosted, const wire::AttachRequest& request);
  uint64_t bind_for_goodbye(Session& session, uint32_t pool, const wire::AttachRequest& request);
  Outcome detach(Session& session, const wire::MessageHeader& header);
  Outcome rent(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload, Moment now);
  Outcome rent_for(Session& session, const wire::MessageHeader& header, const wire::RentRequest& request, Moment now,
                   uint64_t ticket, std::chrono::steady_clock::time_point came, uint64_t turns);
  Outcome credit(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload, Moment now);
  Outcome make_room(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                    Moment now);
  Outcome has_copies(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                     Moment now);
  Outcome bad_memory(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                     Moment now);
  Outcome delete_tree(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                      Moment now);
  std::vector<Outcome::Notice> deleted_answers();
  Outcome follow(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload, Moment now);
  void stop_following(uint64_t session);
  Outcome admin(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload, Moment now);
  std::vector<Outcome::Notice> tell_old_owners(uint32_t pool, std::span<const TakenRegion> taken);
  // The lane of a session, if its pool serves; otherwise the refusal is in `outcome`.
  LaneWatch* lane_of(Session& session, const wire::MessageHeader& header, Outcome& outcome);

  const Config& config_;
  HostedPools& pools_;
  LaneWatches& lanes_;
  PoolLifecycle& lifecycle_;
  Users users_;
  std::vector<WaitingAttach> waiting_;
  std::vector<Late> late_;
  std::vector<WaitingDeletion> deletions_;
  std::vector<WaitingRent> rents_;
  std::vector<Following> followings_;
  std::optional<Survey> survey_;
  std::vector<std::optional<uint64_t>> grace_ends_ms_;  // per pool, monotonic
  Moment start_ = {};
};

}  // namespace maru::daemon
