#include "daemon/base/log_queue.h"

#include "daemon/base/thread_priority.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <exception>
#include <mutex>
#include <optional>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include <utility>

namespace maru::daemon {
namespace {

constexpr size_t kStackBytes = 128u << 10;
// A pipe takes so much in one piece (PIPE_BUF), and mixes it with no other process's lines.
constexpr size_t kChunkBytes = 4096;
constexpr std::chrono::seconds kRefusedPause(1);

// How much of it was written; all of it, or errno says why not.
size_t write_to(int fd, std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote > 0) {
      done += size_t(wrote);
    } else if (wrote < 0 && errno == EAGAIN) {
      // Another process that shares the descriptor has made it non-blocking.
      pollfd entry = {fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (wrote == 0 || errno != EINTR) {
      return done;
    }
  }
  return text.size();
}

}  // namespace

struct LogQueue::Work : std::enable_shared_from_this<LogQueue::Work> {
  Work(int to, TellDropped tell) : fd(to), tell_dropped(std::move(tell)) {}

  const int fd;
  const TellDropped tell_dropped;
  std::atomic<uint64_t> dropped{0};
  std::atomic<size_t> unwritten{0};  // bytes in the ring and in the thread's hand; changed with the mutex
  std::atomic<bool> is_refused{false};

  std::mutex mutex;
  std::condition_variable has_more, has_less;
  bool has_thread = false;
  bool is_over = false;
  uint64_t untold = 0;  // lines dropped after those in the ring; the ring takes no line while there are some
  size_t first = 0, used = 0;
  std::array<char, kBytes> ring;

  // With the mutex.
  bool is_all_written() const { return unwritten.load(std::memory_order_relaxed) == 0 && untold == 0; }

  // With the mutex. The thread takes no signal: marud reads its signals from a descriptor. Where a terminal or a pipe would
  // send the writer a signal, the write fails instead.
  void start_thread() {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return;
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    auto* owned = new std::shared_ptr<Work>(shared_from_this());
    const auto body = [](void* argument) -> void* {
      ::pthread_setname_np(::pthread_self(), "marud-log");
      give_up_priority();
      const std::unique_ptr<std::shared_ptr<Work>> mine(static_cast<std::shared_ptr<Work>*>(argument));
      (*mine)->run();
      return nullptr;
    };
    pthread_t thread;
    has_thread = ::pthread_create(&thread, &attributes, body, owned) == 0;
    if (!has_thread) delete owned;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ::pthread_attr_destroy(&attributes);
  }

  // With the mutex.
  void add(std::string_view text) {
    const size_t at = (first + used) % kBytes, to_end = std::min(text.size(), kBytes - at);
    std::copy_n(text.data(), to_end, ring.data() + at);
    std::copy_n(text.data() + to_end, text.size() - to_end, ring.data());
    used += text.size();
    unwritten.fetch_add(text.size(), std::memory_order_relaxed);
    has_more.notify_one();
  }

  // With the mutex: whole lines where they fit.
  std::string_view take(std::array<char, kChunkBytes>& chunk) {
    size_t bytes = std::min(used, kChunkBytes);
    for (size_t i = 0; i < bytes; ++i) chunk[i] = ring[(first + i) % kBytes];
    const size_t end = std::string_view(chunk.data(), bytes).rfind('\n');
    if (end != std::string_view::npos) bytes = end + 1;
    first = (first + bytes) % kBytes;
    used -= bytes;
    return {chunk.data(), bytes};
  }

  // With the mutex, which is free while this writes. Ends early only when the queue is over.
  void write_out(std::unique_lock<std::mutex>& lock, std::string_view text) {
    while (!text.empty()) {
      lock.unlock();
      const size_t wrote = write_to(fd, text);
      lock.lock();
      unwritten.fetch_sub(wrote, std::memory_order_release);
      text.remove_prefix(wrote);
      is_refused.store(!text.empty(), std::memory_order_relaxed);
      has_less.notify_all();
      if (text.empty()) return;
      has_more.wait_for(lock, kRefusedPause, [this] { return is_over; });
      if (is_over) return;
    }
  }

  void run() {
    std::array<char, kChunkBytes> chunk;
    std::unique_lock lock(mutex);
    while (true) {
      has_more.wait(lock, [this] { return is_over || used > 0 || untold > 0; });
      if (used > 0) {
        write_out(lock, take(chunk));
      } else if (untold > 0) {
        const uint64_t lines = std::exchange(untold, 0);  // later lines are queued again, behind the word of these
        unwritten.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        std::string word;
        try {
          word = tell_dropped(lines);
        } catch (const std::exception&) {  // no memory for it: the count has them
        }
        lock.lock();
        unwritten.fetch_add(word.size(), std::memory_order_relaxed);
        unwritten.fetch_sub(1, std::memory_order_relaxed);
        write_out(lock, word);
      }
      has_less.notify_all();
      if (is_over && (used == 0 || is_refused.load(std::memory_order_relaxed))) return;
    }
  }
};

LogQueue::LogQueue(int fd, TellDropped tell_dropped) : work_(std::make_shared<Work>(fd, std::move(tell_dropped))) {
  const std::lock_guard lock(work_->mutex);
  work_->start_thread();
}

LogQueue::~LogQueue() {
  const std::lock_guard lock(work_->mutex);
  work_->is_over = true;
  work_->has_more.notify_one();
}

void LogQueue::put(std::string_view line) {
  std::unique_lock lock(work_->mutex);
  if (!work_->has_thread) work_->start_thread();
  if (!work_->has_thread) {
    lock.unlock();
    write_to(work_->fd, line);
  } else if (work_->untold > 0 || line.size() > kBytes - work_->used) {
    work_->dropped.fetch_add(1, std::memory_order_relaxed);
    ++work_->untold;
  } else {
    work_->add(line);
  }
}

uint64_t LogQueue::dropped_lines() const { return work_->dropped.load(std::memory_order_relaxed); }

bool LogQueue::flush(std::chrono::milliseconds longest) {
  std::unique_lock lock(work_->mutex);
  work_->has_less.wait_for(
      lock, longest, [this] { return work_->is_all_written() || work_->is_refused.load(std::memory_order_relaxed); });
  return work_->is_all_written();
}

void LogQueue::await_from_signal_handler(std::chrono::milliseconds longest) const {
  for (int64_t waited = 0; waited < longest.count(); ++waited) {
    if (work_->unwritten.load(std::memory_order_acquire) == 0) return;
    if (work_->is_refused.load(std::memory_order_relaxed)) return;
    const timespec millisecond = {0, 1'000'000};
    ::nanosleep(&millisecond, nullptr);
  }
}

}  // namespace maru::daemon
