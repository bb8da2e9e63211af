#include "daemon/eventd/zmq_socket.h"

#include <cerrno>

namespace maru::eventd {
namespace {

// A peer that has not answered for so long is gone, with the messages that wait for it.
constexpr int kHeartbeatMs = 10'000, kHeartbeatTimeoutMs = 30'000;

// libzmq adds error numbers of its own to the system's.
tl::unexpected<Error> zmq_failure(std::string doing) {
  const int code = ::zmq_errno();
  if (code < ZMQ_HAUSNUMERO) return failure(code, std::move(doing));
  return failure(EINVAL, std::move(doing) + " (" + ::zmq_strerror(code) + ")");
}

std::string hint(int code) {
  if (code == EADDRINUSE) return " (another program listens there: end it, or name another port)";
  if (code == ENODEV) return " (this machine has no such interface: write an address of its own, or *)";
  return "";
}

}  // namespace

Result<ZmqSocket> ZmqSocket::create(const ZmqContext& context, int type, const char* what) {
  ZmqSocket socket(::zmq_socket(context.get(), type));
  if (!socket.is_open()) return zmq_failure(std::string("create ") + what);
  socket.set(ZMQ_LINGER, 0);
  socket.set(ZMQ_IPV6, 1);
  socket.set(ZMQ_TCP_KEEPALIVE, 1);
  socket.set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs);
  socket.set(ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatTimeoutMs);
  return socket;
}

Result<void> ZmqSocket::bind(const std::string& endpoint) {
  if (::zmq_bind(socket_, endpoint.c_str()) == 0) return {};
  return zmq_failure("listen on " + endpoint + hint(::zmq_errno()));
}

Result<void> ZmqSocket::connect(const std::string& endpoint) {
  if (::zmq_connect(socket_, endpoint.c_str()) == 0) return {};
  return zmq_failure("connect to " + endpoint);
}

std::string ZmqSocket::endpoint() const {
  char text[1024] = {};
  size_t bytes = sizeof(text);
  if (::zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text, &bytes) != 0) return "";
  return text;
}

bool ZmqSocket::send(const std::vector<std::string_view>& frames, bool waits) {
  const int wait = waits ? 0 : ZMQ_DONTWAIT;
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    int sent;
    do {
      sent = ::zmq_send(socket_, frames[i].data(), frames[i].size(), wait | more);
    } while (sent < 0 && ::zmq_errno() == EINTR);
    if (sent >= 0) continue;
    errno = ::zmq_errno();
    return false;  // only the first frame can fail so: the room for a message is asked for then
  }
  return true;
}

bool ZmqSocket::receive(Frames& ret, size_t most) {
  ret.clear();
  int more = 1;
  for (size_t frames = 0; more != 0; ++frames) {
    zmq_msg_t message;
    ::zmq_msg_init(&message);
    int got;
    do {
      got = ::zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT);
    } while (got < 0 && ::zmq_errno() == EINTR);
    if (got < 0) {
      ::zmq_msg_close(&message);
      return false;
    }
    if (frames < most) ret.emplace_back(static_cast<const char*>(::zmq_msg_data(&message)), size_t(got));
    more = ::zmq_msg_more(&message);
    ::zmq_msg_close(&message);
  }
  return true;
}

}  // namespace maru::eventd
