#include "libmaru/client/connection.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <poll.h>
#include <sys/socket.h>
#include <system_error>

namespace maru::client {
namespace {
constexpr int kRetryMsMin = 1;
constexpr int kRetryMsMax = 500;
constexpr int kNoMemoryMs = 50;
// After so long the session thread looks whether its descriptors are still its own. If the program closes the number of a
// socket, a poll keeps the socket open until it returns, and marud does not learn of the close before.
constexpr int kLookAfterMs = 1000;
// Read in one go by the session thread; marud keeps fewer for a client that does not read.
constexpr int kNoticesPerLook = 64;

// Memory is known by its seals; devices and files are found again by marud itself.
bool is_memory(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals > 0 && (seals & F_SEAL_SHRINK) != 0;
}
}  // namespace

// Marud may have said, or been told, something in a conversation that ends for want of memory: another connection begins anew.
template <typename F>
auto Connection::whole_or_lost(F&& conversation) {
  try {
    return conversation();
  } catch (const std::bad_alloc&) {
    drop_socket();
    throw;
  }
}

// Reads until the reply to this very request. A reply to an earlier request that timed out goes to `late_reply_`, and a message
// that marud sent unasked goes to `notice_`.
Result<Reply> Connection::receive_reply(const Deadline& deadline, uint32_t request_id) {
  for (;;) {  // ends: see below
    auto packet = wire::receive_packet(socket_, deadline.left_ms());
    if (!packet) return tl::unexpected(packet.error());
    const auto header = wire::decode_reply(packet->bytes);
    if (!header) return tl::unexpected(header.error());
    const auto payload = wire::payload_of(packet->bytes);
    if (header->request_id != request_id) {
      const auto& take = header->request_id == 0 ? notice_ : late_reply_;
      if (header->status == 0 && take) take(wire::Type(header->type), payload);
      was_answered(header->request_id);
      // A marud that goes on sending other things is not waited for any longer than a silent one.
      if (deadline.left_ms() == 0) return failure(ETIMEDOUT, "receive marud's reply");
      continue;
    }
    was_answered(request_id);
    if (header->status < 0) {
      if (wire::Type(header->type) == wire::Type::kAttach) may_have_lane_ = known_;
      return failure(-header->status, std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
    }
    packet->bytes.erase(packet->bytes.begin(), packet->bytes.begin() + sizeof(wire::MessageHeader));
    if (wire::Type(header->type) == wire::Type::kRent) ++in_hand_;
    return Reply{request_id, std::move(packet->bytes), std::move(packet->fd), std::move(packet->second)};
  }
}

void Connection::was_answered(uint32_t request_id) { std::erase(unanswered_, request_id); }

void Connection::lose_answer(uint32_t request_id) {
  const std::lock_guard lock(mutex_);
  lost_.push_back(request_id);  // there is room: send()
  --in_hand_;
  drop_socket();
}

// Reads the socket while no request waits for an answer: messages that came unasked, and answers that come too late.
void Connection::read_notices() {
  const std::lock_guard lock(mutex_);
  whole_or_lost([&] {
    // While marud has not let us in again, the next message is its answer to the attach.
    for (int i = 0; i < kNoticesPerLook && attaching_again_ == 0; ++i) {
      pollfd poll{socket_.get(), POLLIN, 0};  // -1 is never ready
      if (::poll(&poll, 1, 0) <= 0 || (poll.revents & POLLIN) == 0) return;
      const auto packet = wire::receive_packet(socket_, 0);
      if (!packet) return drop_socket();
      const auto header = wire::decode_reply(packet->bytes);
      if (!header) continue;
      const auto& take = header->request_id == 0 ? notice_ : late_reply_;
      if (header->status == 0 && take) take(wire::Type(header->type), wire::payload_of(packet->bytes));
      was_answered(header->request_id);
    }
  });
}

Result<uint32_t> Connection::send(const Deadline& deadline, wire::Type type, std::span<const std::byte> payload, int fd,
                                  int second) {
  if (next_request_ == 0) ++next_request_;  // 0 stands for messages that come unasked
  const uint32_t id = next_request_++;
  const auto packet = wire::encode(type, id, 0, payload);
  if (type == wire::Type::kRent) {
    // When memory runs out, all ids may have to go into lost_, also the answered ids.
    lost_.reserve(lost_.size() + unanswered_.size() + in_hand_ + 1);
    unanswered_.push_back(id);
  }
  if (auto sent = wire::send_packet(socket_, packet, fd, deadline.left_ms(), second); !sent)
    return tl::unexpected(sent.error());
  return id;
}

Result<Reply> Connection::exchange(const Deadline& deadline, wire::Type type, std::span<const std::byte> payload) {
  const auto id = send(deadline, type, payload);
  if (!id) return tl::unexpected(id.error());
  return receive_reply(deadline, *id);
}

Result<Reply> Connection::attach() {
  const std::lock_guard lock(mutex_);
  auto reply = attach_locked(deadline());
  // marud takes a lane back that it gives later, since no client learns of it; and the lane was waited for long enough.
  if (!reply && reply.error().code == ETIMEDOUT) may_have_lane_ = false;
  return reply;
}

Result<Reply> Connection::attach_locked(const Deadline& deadline) {
  auto socket = wire::connect_to(target_.socket_path, target_.timeout_ms);
  if (!socket) return tl::unexpected(socket.error());
  socket_ = KeptDescriptor(std::move(*socket));
  wire::AttachRequest request{};
  std::memcpy(request.pool, target_.pool.data(), target_.pool.size());
  request.flags = target_.read_only ? wire::kAttachReadOnly : 0;
  may_have_lane_ = true;
  return exchange(deadline, wire::Type::kAttach, wire::bytes_of(request));
}

void Connection::remember(const wire::AttachReply& reply, const KeptDescriptor* device, const KeptDescriptor* control) {
  const std::lock_guard lock(mutex_);
  attached_ = reply;
  device_ = device;
  control_ = control;
  known_ = true;
}

bool Connection::is_lost() const {
  pollfd poll{socket_.get(), 0, 0};
  if (poll.fd < 0) return true;
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLHUP | POLLERR)) != 0;
}

// The watcher must not go on waiting for a number that may soon be another descriptor's.
void Connection::drop_socket() noexcept {
  socket_.reset();
  attaching_again_ = 0;
  lost_.insert(lost_.end(), unanswered_.begin(), unanswered_.end());  // there is room: send()
  unanswered_.clear();
  wake();
}

// The memory that proves which pool this client is attached to, and in *ret_control the second piece of it, or -1 each. None
// if the program has closed a part: marud does not accept a half.
int Connection::memory_to_hand_back(int* ret_control) const {
  *ret_control = -1;
  const int device = device_ ? device_->get() : -1, control = control_ ? control_->get() : -1;
  if (device < 0 || (control_ && control_->was_opened() && control < 0)) return -1;
  // A marud from before pools in memory were in two pieces drops a client that hands it two descriptors, and it may have a pool
  // on two devices.
  if (is_memory(control)) *ret_control = control;
  return device;
}

Result<void> Connection::begin_attach_again(const Deadline& deadline) {
  drop_socket();  // so that a failure shows as one, and not as a connection that has just ended
  const uint32_t left_ms = deadline.left_ms();
  if (left_ms == 0) return failure(ETIMEDOUT, "connect to " + target_.socket_path);
  auto socket = wire::connect_to(target_.socket_path, left_ms);
  if (!socket && socket.error().code == ENOENT) return failure(ECONNREFUSED, socket.error().doing);
  if (!socket) return tl::unexpected(socket.error());
  socket_ = KeptDescriptor(std::move(*socket));
  wire::AttachRequest request{};
  std::memcpy(request.pool, target_.pool.data(), target_.pool.size());
  int control = -1;
  const int device = memory_to_hand_back(&control);
  request.flags = (device >= 0 ? wire::kAttachHandsBack : 0) | (target_.read_only ? wire::kAttachReadOnly : 0);
  request.previous_lane = attached_.lane;
  request.previous_generation = attached_.lane_generation;
  std::memcpy(request.uuid, attached_.uuid, sizeof(request.uuid));
  const auto id = send(deadline, wire::Type::kAttach, wire::bytes_of(request), device, control);
  if (!id) {
    drop_socket();  // the next attempt starts afresh
    return tl::unexpected(id.error());
  }
  attaching_again_ = *id;
  return {};
}

// When marud's answer comes later than this waits, the next attempt waits for it again, and does not ask anew. Otherwise a
// client with less patience than a busy marud needs would never come back.
Result<void> Connection::reattach_locked(const Deadline& deadline) {
  if (stale_) return failure(ESTALE, "attach again: marud no longer has this lane");
  if (is_lost()) {
    if (auto begun = begin_attach_again(deadline); !begun) return begun;
  } else if (attaching_again_ == 0) {
    return {};
  }
  const auto reply = receive_reply(deadline, attaching_again_);
  if (!reply) {
    if (reply.error().code == ETIMEDOUT) return tl::unexpected(reply.error());
    if (reply.error().code == EIO) {  // the pool is fenced: this connection is for saying goodbye
      attaching_again_ = 0;
      if (fenced_) fenced_();
      return tl::unexpected(reply.error());
    }
    stale_ = reply.error().code == ESTALE;
    if (!stale_) drop_socket();
    attaching_again_ = 0;
    return tl::unexpected(reply.error());
  }
  attaching_again_ = 0;
  const auto again = wire::read_exactly<wire::AttachReply>(reply->payload);
  if (!again) {
    drop_socket();
    return failure(EPROTO, "read the answer to attaching again");
  }
  if (std::memcmp(again->uuid, attached_.uuid, sizeof(again->uuid)) != 0 || !again->lane_kept ||
      again->lane != attached_.lane || again->lane_generation != attached_.lane_generation) {
    stale_ = true;  // another pool, or this lane was taken for dead: nothing here may be used for writing any more
    drop_socket();
    return failure(ESTALE, "attach again: marud has another pool of this name, or gave this lane up");
  }
  attached_.epoch = again->epoch;
  if (!lost_.empty() && lost_answers_) lost_answers_(lost_);
  lost_.clear();
  return {};
}

Result<void> Connection::reattach() {
  const std::lock_guard lock(mutex_);
  return whole_or_lost([&] { return reattach_locked(deadline()); });
}

Result<Reply> Connection::request(wire::Type type, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  return whole_or_lost([&] { return request_locked(deadline(), type, payload); });
}

Result<Reply> Connection::request(wire::Type type, std::span<const std::byte> payload, uint32_t wait_ms) {
  const std::lock_guard lock(mutex_);
  return whole_or_lost([&] { return request_locked(Deadline(std::min(wait_ms, target_.timeout_ms)), type, payload); });
}

Result<Reply> Connection::request_locked(const Deadline& deadline, wire::Type type,
                                         std::span<const std::byte> payload) {
  for (int attempt = 0;; ++attempt) {
    if (auto connected = reattach_locked(deadline); !connected) {
      const int code = connected.error().code;
      return failure(code == ESTALE || code == ETIMEDOUT ? code : ENOTCONN, connected.error().doing);
    }
    auto reply = exchange(deadline, type, payload);
    if (reply) return reply;
    const int code = reply.error().code;
    const bool lost = code == EPIPE || code == ECONNRESET || code == ENOTCONN;
    if (!lost) return reply;
    drop_socket();
    if (attempt > 0) return failure(ENOTCONN, reply.error().doing);
  }
}

// A marud that was started anew, and that this client has not attached to yet, holds the lane for a living process: it is told,
// too. A marud that is not there finds out by itself when the process ends. The kernel closes the connections of a dead marud a
// little after its end, and until then they look alive: so this tries once more on another connection.
void Connection::detach_locked() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (stale_) return;
    const auto connected = known_ ? reattach_locked(deadline()) : Result<void>();
    // A marud that has fenced the pool says so, and keeps the connection for this.
    if (!connected && (connected.error().code != EIO || socket_.get() < 0)) return;
    const auto reply = exchange(deadline(), wire::Type::kDetach, {});
    if (reply || !known_) return;
    const int code = reply.error().code;
    if (code != EPIPE && code != ECONNRESET && code != ENOTCONN) return;
    drop_socket();
  }
}

// Without memory, and without waiting for marud's answer.
void Connection::detach_unanswered() noexcept {
  wire::MessageHeader goodbye{};
  goodbye.magic = wire::kMagic;
  goodbye.version = wire::kVersion;
  goodbye.type = uint16_t(wire::Type::kDetach);
  goodbye.request_id = next_request_ == 0 ? 1 : next_request_;
  (void)::send(socket_.get(), &goodbye, sizeof(goodbye), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::say_goodbye_locked() noexcept {
  if (!may_have_lane_) return;
  try {
    detach_locked();
  } catch (const std::bad_alloc&) {
    detach_unanswered();
  }
  socket_.reset();
}

void Connection::say_goodbye() noexcept {
  const std::lock_guard lock(mutex_);
  say_goodbye_locked();
}

void Connection::part() {
  const std::lock_guard lock(mutex_);
  say_goodbye_locked();  // marud waits for this, or for our end
  stale_ = true;
  device_ = control_ = nullptr;
}

Result<void> Connection::prepare_watching() {
  auto made = Wake::create();
  if (!made) return tl::unexpected(made.error());
  wake_ = std::move(*made);
  return {};
}

Result<void> Connection::start_watching() {
  // Signals are the program's; this thread takes none.
  struct NoSignals {
    NoSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } const no_signals;
  is_watching_.store(true, std::memory_order_relaxed);  // the thread sees all stores before its start
  try {
    watcher_ = std::thread([this] {
      watch();
      is_watching_.store(false, std::memory_order_relaxed);  // a hint to others
    });
  } catch (const std::system_error& error) {
    is_watching_.store(false, std::memory_order_relaxed);  // no other thread has seen it
    return failure(error.code().value(), "start the session thread");
  }
  return {};
}

void Connection::stop_watching() {
  if (!watcher_.joinable()) return;
  is_ending_.store(true, std::memory_order_seq_cst);  // before the wake, which may be the last
  wake();
  watcher_.join();
}

void Connection::abandon() {
  // Neither joined nor detached: the handle may by now stand for a thread that the child has started itself.
  new (&watcher_) std::thread;
  socket_.reset();
  wake_.reset();
}

// False: the thread is to end.
bool Connection::look(int* retry_ms) {
  wake_.forget_wakes();  // a change before this is seen below
  if (is_ending_.load(std::memory_order_seq_cst) || !wake_.is_whole()) return false;
  const int upkeep_ms = upkeep_ ? upkeep_() : -1;
  pollfd polls[2] = {{wake_.waiting_end(), POLLIN, 0}, {-1, POLLIN, 0}};
  bool lost;
  {
    const std::lock_guard lock(mutex_);
    polls[1].fd = stale_ ? -1 : socket_.get();
    lost = !stale_ && (polls[1].fd < 0 || attaching_again_ != 0);
  }
  const int wait_ms = lost ? std::max(*retry_ms, kRetryMsMin) : upkeep_ms;
  ::poll(polls, 2, wait_ms < 0 ? kLookAfterMs : std::min(wait_ms, kLookAfterMs));
  if (!wake_.is_whole()) return false;  // the poll may have been of a file of the program
  if (!lost && !polls[1].revents) return true;
  if (!lost && (polls[1].revents & (POLLHUP | POLLERR | POLLNVAL)) == 0) {
    read_notices();  // waits for a request under way: the message may have been its answer
    return true;
  }
  const auto connected = reattach();
  *retry_ms = connected ? 0 : std::clamp(*retry_ms * 2, kRetryMsMin, kRetryMsMax);
  return true;
}

// No caller above this thread could be told that there is no memory: it waits until there is some.
void Connection::watch() {
  for (int retry_ms = 0;;) {
    try {
      if (!look(&retry_ms)) return;
    } catch (const std::bad_alloc&) {
      pollfd woken{wake_.waiting_end(), POLLIN, 0};
      ::poll(&woken, 1, kNoMemoryMs);
    }
  }
}

}  // namespace maru::client
