// The Unix socket on which clients ask for blocks, and operators about tiers. A connection is one question; its end ends the
// question's holds. A client's bytes are read as they come, bounded, and checked. Commands that change something are for this
// process's own user and root: engines may open the socket, too.
//
// Where descriptors have run out, a spare one takes a connection and closes it: the asker goes on without. Where even this
// fails, connections wait in the kernel's queue until one has ended, or for kAcceptPause.
//
// Threads: one, the controllers'.
#pragma once

#include "daemon/tierd/prefetch_controller.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace maru::tierd {

class PrefetchDoor {
 public:
  static constexpr size_t kConnectionsMax = 4096;
  static constexpr std::chrono::milliseconds kAcceptPause{200};

  // An operator's order; the answer comes by the function, at once or later. `kind`: of message.h.
  using Answer = std::function<void(int result, const std::string& json)>;
  using Order = std::function<void(uint32_t kind, const std::string& name, Answer answer)>;

  static Result<std::unique_ptr<PrefetchDoor>> open(const std::string& path, PrefetchController& prefetches,
                                                    Order order);
  ~PrefetchDoor();
  PrefetchDoor(const PrefetchDoor&) = delete;
  PrefetchDoor& operator=(const PrefetchDoor&) = delete;

  // Readable when there is something to serve.
  int descriptor() const { return poll_.get(); }
  void serve();
  // Takes connections again, if there was a pause and it is over.
  void tick(Clock::time_point now);

 private:
  struct Connection;

  PrefetchDoor(std::string path, PrefetchController& prefetches, Order order);
  void accept();
  void turn_away();
  void listen_again(bool is_listening);
  void read(Connection& connection);
  bool take_question(Connection& connection);
  void send(Connection& connection, uint32_t kind, int result, const void* data, size_t bytes);
  void send_by_id(uint64_t id, uint32_t kind, int result, const void* data, size_t bytes);
  void close(uint64_t id);

  const std::string path_;
  PrefetchController& prefetches_;
  const Order order_;
  FileDescriptor listener_, poll_, spare_;
  std::optional<Clock::time_point> listens_again_;  // nothing: it listens
  Clock::time_point shortage_told_ = {};
  uint64_t next_id_ = 1;  // 0 is the listener
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  // answers may come after the end
};

// A request's keys; nothing: it is no request.
std::optional<PrefetchController::Wanted> read_prefetch_request(std::span<const std::byte> bytes);

}  // namespace maru::tierd
