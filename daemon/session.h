// One connection: who is at its end, the packet being received, and the replies on their way. It knows nothing of what the
// packets mean.
//
// A session is removed only when none of its operations is in flight, because the kernel writes into it until then.
#pragma once

#include "daemon/event_loop.h"
#include "daemon/peer.h"
#include "libmaru/base/file_descriptor.h"
#include "maru/format/limits.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace maru::daemon {

struct Packet {
  std::vector<std::byte> bytes;
  FileDescriptor fd;  // travels with it
};

class Session {
 public:
  // Replies that a client may leave unread before it is dropped.
  static constexpr size_t kUnsentMax = 64;
  // Descriptors that one packet may bring; the kernel closes further ones.
  static constexpr size_t kDescriptorsMax = 4;

  Session(uint64_t id, FileDescriptor socket, Peer peer) : id_(id), socket_(std::move(socket)), peer_(std::move(peer)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  uint64_t id() const { return id_; }
  const Peer& peer() const { return peer_; }
  std::string text() const;           // "process 17 (python3, user 1000)"

  void begin_receive(EventLoop& loop);
  // What a completed receive brought. Says why the session must end, or nothing.
  struct Received {
    std::span<const std::byte> bytes;  // valid until begin_receive()
    std::vector<FileDescriptor> descriptors;
    std::string end;                   // not empty: the session must end, for this reason
    bool is_hangup = false;            // the reason is the other end's going, not its doing
  };
  Received finish_receive(int result);

  // False: the client reads too slowly, the session must end.
  bool send(EventLoop& loop, Packet packet);
  // False: the session must end.
  bool finish_send(EventLoop& loop, int result);

  // Nothing more is received or answered; operations in flight are ended.
  void close(EventLoop& loop);
  bool is_closing() const { return is_closing_; }
  void close_when_sent() { close_when_sent_ = true; }
  bool is_idle() const { return !receiving_ && !sending_; }
  int release_socket() { return socket_.release(); }

  uint64_t lane_watch = 0;             // 0: none; kept by requests

 private:
  void begin_send(EventLoop& loop);

  const uint64_t id_;
  FileDescriptor socket_;
  Peer peer_;
  bool is_closing_ = false;
  bool close_when_sent_ = false;

  bool receiving_ = false;
  msghdr receive_message_ = {};
  iovec receive_part_ = {};
  std::unique_ptr<std::byte[]> receive_bytes_;
  alignas(cmsghdr) char receive_control_[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};

  bool sending_ = false;
  std::deque<Packet> unsent_;          // the first is the one being sent
  msghdr send_message_ = {};
  iovec send_part_ = {};
  alignas(cmsghdr) char send_control_[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace maru::daemon
