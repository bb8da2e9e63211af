// A bounded queue from the threads that follow pools to the thread that publishes. A following thread waits while the queue is
// full. Meanwhile its ring may be overrun, which the follower notices and answers with a new snapshot. So the queue itself
// drops nothing.
#pragma once

#include "libmaru/base/file_descriptor.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace maru::eventd {

template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t most) : most_(most), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // Waits for room. False: the mailbox is closed.
  bool put(std::vector<T>&& letters) {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] { return is_closed_ || letters_.size() < most_; });
    if (is_closed_) return false;
    if (letters_.empty())
      letters_ = std::move(letters);
    else
      letters_.insert(letters_.end(), std::make_move_iterator(letters.begin()), std::make_move_iterator(letters.end()));
    lock.unlock();
    wake();
    return true;
  }

  // All that there is, without waiting.
  std::vector<T> take() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    has_room_.notify_all();
    return std::exchange(letters_, {});
  }

  // Lets fd() become readable though nothing has come.
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    has_room_.notify_all();
    wake();
  }

  int fd() const { return wake_.get(); }  // readable while there is something to take, or was
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return letters_.size();
  }

 private:
  const size_t most_;
  FileDescriptor wake_;
  mutable std::mutex mutex_;
  std::condition_variable has_room_;
  std::vector<T> letters_;
  bool is_closed_ = false;
};

}  // namespace maru::eventd
