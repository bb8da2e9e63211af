#include "daemon/tierd/tiers/file/transfers.h"

#include "daemon/tierd/tiers/thread_signals.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <utility>

namespace maru::tierd {

namespace {

constexpr unsigned kRingEntries = 256;
constexpr std::chrono::milliseconds kSubmitPause{1000};  // after the kernel had no memory for a write

// Drops so many bytes from the beginning of the pieces.
void advance(std::array<iovec, 3>& pieces, uint64_t bytes) {
  for (iovec& piece : pieces) {
    const uint64_t here = std::min<uint64_t>(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + here;
    piece.iov_len -= here;
    bytes -= here;
  }
}

// The pieces that are not empty, at the front.
int pack(const std::array<iovec, 3>& pieces, std::array<iovec, 3>& ret_packed) {
  int n = 0;
  for (const iovec& piece : pieces)
    if (piece.iov_len > 0) ret_packed[size_t(n++)] = piece;
  return n;
}

}  // namespace

struct Transfers::Write {
  Transfer transfer;
  std::array<iovec, 3> packed = {};
  uint64_t bytes = 0;  // when it began
};

Transfers::Transfers(int file, const TransferLimits& limits) : file_(file), limits_(limits) {
  if (limits.use_ring) {
    const int result = io_uring_queue_init(kRingEntries, &ring_, 0);
    has_ring_ = result == 0;
    if (!has_ring_) ring_trouble_ = "io_uring is not to be had (" + std::generic_category().message(-result) + ")";
  } else {
    ring_trouble_ = "io_uring is switched off";
  }
  if (has_ring_) ring_thread_ = std::thread([this] { run_ring(); });
  for (uint32_t i = 0; i < limits.readers; ++i) readers_.emplace_back([this] { run_reader(); });
}

Transfers::~Transfers() {
  std::deque<Transfer> given_up;
  {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    for (std::deque<Transfer>* const waiting : {&reads_, &writes_}) {
      std::move(waiting->begin(), waiting->end(), std::back_inserter(given_up));
      waiting->clear();
    }
    idle_.wait(lock, [this] { return writes_in_ring_ == 0; });
    if (has_ring_) {
      io_uring_sqe* const last = io_uring_get_sqe(&ring_);
      io_uring_prep_nop(last);
      io_uring_sqe_set_data(last, nullptr);  // by which the thread sees that this is the end
      io_uring_submit(&ring_);
    }
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
  if (ring_thread_.joinable()) ring_thread_.join();
  if (has_ring_) io_uring_queue_exit(&ring_);
  for (Transfer& transfer : given_up) transfer.done(-ECANCELED);
}

void Transfers::read(Transfer transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_stopping_) {
      reads_.push_back(std::move(transfer));
      transfer.done = nullptr;
    }
  }
  if (transfer.done) return transfer.done(-ECANCELED);
  work_.notify_one();
}

void Transfers::write(Transfer transfer) {
  std::unique_lock lock(mutex_);
  if (is_stopping_) {
    lock.unlock();
    return transfer.done(-ECANCELED);
  }
  writes_.push_back(std::move(transfer));
  start_writes(lock);
}

bool Transfers::may_write_more(const std::unique_lock<std::mutex>&, uint64_t bytes) const {
  if (write_bytes_running_ == 0) return true;
  return write_bytes_running_ + bytes <= (has_reads() ? limits_.write_bytes_beside_reads : limits_.write_bytes);
}

// Each write that ends looks again, so writes need no other sign that a moment is over.
bool Transfers::has_reads() const {
  return reads_running_ > 0 || !reads_.empty() || std::chrono::steady_clock::now() - last_read_ < limits_.reads_moment;
}

// As many as may be under way. Without a ring the readers write, too.
void Transfers::start_writes(std::unique_lock<std::mutex>& lock) {
  if (!has_ring_) return work_.notify_one();
  bool has_new = false;
  while (!writes_.empty() && writes_in_ring_ < kRingEntries && may_write_more(lock, writes_.front().bytes())) {
    auto write = std::make_unique<Write>();
    write->transfer = std::move(writes_.front());
    write->bytes = write->transfer.bytes();
    writes_.pop_front();
    write_bytes_running_ += write->bytes;
    ++writes_in_ring_;
    submit_write(*write.release());  // the ring owns it until its completion
    has_new = true;
  }
  if (has_new) io_uring_submit(&ring_);
}

// With the lock held: submissions come from any thread.
bool Transfers::submit_write(Write& write) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);  // there is one: no more are under way than it has
  const int n = pack(write.transfer.pieces, write.packed);
  io_uring_prep_writev(entry, file_, write.packed.data(), unsigned(n), write.transfer.offset);
  entry->rw_flags = write.transfer.is_durable ? RWF_DSYNC : 0;
  io_uring_sqe_set_data(entry, &write);
  return true;
}

void Transfers::run_ring() {
  block_signals();
  for (;;) {
    io_uring_cqe* completion = nullptr;
    if (io_uring_peek_cqe(&ring_, &completion) != 0) {
      pollfd ready = {ring_.ring_fd, POLLIN, 0};
      if (::poll(&ready, 1, int(kSubmitPause.count())) > 0) continue;
      // A submission that failed leaves its writes in the ring. The next one takes them along, and may never come.
      const std::lock_guard lock(mutex_);
      if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
      continue;
    }
    std::unique_ptr<Write> write(static_cast<Write*>(io_uring_cqe_get_data(completion)));
    const int result = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (!write) return;  // the end
    // The submitter wrote it with the lock held. The kernel has passed it on, which only the kernel knows to be an order.
    {
      const std::lock_guard ordered(mutex_);
    }
    if (result == -EINTR || result == -EAGAIN || (result > 0 && uint64_t(result) < write->transfer.bytes())) {
      // A part, or nothing yet: the rest goes again.
      if (result > 0) {
        advance(write->transfer.pieces, uint64_t(result));
        write->transfer.offset += uint64_t(result);
      }
      const std::lock_guard lock(mutex_);
      submit_write(*write.release());
      io_uring_submit(&ring_);
      continue;
    }
    finish_write(std::move(write), result > 0 ? 0 : result == 0 ? -EIO : result);
  }
}

void Transfers::finish_write(std::unique_ptr<Write> write, int result) {
  // First the callback: when the last write is seen to be done, the owner may free its memory.
  write->transfer.done(result);
  std::unique_lock lock(mutex_);
  write_bytes_running_ -= write->bytes;
  --writes_in_ring_;
  if (!is_stopping_) start_writes(lock);
  if (writes_in_ring_ == 0) idle_.notify_all();
}

int Transfers::move(Transfer& transfer, bool is_write) const {
  while (transfer.bytes() > 0) {
    std::array<iovec, 3> packed = {};
    const int n = pack(transfer.pieces, packed);
    const off_t offset = off_t(transfer.offset);
    const ssize_t moved = is_write ? ::pwritev2(file_, packed.data(), n, offset, transfer.is_durable ? RWF_DSYNC : 0)
                                   : ::preadv(file_, packed.data(), n, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? -errno : -EIO;
    advance(transfer.pieces, uint64_t(moved));
    transfer.offset += uint64_t(moved);
  }
  return 0;
}

void Transfers::run_reader() {
  block_signals();
  std::unique_lock lock(mutex_);
  const auto has_write = [&] {
    return !has_ring_ && !writes_.empty() && may_write_more(lock, writes_.front().bytes());
  };
  for (;;) {
    work_.wait(lock, [&] { return is_stopping_ || !reads_.empty() || has_write(); });
    if (is_stopping_) return;
    const bool is_write = reads_.empty();
    std::deque<Transfer>& queue = is_write ? writes_ : reads_;
    Transfer transfer = std::move(queue.front());
    queue.pop_front();
    const uint64_t bytes = transfer.bytes();
    is_write ? void(write_bytes_running_ += bytes) : void(++reads_running_);
    lock.unlock();
    transfer.done(move(transfer, is_write));
    transfer.done = nullptr;  // before the lock: its captures may be large
    lock.lock();
    if (is_write) {
      write_bytes_running_ -= bytes;
    } else {
      --reads_running_;
      last_read_ = std::chrono::steady_clock::now();
    }
    if (!writes_.empty()) start_writes(lock);
  }
}

}  // namespace maru::tierd
