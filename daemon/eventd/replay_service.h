// One ROUTER socket at which subscribers ask for batches again.
//
//   request   [identity, "", sequence]               eight bytes, most significant first: the first wanted batch
//   answer    [identity, "", topic, sequence, batch]  for each batch from there on, as vLLM since 0.26 and SGLang
//             [identity, "", sequence, batch]         or without the topic, as vLLM before
//             ... and at the end sequence -1 with an empty batch
//
// A request without the empty frame is answered without it. Every process that reaches the port may ask. Each may have one
// answer under way, and kRequestsMax processes at a time; an answer that is not read is given up after kGiveUp.
//
// Thread safety: one thread.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/eventd/replay_buffer.h"
#include "daemon/eventd/zmq_socket.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace maru::eventd {

// A request, without the identity in front. Errors: EBADMSG with the found request.
struct ReplayRequest {
  bool has_delimiter = false;
  uint64_t sequence = 0;
};
Result<ReplayRequest> parse_replay_request(const Frames& frames);

class ReplayService {
 public:
  static constexpr size_t kRequestsMax = 64;
  static constexpr std::chrono::seconds kGiveUp{30};

  // `topics`: as the stream has them; empty: answers have no frame for the topic.
  static Result<std::unique_ptr<ReplayService>> open(const ZmqContext& context, const std::string& endpoint,
                                                     std::vector<std::string> topics, std::chrono::milliseconds pause,
                                                     daemon::beside::Counters& counters, const std::string& stream);

  // Takes requests, and sends as much of the answers as subscribers take. True: everything is to be announced again first,
  // since a wanted batch is not kept any more; at most once in `pause`.
  bool serve(const ReplayBuffer& buffer);
  int wait_ms() const;  // until serve() is to be called though nothing came; -1: not at all
  void* socket() const { return router_.get(); }
  std::string endpoint() const { return router_.endpoint(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Answer {
    std::string identity;
    bool has_delimiter;
    uint64_t next;               // batch to send
    size_t topic = 0;            // and under which topic
    bool waits = false;          // for everything to be announced again
    Clock::time_point deadline;  // when it is given up
  };

  ReplayService(std::vector<std::string> topics, std::chrono::milliseconds pause, daemon::beside::Counters& counters,
                const std::string& stream);
  void take_requests(const ReplayBuffer& buffer);
  void take(Frames& frames, const ReplayBuffer& buffer);
  void begin(Answer& answer, const ReplayBuffer& buffer);
  bool advance(Answer& answer, const ReplayBuffer& buffer);
  bool send(const Answer& answer, std::string_view sequence, std::string_view payload);
  void complain(const std::string& text);

  const std::vector<std::string> topics_;
  const std::chrono::milliseconds pause_;
  const std::string stream_;
  ZmqSocket router_;
  std::deque<Answer> answers_;
  Clock::time_point all_due_{};  // when everything may be announced again
  Clock::time_point complained_at_{};
  uint64_t complaints_ = 0;    // that were not logged
  bool wants_all_ = false;     // a subscriber asked for batches that are not kept
  bool is_announced_ = false;  // by the next call of serve()
  daemon::beside::Sample &requests_, &refused_, &incomplete_, &replayed_;
};

}  // namespace maru::eventd
