#include "daemon/server/event_loop.h"

#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/system/io_uring_denial.h"

#include <cerrno>
#include <deque>
#include <liburing.h>
#include <poll.h>
#include <string>
#include <sys/resource.h>

namespace maru::daemon {
namespace {

constexpr unsigned kSubmissionEntries = 1024;
constexpr unsigned kCompletionEntries = EventLoop::kEventsMax;
constexpr uint64_t kRetryMs = 10;  // while the kernel does not take an operation
constexpr uint64_t kIdMask = (1ull << 56) - 1;

// For a process without CAP_IPC_LOCK the kernel counts the memory of rings as locked memory of its user.
std::string why_no_ring_memory() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return ": found a limit of " + size_text(limit.rlim_cur) +
         " for all locked memory of this user (RLIMIT_MEMLOCK), expected 8 MiB or more: raise it with \"ulimit -l "
         "8192\" or " +
         "LimitMEMLOCK= of the service, or give marud CAP_IPC_LOCK";
}

uint64_t token(EventKind kind, uint64_t id) { return uint64_t(kind) << 56 | (id & kIdMask); }

}  // namespace

struct EventLoop::Ring {
  io_uring uring = {};
  bool is_open = false;

  ~Ring() {
    if (is_open) io_uring_queue_exit(&uring);
  }

  bool has_more() const { return (IO_URING_READ_ONCE(*uring.sq.kflags) & IORING_SQ_TASKRUN) != 0; }

  // Never null, and never blocks: an operation that the kernel does not take now, because it lacks memory or room for
  // completions, waits here until some have been read.
  io_uring_sqe* next_entry() {
    if (hand_over())
      if (io_uring_sqe* entry = io_uring_get_sqe(&uring)) return entry;
    return &waiting.emplace_back();
  }

  // Waiting operations go into the queue, in their order, as far as there is room. Returns whether none waits any more.
  bool hand_over() {
    if (io_uring_sq_space_left(&uring) == 0) io_uring_submit(&uring);
    while (!waiting.empty()) {
      io_uring_sqe* entry = io_uring_get_sqe(&uring);
      if (!entry) return false;
      *entry = waiting.front();
      waiting.pop_front();
      if (io_uring_sq_space_left(&uring) == 0) io_uring_submit(&uring);
    }
    return true;
  }

  std::deque<io_uring_sqe> waiting;
};

EventLoop::EventLoop(std::unique_ptr<Ring> ring) : ring_(std::move(ring)) { events_.reserve(kEventsMax); }
EventLoop::~EventLoop() = default;

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  // Best first: with deferred task work completions are made while this thread waits, and interrupt nothing. Linux 6.1
  // has both; a flag that the kernel refuses is left out.
  constexpr unsigned kModes[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
                                 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};
  auto ring = std::make_unique<Ring>();
  int code = 0;
  for (unsigned mode : kModes) {
    io_uring_params parameters = {};
    parameters.flags = mode | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    parameters.cq_entries = kCompletionEntries;
    code = -io_uring_queue_init_params(kSubmissionEntries, &ring->uring, &parameters);
    if (code == 0) {
      ring->is_open = true;
      if ((parameters.features & IORING_FEAT_NODROP) == 0 || (parameters.features & IORING_FEAT_EXT_ARG) == 0)
        return failure(ENOSYS, "use io_uring of this kernel: Linux 5.19 or newer is needed");
      log_debug("io_uring is ready (setup flags {:#x}, features {:#x})", mode, unsigned(parameters.features));
      break;
    }
    if (code != EINVAL) break;
  }
  if (const auto denial = io_uring_denial(code, read_io_uring_settings()))
    return failure(code,
                   "create an io_uring (found " + denial->found + "; expected to be allowed: " + denial->advice + ")");
  if (code == ENOMEM) return failure(code, "create an io_uring" + why_no_ring_memory());
  if (code != 0) return failure(code, "create an io_uring");

  std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(io_uring_get_probe_ring(&ring->uring),
                                                                        io_uring_free_probe);
  for (int operation : {IORING_OP_ACCEPT, IORING_OP_SENDMSG, IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL})
    if (!probe || !io_uring_opcode_supported(probe.get(), operation))
      return failure(ENOSYS, "use io_uring: this kernel lacks operation " + std::to_string(operation));
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(ring)));
}

void EventLoop::accept(int listener) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_accept(entry, listener, nullptr, nullptr, SOCK_CLOEXEC);
  io_uring_sqe_set_data64(entry, token(EventKind::kAccept, 0));
}

void EventLoop::cancel_accepts() {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_cancel64(entry, token(EventKind::kAccept, 0), IORING_ASYNC_CANCEL_ALL);
  io_uring_sqe_set_data64(entry, token(EventKind::kNone, 0));
}

void EventLoop::watch_packets(uint64_t id, int fd) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_poll_add(entry, fd, POLLIN);  // io_uring says POLLHUP and POLLRDHUP besides, unasked
  io_uring_sqe_set_data64(entry, token(EventKind::kPacket, id));
}

void EventLoop::send(uint64_t id, int fd, msghdr* message) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_sendmsg(entry, fd, message, MSG_NOSIGNAL);
  io_uring_sqe_set_data64(entry, token(EventKind::kSend, id));
}

void EventLoop::watch_process(uint64_t id, int pidfd) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_poll_add(entry, pidfd, POLLIN);
  io_uring_sqe_set_data64(entry, token(EventKind::kProcess, id));
}

void EventLoop::watch_signals(int fd) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_poll_add(entry, fd, POLLIN);
  io_uring_sqe_set_data64(entry, token(EventKind::kSignal, 0));
}

void EventLoop::watch_http(int fd) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_poll_add(entry, fd, POLLIN);
  io_uring_sqe_set_data64(entry, token(EventKind::kHttp, 0));
}

void EventLoop::watch_files(uint64_t id, int fd) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_poll_add(entry, fd, POLLIN);
  io_uring_sqe_set_data64(entry, token(EventKind::kFiles, id));
}

void EventLoop::cancel(EventKind kind, uint64_t id) {
  io_uring_sqe* entry = ring_->next_entry();
  io_uring_prep_cancel64(entry, token(kind, id), 0);
  io_uring_sqe_set_data64(entry, token(EventKind::kNone, 0));
}

Result<const std::vector<Event>*> EventLoop::wait(uint64_t timeout_ms) {
  events_.clear();
  io_uring_cqe* first = nullptr;
  __kernel_timespec timeout = {};
  timeout.tv_sec = int64_t(timeout_ms / 1000);
  timeout.tv_nsec = int64_t(timeout_ms % 1000) * 1'000'000;
  if (!ring_->hand_over() && timeout_ms > kRetryMs) timeout.tv_sec = 0, timeout.tv_nsec = kRetryMs * 1'000'000;
  const int waited = io_uring_submit_and_wait_timeout(&ring_->uring, &first, 1, &timeout, nullptr);
  if (waited < 0 && waited != -ETIME && waited != -EINTR && waited != -EAGAIN && waited != -EBUSY)
    return failure(-waited, "wait for events");
  take_completions();
  // Newer kernels complete a few operations at a time and say that there are more. The next user is chosen among all.
  // (They say so when there is none, too, until the next one comes: Linux 6.18.)
  while (events_.size() < kEventsMax && ring_->has_more() && io_uring_get_events(&ring_->uring) >= 0)
    if (take_completions() == 0) break;
  return &events_;
}

unsigned EventLoop::take_completions() {
  unsigned head = 0, seen = 0;
  io_uring_cqe* completion = nullptr;
  io_uring_for_each_cqe(&ring_->uring, head, completion) {
    if (events_.size() == kEventsMax) break;
    ++seen;
    const EventKind kind = EventKind(completion->user_data >> 56);
    if (kind == EventKind::kNone) continue;
    events_.push_back({kind, completion->user_data & kIdMask, completion->res});
  }
  io_uring_cq_advance(&ring_->uring, seen);
  return seen;
}

}  // namespace maru::daemon
