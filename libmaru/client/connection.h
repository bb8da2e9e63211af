// The connection to marud: the session that says this client is alive, and the few requests that need an answer. When
// marud is gone everything that lives in shared memory goes on; requests fail until it is back.
//
// A request waits for timeout_ms in all, with all its steps; before that it waits for the requests of other threads.
//
// The program may close any descriptor of the process, also these (libmaru/base/kept_descriptor.h). The next request then makes
// another connection. The session thread ends when nothing can wake it any more, and the client goes on without it.
//
// Thread safety: any; one request at a time, others wait for it. A function that allocates may throw std::bad_alloc: by then
// the connection is given up, so that it is made again, and answers that were not read count as lost.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/kept_descriptor.h"
#include "libmaru/base/result.h"
#include "libmaru/client/wake.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "maru/format/wire.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace maru::client {

struct Reply {
  uint32_t request_id = 0;
  std::vector<std::byte> payload = {};
  FileDescriptor fd = {};
  FileDescriptor second = {};
};

class Connection {
 public:
  struct Target {
    std::string socket_path;
    std::string pool;
    uint32_t timeout_ms = 5000;
    bool read_only = false;
  };
  explicit Connection(Target target) : target_(std::move(target)) {}
  ~Connection() { stop_watching(); }
  const std::string& pool() const { return target_.pool; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The first attachment. The reply's descriptors are the pool's device, or devices.
  Result<Reply> attach();
  // The proof of a later attachment: the lane held before, and the descriptors to hand back, as they came with the reply.
  // `control` is none if only one came. Both stay the caller's until part(), or outlive this.
  void remember(const wire::AttachReply& reply, const KeptDescriptor* device, const KeptDescriptor* control);

  // Sends a request and waits for its reply. A lost connection is made again once, with the same lane. Errors: ENOTCONN no
  // marud there; ETIMEDOUT; ESTALE as from reattach(); the errno of marud's refusal.
  Result<Reply> request(wire::Type type, std::span<const std::byte> payload);
  // The same, and waits for `wait_ms` at most: after ETIMEDOUT its reply may still come late.
  Result<Reply> request(wire::Type type, std::span<const std::byte> payload, uint32_t wait_ms);
  // Connects again if the connection is lost. ECONNREFUSED: no marud there. ESTALE: marud has another pool of this name, or
  // gave the lane up.
  Result<void> reattach();
  // Tells marud that this is the end, if it is there and may have given a lane.
  void say_goodbye() noexcept;
  // Each answer to a request for memory is either taken; or it was not understood for want of memory, and counts as lost.
  void took_answer() { --in_hand_; }
  void lose_answer(uint32_t request_id);

  // Called with a successful reply that comes after its request was given up: marud has done what the reply says. Runs inside a
  // later request or in the session thread, and must make no request itself. To be set before the first request.
  using LateReply = std::function<void(wire::Type type, std::span<const std::byte> payload)>;
  void on_late_reply(LateReply late_reply) { late_reply_ = std::move(late_reply); }

  // Called with the ids of requests for memory whose answers will never come, once marud has let us in again on our lane. marud
  // does not work on them any more. As on_late_reply.
  using LostAnswers = std::function<void(std::span<const uint32_t> request_ids)>;
  void on_lost_answers(LostAnswers lost_answers) { lost_answers_ = std::move(lost_answers); }

  // Called with each message that marud sends unasked, by the session thread or inside a request of any thread, and as
  // on_late_reply. May be any bytes.
  using Notice = std::function<void(wire::Type type, std::span<const std::byte> payload)>;
  void on_notice(Notice notice) { notice_ = std::move(notice); }

  // Called by the session thread whenever it wakes and holds nothing; may make requests. Returns after how many milliseconds it
  // wants to be called again at the latest, or -1.
  using Upkeep = std::function<int()>;
  void on_upkeep(Upkeep upkeep) { upkeep_ = std::move(upkeep); }
  // Called when marud answers, to an attach after a loss of the connection, that it has fenced the pool.
  void on_fenced(std::function<void()> fenced) { fenced_ = std::move(fenced); }
  // Wakes the session thread, if there is one.
  const Wake& waker() const { return wake_; }
  void wake() { wake_.wake(); }
  // Whether the session thread is there, and can be woken.
  bool is_watched() const {
    return is_watching_.load(std::memory_order_relaxed) && wake_.is_whole();
  }  // it may end now
  // The attachment is over for good: marud is told if it is there, and nothing connects again.
  void part();

  // A thread that waits for the end of the connection and makes it again. So marud gets a pool back that only its clients still
  // hold. The thread also reads marud's unasked messages, which would otherwise wait for the next request.
  Result<void> prepare_watching();  // makes waker()
  Result<void> start_watching();
  void stop_watching();
  // In a child of fork(): closes its copies of the descriptors and forgets the thread, which only the parent has.
  void abandon();

 private:
  using Deadline = wire::Deadline;
  Deadline deadline() const { return Deadline(target_.timeout_ms); }
  // The request's id.
  Result<uint32_t> send(const Deadline& deadline, wire::Type type, std::span<const std::byte> payload, int fd = -1,
                        int second = -1);
  Result<Reply> exchange(const Deadline& deadline, wire::Type type, std::span<const std::byte> payload);
  Result<Reply> receive_reply(const Deadline& deadline, uint32_t request_id);
  Result<Reply> attach_locked(const Deadline& deadline);
  Result<Reply> request_locked(const Deadline& deadline, wire::Type type, std::span<const std::byte> payload);
  void read_notices();
  void was_answered(uint32_t request_id);
  void say_goodbye_locked() noexcept;
  void detach_locked();
  void detach_unanswered() noexcept;
  Result<void> reattach_locked(const Deadline& deadline);
  Result<void> begin_attach_again(const Deadline& deadline);
  int memory_to_hand_back(int* ret_control) const;
  bool is_lost() const;
  void drop_socket() noexcept;
  template <typename F>
  auto whole_or_lost(F&& conversation);
  void watch();
  bool look(int* retry_ms);

  Target target_;
  std::mutex mutex_;
  KeptDescriptor socket_;
  uint32_t next_request_ = 1;
  std::atomic<size_t> in_hand_ = 0;  // answers to requests for memory, neither taken nor lost yet
  bool may_have_lane_ = false;       // marud was asked for one and has not refused
  bool known_ = false;
  bool stale_ = false;
  uint32_t attaching_again_ = 0;  // the request that marud has not answered yet; 0: none
  // Requests for memory without an answer yet; and those whose connection ended before it came.
  std::vector<uint32_t> unanswered_, lost_;
  wire::AttachReply attached_{};
  const KeptDescriptor* device_ = nullptr;
  const KeptDescriptor* control_ = nullptr;
  LateReply late_reply_;
  LostAnswers lost_answers_;
  Notice notice_;
  Upkeep upkeep_;
  std::function<void()> fenced_;

  std::thread watcher_;
  Wake wake_;  // for the end, another socket, and wishes of the client
  std::atomic<bool> is_ending_{false};
  std::atomic<bool> is_watching_{false};
};

}  // namespace maru::client
