// The feed of an engine, which a stream passes on beside the blocks of pools. So routers see one worker with all its tiers.
//
// Lost batches are asked for at the engine's replay socket. If the engine has dropped them, all blocks of the engine are taken
// back, and only its later events count. So routers may believe that the engine has less than it has, and never more.
//
// Thread safety: one thread.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/eventd/contents.h"
#include "daemon/eventd/settings.h"
#include "daemon/eventd/vllm_batch.h"
#include "daemon/eventd/zmq_socket.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::eventd {

// A message of the feed, from its frames with or without a topic in front.
struct FeedMessage {
  uint64_t sequence = 0;
  std::string_view payload;
  bool is_end = false;  // of a replay
};
// Errors: EBADMSG with the found message.
Result<FeedMessage> parse_feed_message(const Frames& frames);

class EngineFeed {
 public:
  static Result<std::unique_ptr<EngineFeed>> open(const ZmqContext& context, const std::string& stream,
                                                  const RelaySettings& settings, uint32_t source, Contents& contents,
                                                  daemon::beside::Counters& counters, daemon::beside::Health& health);

  void add_to_poll(std::vector<zmq_pollitem_t>& items);
  // Takes the messages that have come, and appends their changes. `when_full` is called when `out` may be published.
  void serve(EventList& out, const std::function<void()>& when_full);
  int wait_ms() const;  // until serve() is to be called though nothing came; -1: not at all

  std::optional<int64_t> rank() const { return rank_; }  // as the engine says; nothing: it has not said

 private:
  using Clock = std::chrono::steady_clock;

  EngineFeed(const std::string& stream, const RelaySettings& settings, uint32_t source, Contents& contents,
             daemon::beside::Counters& counters, daemon::beside::Health& health);
  Result<void> open_sockets(const ZmqContext& context);
  void take(const FeedMessage& message, EventList& out);
  void take_replay(EventList& out);
  void ask_for(uint64_t sequence);
  void keep_waiting(const FeedMessage& message);
  void end_replay(EventList& out);
  void lose(const char* why, EventList& out);
  bool was_disconnected();
  void begin_anew(const char* why, EventList& out);
  void apply(uint64_t sequence, std::string_view payload, EventList& out);
  void apply_event(const RouterEvent& event, EventList& out);
  void complain(const std::string& text);

  const std::string part_;
  const RelaySettings settings_;
  const uint32_t source_;
  Contents& contents_;
  daemon::beside::Health& health_;
  ZmqSocket sub_, replay_;
  ZmqSocket monitor_;                  // tells when the connection ends
  std::optional<uint64_t> last_;       // sequence that was applied
  std::optional<uint64_t> last_live_;  // that came by sub_; a replay may be ahead of it
  std::optional<int64_t> rank_;
  uint64_t asked_ = 0;  // for the last replay: its first sequence
  // While a replay is under way: the batches that came meanwhile, and the time at which it ends in any case.
  std::optional<Clock::time_point> replay_deadline_;
  std::map<uint64_t, std::string> waiting_;
  size_t waiting_bytes_ = 0;
  Clock::time_point complained_at_{};
  daemon::beside::Sample &batches_, &bad_, &gaps_, &losses_;
};

}  // namespace maru::eventd
