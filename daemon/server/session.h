// One connection: the process at its end, the packet that was received, and the replies on their way. It knows nothing
// of the meaning of packets.
//
// A client that shuts its writing side down has left, as has a client that closes the connection. Its earlier requests are
// answered, as far as it reads, and then marud ends the connection, too. A client that shuts its reading side down goes with
// the first reply.
//
// A packet is received when it is its user's turn to be served, and not before: the descriptors that it brings are
// marud's from then on. A session is removed only when none of its operations is in flight, because the kernel reads
// from it until then.
#pragma once

#include "daemon/server/event_loop.h"
#include "daemon/system/peer.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/wire/passed_descriptors.h"
#include "maru/format/limits.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace maru::daemon {

struct OutgoingPacket {
  std::vector<std::byte> bytes;
  FileDescriptor fd = {};      // travels with it
  FileDescriptor second = {};  // behind it
  FileDescriptor third = {};   // behind that
};

class Session {
 public:
  // Replies that a client may leave unread before it is dropped.
  static constexpr size_t kUnsentMax = 64;
  // Beyond so many unread packets, unasked packets are dropped instead.
  static constexpr size_t kUnsentWhenUnaskedMax = 16;
  // Descriptors that one packet may bring.
  static constexpr size_t kDescriptorsMax = 4;
  // Descriptors that Linux lets one packet bring (SCM_MAX_FD). There is room for all: the kernel would close a descriptor
  // without room in this thread, and the last close of some lasts as long as the client wants.
  static constexpr size_t kDescriptorsOfLinuxMax = 253;
  // Bytes of replies, as the kernel accounts for them, that a client may leave unread and still be sent descriptors.
  static constexpr int kUnreadBytesMax = 16 << 10;

  Session(uint64_t id, FileDescriptor socket, Peer peer)
      : id_(id), socket_(std::move(socket)), peer_(std::move(peer)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  uint64_t id() const { return id_; }
  const Peer& peer() const { return peer_; }
  std::string text() const;  // "process 17 (python3, user 1000)"

  // The loop is asked to say when a packet is there or the connection is over: EventKind::kPacket, one for each call.
  void await_packet(EventLoop& loop);
  // It has said so, with this result. True: the connection is over, and nothing lies unread in it.
  bool finish_await(int result);
  // Whether the packet that comes next brings descriptors. It stays where it is.
  bool is_bringing_descriptors();
  // The packet that is there, and why the session must end, or nothing. Never blocks.
  struct Received {
    std::span<const std::byte> bytes;  // valid until the next receive()
    std::vector<FileDescriptor> descriptors;
    std::string end;          // not empty: the session must end, for this reason
    bool is_hangup = false;   // the reason is the other end's going, not its doing
    bool is_nothing = false;  // there was nothing to receive after all
  };
  Received receive();

  // False: the client reads too slowly, the session must end.
  bool send(EventLoop& loop, OutgoingPacket packet);
  // A packet that no request waits for: dropped if the client does not read.
  void send_unasked(EventLoop& loop, OutgoingPacket packet);
  // False: the session must end.
  bool finish_send(EventLoop& loop, int result);

  // Nothing more is received or answered; operations in flight are ended.
  void close(EventLoop& loop);
  // The client leaves replies unread, and marud holds their descriptors meanwhile.
  bool is_behind() const;
  bool is_closing() const { return is_closing_; }
  void close_when_sent() { close_when_sent_ = true; }
  bool is_idle() const { return !is_awaited_ && !sending_; }
  int release_socket() { return socket_.release(); }

  std::string turned_away_because;  // not empty: the reply to any request, and then the connection goes
  int turned_away_code = EDQUOT;
  uid_t account = 0;          // the user on whose account the connection is: users.h
  bool is_strangers = false;  // of a user who may use no pool
  bool is_read_only = false;  // the client said so when it attached
  uint64_t lane_watch = 0;    // 0: none; kept by requests
  bool lane_is_news = false;  // the lane is new, and no message came since the reply with it
  // The client closed its end and cannot have read that reply: it never had the lane.
  bool lane_is_unknown() const { return lane_is_news && (left_unread_ || send_failed_); }

 private:
  void begin_send(EventLoop& loop);
  ssize_t peek(bool& brings_descriptors);
  ssize_t take(msghdr& message, int flags);

  const uint64_t id_;
  FileDescriptor socket_;
  Peer peer_;
  bool is_closing_ = false;
  bool close_when_sent_ = false;
  bool left_unread_ = false;  // the other end was closed with something of ours unread
  bool send_failed_ = false;

  bool is_awaited_ = false;  // a packet, by the loop
  std::unique_ptr<std::byte[]> receive_bytes_;

  bool sending_ = false;
  std::deque<OutgoingPacket> unsent_;  // the first is being sent
  msghdr send_message_ = {};
  iovec send_part_ = {};
  wire::DescriptorRoom send_descriptors_;
};

}  // namespace maru::daemon
