#include "daemon/server/session.h"

#include <cerrno>
#include <cstring>
#include <fmt/core.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

namespace maru::daemon {

std::string Session::text() const {
  return fmt::format("process {} ({}, user {})", peer_.who.pid, peer_.command, peer_.who.uid);
}

void Session::await_packet(EventLoop& loop) {
  is_awaited_ = true;
  loop.watch_packets(id_, socket_.get());
}

bool Session::finish_await(int result) {
  is_awaited_ = false;
  if (result < 0) return true;
  if ((result & (POLLHUP | POLLERR | POLLRDHUP)) == 0) return false;
  bool brings = false;
  return peek(brings) <= 0 && !brings;
}

bool Session::is_bringing_descriptors() {
  bool brings = false;
  return peek(brings) >= 0 && brings;
}

// The next packet of receive() stays where it is. As recvmsg(2).
ssize_t Session::peek(bool& brings_descriptors) {
  char byte;
  iovec part = {&byte, 1};
  msghdr message = {};  // without room for descriptors: the kernel says that it left some out
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const ssize_t result = take(message, MSG_PEEK);
  brings_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  return result;
}

// recvmsg(2). The kernel says once (unix(7)) that the other end was closed with a reply of ours unread, and before it
// gives the earlier packets.
ssize_t Session::take(msghdr& message, int flags) {
  const ssize_t result = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
  if (result >= 0 || errno != ECONNRESET) return result;
  left_unread_ = true;
  return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
}

Session::Received Session::receive() {
  // Not value-initialised: the kernel's pages behind it are only touched as far as packets reach.
  if (!receive_bytes_) receive_bytes_.reset(new std::byte[limits::kMessageBytesMax]);
  iovec part = {receive_bytes_.get(), limits::kMessageBytesMax};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsOfLinuxMax * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t result = take(message, 0);
  Received received;
  if (result < 0) {
    received.is_nothing = errno == EAGAIN;
    received.is_hangup = errno == ECONNRESET || errno == EPIPE;
    if (!received.is_nothing) received.end = std::string("receiving failed: ") + std::strerror(errno);
    return received;
  }
  received.descriptors = wire::take_descriptors(message);
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    received.end = fmt::format("a packet of more than {} bytes", limits::kMessageBytesMax);
  } else if (received.descriptors.size() > kDescriptorsMax) {
    received.end = fmt::format("a packet with {} descriptors, where at most {} make sense", received.descriptors.size(),
                               kDescriptorsMax);
  } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
    received.end = "a packet with more descriptors than marud has left";
  } else if (result == 0) {
    // The end of the connection and an empty packet look the same; only the state of the socket tells them apart.
    pollfd entry = {socket_.get(), POLLRDHUP, 0};
    received.is_hangup = ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLRDHUP | POLLHUP)) != 0;
    received.end = received.is_hangup ? "the connection ended" : "an empty packet";
  } else {
    received.bytes = {receive_bytes_.get(), size_t(result)};
  }
  return received;
}

bool Session::send(EventLoop& loop, OutgoingPacket packet) {
  if (is_closing_ || close_when_sent_) return true;
  if (unsent_.size() >= kUnsentMax) return false;
  unsent_.push_back(std::move(packet));
  if (!sending_) begin_send(loop);
  return true;
}

void Session::send_unasked(EventLoop& loop, OutgoingPacket packet) {
  if (unsent_.size() < kUnsentWhenUnaskedMax) send(loop, std::move(packet));
}

bool Session::is_behind() const {
  int unread = 0;
  return unsent_.size() > 1 || (::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread > kUnreadBytesMax);
}

void Session::begin_send(EventLoop& loop) {
  OutgoingPacket& packet = unsent_.front();
  send_part_ = {packet.bytes.data(), packet.bytes.size()};
  send_message_ = {};
  send_message_.msg_iov = &send_part_;
  send_message_.msg_iovlen = 1;
  if (packet.fd.is_open())
    wire::attach_descriptors(send_message_, send_descriptors_, packet.fd.get(), packet.second.get(),
                             packet.third.get());
  sending_ = true;
  loop.send(id_, socket_.get(), &send_message_);
}

bool Session::finish_send(EventLoop& loop, int result) {
  sending_ = false;
  send_failed_ = result < 0;
  if (send_failed_) return false;
  unsent_.pop_front();
  if (is_closing_) return true;
  if (!unsent_.empty()) {
    begin_send(loop);
    return true;
  }
  return !close_when_sent_;
}

void Session::close(EventLoop& loop) {
  if (is_closing_) return;
  is_closing_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (is_awaited_) loop.cancel(EventKind::kPacket, id_);
  if (sending_) loop.cancel(EventKind::kSend, id_);
}

}  // namespace maru::daemon
