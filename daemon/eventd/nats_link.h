// A connection to a NATS server, which comes and goes. libnats connects, reconnects, and keeps messages meanwhile in a
// buffer of bounded size, on threads of its own. With JetStream it also waits for the server's word that a message is kept.
//
// Thread safety: one thread calls; the library's threads only leave word in `News`.
#pragma once

#include "daemon/eventd/settings.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

struct __natsConnection;
struct __natsOptions;
struct __natsSubscription;
struct __jsCtx;

namespace maru::eventd {

class NatsLink {
 public:
  // Errors: the library refuses the settings, or a file is missing. That the server is away is none.
  static Result<std::unique_ptr<NatsLink>> open(const NatsSettings& settings);
  ~NatsLink();
  NatsLink(const NatsLink&) = delete;
  NatsLink& operator=(const NatsLink&) = delete;

  // False: it found no room, and is lost.
  bool publish(std::string_view message, const std::string& id);

  struct State {
    bool is_connected = false;
    bool came_back = false;  // connected for the first time, or again, since the last look
    bool was_asked = false;  // a subscriber asked for everything since the last look
    uint64_t not_kept = 0;   // messages that JetStream did not confirm, since the last look
    std::string trouble;     // why it is not as configured; empty: it is
  };
  State look();

  int fd() const;  // readable when there is something to look at

 private:
  struct News;  // from the library's threads

  explicit NatsLink(const NatsSettings& settings);
  Result<void> configure();
  Result<void> connect();
  void disconnect();
  void prepare_jetstream();

  const NatsSettings settings_;
  std::string token_;
  std::shared_ptr<News> news_;
  __natsOptions* options_ = nullptr;
  __natsConnection* connection_ = nullptr;
  __natsSubscription* requests_ = nullptr;
  __jsCtx* jetstream_ = nullptr;
  std::string jetstream_trouble_;
  std::chrono::steady_clock::time_point connect_due_{};
  bool was_refused_ = false;  // since it was last connected
};

}  // namespace maru::eventd
