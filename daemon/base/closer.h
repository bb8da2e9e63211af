// Closes descriptors that clients made, on threads of its own. The last close of some descriptors (a socket that lingers, a
// file on a file system that does not answer) lasts as long as the client wants. So that one user's closes do not delay the
// closes of the others, each user has a bounded number of threads, and its further descriptors wait for these. So that a few
// users together do not, either, the last threads are for users that have none yet.
//
// A user can make any number of connections that marud does not keep, and descriptors that lie unread in them are closed with
// them. So those are taken out first, and closed one by one, without a wait for the unsent bytes of a socket among them. So few
// descriptors wait here because of them. is_behind() bounds the descriptors that marud received before.
//
// The threads are not waited for: marud ends while some close, and the kernel finishes their closes then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace maru::daemon {

class Closer {
 public:
  static constexpr size_t kThreadsMax = 256, kThreadsPerAccount = 16;
  // Of an account's threads: for connections. Descriptors that lie unread in a connection may last long in any case. A user may
  // serve a file system itself, and not answer the close of its files. The descriptors that marud received do not wait for it.
  static constexpr size_t kConnectionsPerAccount = kThreadsPerAccount / 2;
  // Of all threads: for accounts that have nothing closing yet.
  static constexpr size_t kThreadsForFirst = 16;
  // Descriptors of one account that wait: a user with more may not bring further descriptors.
  static constexpr size_t kWaitingMax = 1024;

  Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer();

  // Never blocks, unless marud could not start a thread at all. `account`: the user on whose account it is (users.h).
  // Any thread.
  // kConnection: a connection on which nothing can come any more.
  enum class Kind : uint8_t { kAny, kConnection };
  void close(int fd, uint64_t account, Kind kind = Kind::kAny);
  bool is_behind(uint64_t account) const;
  // The number of connections among the waiting descriptors.
  size_t connections_waiting(uint64_t account) const;

 private:
  struct Work;
  std::shared_ptr<Work> work_;
};

}  // namespace maru::daemon
