// Transfers between memory and the log: reads by threads, writes by io_uring, and callbacks when they are done.
//
// Why reads are no requests of io_uring: the kernel lets a process end while such requests are under way, and then a device may
// still write into memory that they named. That memory is a page of the pool, and marud gives it to another client once this
// process is gone. A thread that reads with O_DIRECT waits inside the kernel, where no signal reaches it, so the process is not
// gone before the device has answered. A late write only reads memory: its record then does not verify, which is a miss.
//
// Reads go before writes: at most `write_bytes` of writes are under way, and `write_bytes_beside_reads` while reads wait, run,
// or have run a moment ago. A user that waits for one read often wants the next one: the device would have begun with many
// writes in between.
//
// Threads: any thread starts transfers. Callbacks come from threads of this class, with none of its locks held.
#pragma once

#include "libmaru/base/result.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <liburing.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/uio.h>
#include <thread>
#include <vector>

namespace maru::tierd {

struct Transfer {
  std::array<iovec, 3> pieces = {};  // in this order; pieces of length 0 are left out
  uint64_t offset = 0;
  bool is_durable = false;  // of a write: on the device when it is done
  // 0 when all bytes were transferred, or -errno; -EIO: the file ended early.
  std::function<void(int result)> done;

  uint64_t bytes() const { return pieces[0].iov_len + pieces[1].iov_len + pieces[2].iov_len; }
};

struct TransferLimits {
  uint32_t readers = 16;
  uint64_t write_bytes = 64u << 20;
  uint64_t write_bytes_beside_reads = 2u << 20;
  std::chrono::milliseconds reads_moment{10};  // after a read, in which it counts as running
  bool use_ring = true;
};

class Transfers {
 public:
  Transfers(int file, const TransferLimits& limits);
  // Waits for all transfers under way; waiting transfers end with -ECANCELED.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  void read(Transfer transfer);
  void write(Transfer transfer);
  // Why writes do without io_uring; empty: they do not.
  const std::string& ring_trouble() const { return ring_trouble_; }

 private:
  struct Write;

  void run_reader();
  void run_ring();
  // Moves all bytes, one call after the other; 0 or -errno.
  int move(Transfer& transfer, bool is_write) const;
  bool may_write_more(const std::unique_lock<std::mutex>&, uint64_t bytes) const;
  bool has_reads() const;
  void start_writes(std::unique_lock<std::mutex>& lock);
  bool submit_write(Write& write);
  void finish_write(std::unique_ptr<Write> write, int result);

  const int file_;
  const TransferLimits limits_;
  std::string ring_trouble_;
  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<Transfer> reads_, writes_;
  uint32_t reads_running_ = 0, writes_in_ring_ = 0;
  uint64_t write_bytes_running_ = 0;
  std::chrono::steady_clock::time_point last_read_ = {};  // when one ended
  bool is_stopping_ = false;
  bool has_ring_ = false;
  io_uring ring_ = {};
  std::thread ring_thread_;
  std::vector<std::thread> readers_;
};

}  // namespace maru::tierd
