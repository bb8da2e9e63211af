// vLLM's way to publish: a PUB socket with three frames a batch [topic, sequence, events], and ROUTER sockets at which
// subscribers ask for batches that they missed.
//
// A subscriber that reads too slowly loses batches, as PUB sockets have it. At most `hwm` batches wait for it, and each begin
// of a loss is counted. It notices by the sequence, and asks for the missing batches. If they are not kept any more, everything
// is announced again, and the answer contains it: AllBlocksCleared, then all blocks, parents first.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/eventd/outlet.h"
#include "daemon/eventd/replay_service.h"
#include "daemon/eventd/sequence.h"
#include "daemon/eventd/settings.h"
#include "daemon/eventd/zmq_socket.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::eventd {

class ZeromqOutlet : public Outlet {
 public:
  // Errors: an endpoint is taken or makes no sense; the errors of Sequence::begin().
  static Result<std::unique_ptr<ZeromqOutlet>> open(const ZmqContext& context, const ZeromqSettings& settings,
                                                    const std::string& sequence_path,
                                                    daemon::beside::Counters& counters);

  void publish(const EventList& events) override;
  void add_to_poll(std::vector<zmq_pollitem_t>& items) override;
  bool serve() override;
  int wait_ms() override;

  void set_rank(std::optional<int64_t> rank) { rank_ = rank; }  // as the engine of the relay says
  std::string endpoint() const { return pub_.endpoint(); }
  std::string replay_endpoint() const;

 private:
  using Clock = std::chrono::steady_clock;

  ZeromqOutlet(const ZeromqSettings& settings, Sequence sequence, daemon::beside::Counters& counters);
  Result<void> open_sockets(const ZmqContext& context);
  bool welcome();
  void send(std::string_view topic, std::string_view sequence, const std::string& payload);

  const ZeromqSettings settings_;
  Sequence sequence_;
  std::optional<int64_t> rank_;
  ZmqSocket pub_;
  ReplayBuffer buffer_;
  std::vector<std::unique_ptr<ReplayService>> replays_;
  bool owes_all_ = false;  // to a new subscriber that cannot ask for it
  Clock::time_point all_due_{}, heartbeat_due_{};
  daemon::beside::Sample &batches_, &events_, &bytes_, &stalls_, &buffered_bytes_;
};

}  // namespace maru::eventd
