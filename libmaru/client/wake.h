// Wakes the session thread of a client, which waits for marud's messages in poll(2).
//
// A pair of sockets, and not an eventfd. A socket has an inode of its own, so that the library knows when the program has
// closed its number (libmaru/base/kept_descriptor.h), and send(2) writes into no file. When the program closes the end that
// wakes, the other end hangs up: the thread learns at once that nothing can wake it any more.
//
// Thread safety: wake() any, also in a signal handler; the rest is the session thread's.
#pragma once

#include "libmaru/base/kept_descriptor.h"
#include "libmaru/base/result.h"

#include <cerrno>
#include <sys/socket.h>

namespace maru::client {

class Wake {
 public:
  static Result<Wake> create() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
      return failure(errno, "make sockets for the session thread");
    FileDescriptor waiting(ends[0]), waking(ends[1]);
    if (!waiting.is_open() || !waking.is_open()) return failure(EMFILE, "make sockets for the session thread");
    Wake made;
    made.waiting_ = KeptDescriptor(std::move(waiting));
    made.waking_ = KeptDescriptor(std::move(waking));
    return made;
  }

  bool was_made() const { return waking_.was_opened(); }
  // Whether the program has left both ends alone.
  bool is_whole() const { return waiting_.get() >= 0 && waking_.get() >= 0; }
  // Leaves errno alone.
  void wake() const {
    const int code = errno;
    if (const int fd = waking_.get(); fd >= 0)
      (void)::send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);  // full: it is awake
    errno = code;
  }
  // To be polled for reading, which a wake() ends; -1 if the program has closed it.
  int waiting_end() const { return waiting_.get(); }
  // Before the thread looks: a wake() from here on wakes it again.
  void forget_wakes() const {
    char bytes[64];
    for (int fd; (fd = waiting_.get()) >= 0;)  // ends: bytes that come meanwhile wake the next call
      if (::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) < ssize_t(sizeof(bytes))) return;
  }
  void reset() {
    waiting_.reset();
    waking_.reset();
  }

 private:
  KeptDescriptor waiting_, waking_;
};

}  // namespace maru::client
