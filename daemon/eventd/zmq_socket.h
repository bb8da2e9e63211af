// A ZeroMQ socket that is owned, on libzmq's C interface: cppzmq reports errors by exceptions. A call does its work at once,
// and waits only where its comment says so.
//
// Thread safety: one thread uses a socket; the context is any thread's.
#pragma once

#include "libmaru/base/result.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zmq.h>

namespace maru::eventd {

class ZmqContext {
 public:
  ZmqContext() : context_(::zmq_ctx_new()) { ::zmq_ctx_set(context_, ZMQ_BLOCKY, 0); }
  ~ZmqContext() { ::zmq_ctx_term(context_); }
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

using Frames = std::vector<std::string>;

class ZmqSocket {
 public:
  ZmqSocket() = default;
  static Result<ZmqSocket> create(const ZmqContext& context, int type, const char* what);
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~ZmqSocket() {
    if (socket_) ::zmq_close(socket_);
  }

  bool is_open() const { return socket_ != nullptr; }
  void* get() const { return socket_; }

  void set(int option, int value) { ::zmq_setsockopt(socket_, option, &value, sizeof(value)); }
  void set64(int option, int64_t value) { ::zmq_setsockopt(socket_, option, &value, sizeof(value)); }
  void set(int option, std::string_view value) { ::zmq_setsockopt(socket_, option, value.data(), value.size()); }
  Result<void> bind(const std::string& endpoint);
  Result<void> connect(const std::string& endpoint);
  std::string endpoint() const;  // with the port that the kernel chose

  // All frames of one message, or none. Waits for ZMQ_SNDTIMEO when `waits`, and otherwise not at all. False, and errno says
  // why: EAGAIN there is no room.
  bool send(const std::vector<std::string_view>& frames, bool waits = false);
  // Frames behind the first `most` are dropped. False: nothing has come.
  bool receive(Frames& ret, size_t most);

 private:
  explicit ZmqSocket(void* socket) : socket_(socket) {}
  void* socket_ = nullptr;
};

}  // namespace maru::eventd
