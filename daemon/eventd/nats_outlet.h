// Publishes a stream's events by NATS. Whenever the server has come back, and whenever something found no room while it was
// away, everything is announced again. So is it when a message comes to the subject with ".resync" behind it, at most once in a
// pause.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/eventd/nats_link.h"
#include "daemon/eventd/outlet.h"
#include "daemon/eventd/sequence.h"

#include <chrono>
#include <memory>

namespace maru::eventd {

class NatsOutlet : public Outlet {
 public:
  static Result<std::unique_ptr<NatsOutlet>> open(const NatsSettings& settings, const std::string& sequence_path,
                                                  daemon::beside::Counters& counters, daemon::beside::Health& health);

  void publish(const EventList& events) override;
  void add_to_poll(std::vector<zmq_pollitem_t>& items) override;
  bool serve() override;
  int wait_ms() override;

 private:
  using Clock = std::chrono::steady_clock;

  NatsOutlet(const NatsSettings& settings, Sequence sequence, std::unique_ptr<NatsLink> link,
             daemon::beside::Counters& counters, daemon::beside::Health& health);
  std::string encode(uint64_t sequence, const EventList& events);
  void publish_message(const EventList& events);

  const NatsSettings settings_;
  const std::string part_;  // of the health
  Sequence sequence_;
  uint64_t next_event_id_;
  std::unique_ptr<NatsLink> link_;
  daemon::beside::Health& health_;
  bool lost_some_ = false;  // all is to be announced when the server is there
  bool was_asked_ = false;  // all is to be announced when the pause is over
  Clock::time_point all_due_{};
  daemon::beside::Sample &batches_, &events_, &bytes_, &dropped_, &left_out_;
};

}  // namespace maru::eventd
