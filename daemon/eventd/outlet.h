// Where a stream's events go. The stream's thread makes all calls, and none waits for long.
#pragma once

#include "daemon/eventd/blocks.h"

#include <vector>

#include <zmq.h>

namespace maru::eventd {

class Outlet {
 public:
  virtual ~Outlet() = default;

  // Events that follow those before.
  virtual void publish(const EventList& events) = 0;
  // Adds the outlet's sockets to the stream's sockets.
  virtual void add_to_poll(std::vector<zmq_pollitem_t>& items) = 0;
  // Does the outlet's own work. True: a subscriber lost something, so that all is to be announced again.
  virtual bool serve() = 0;
  // The longest wait until serve() is to be called without a message; -1: for ever.
  virtual int wait_ms() = 0;
};

}  // namespace maru::eventd
