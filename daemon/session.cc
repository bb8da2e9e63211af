#include "daemon/session.h"

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

void Session::begin_receive(EventLoop& loop) {
  // Not value-initialised: the kernel's pages behind it are only touched as far as packets reach.
  if (!receive_bytes_) receive_bytes_.reset(new std::byte[limits::kMessageBytesMax]);
  receive_part_ = {receive_bytes_.get(), limits::kMessageBytesMax};
  receive_message_ = {};
  receive_message_.msg_iov = &receive_part_;
  receive_message_.msg_iovlen = 1;
  receive_message_.msg_control = receive_control_;
  receive_message_.msg_controllen = sizeof(receive_control_);
  receiving_ = true;
  loop.receive(id_, socket_.get(), &receive_message_);
}

Session::Received Session::finish_receive(int result) {
  receiving_ = false;
  Received received;
  if (result < 0) {
    received.end = std::string("receiving failed: ") + std::strerror(-result);
    received.is_hangup = result == -ECONNRESET || result == -EPIPE || result == -ECANCELED;
    left_unread_ = result == -ECONNRESET;  // unix(7): the kernel's way to say so
    return received;
  }
  received.descriptors = wire::take_descriptors(receive_message_);
  if ((receive_message_.msg_flags & MSG_TRUNC) != 0) {
    received.end = fmt::format("a packet of more than {} bytes", limits::kMessageBytesMax);
  } else if (received.descriptors.size() > kDescriptorsMax) {
    received.end = fmt::format("a packet with {} descriptors, where at most {} make sense", received.descriptors.size(),
                               kDescriptorsMax);
  } else if ((receive_message_.msg_flags & MSG_CTRUNC) != 0) {
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

bool Session::send(EventLoop& loop, Packet packet) {
  if (is_closing_ || close_when_sent_) return true;
  if (unsent_.size() >= kUnsentMax) return false;
  unsent_.push_back(std::move(packet));
  if (!sending_) begin_send(loop);
  return true;
}

void Session::send_unasked(EventLoop& loop, Packet packet) {
  if (unsent_.size() < kUnsentWhenUnaskedMax) send(loop, std::move(packet));
}

bool Session::is_behind() const {
  int unread = 0;
  return unsent_.size() > 1 || (::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread > kUnreadBytesMax);
}

void Session::begin_send(EventLoop& loop) {
  Packet& packet = unsent_.front();
  send_part_ = {packet.bytes.data(), packet.bytes.size()};
  send_message_ = {};
  send_message_.msg_iov = &send_part_;
  send_message_.msg_iovlen = 1;
  if (packet.fd.is_open())
    wire::attach_descriptors(send_message_, send_descriptors_, packet.fd.get(), packet.second.get());
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
  if (receiving_) loop.cancel(EventKind::kReceive, id_);
  if (sending_) loop.cancel(EventKind::kSend, id_);
}

}  // namespace maru::daemon
