// Closes what clients made, on threads of its own: the last close of some descriptors (a socket that lingers, a file of a
// file system that does not answer) lasts as long as the client wants it to. So that one user's do not keep those of the
// others waiting, each has so many of the threads at most, and what it brings beyond that waits for its own. And so that a
// few users together do not: the last of the threads are for those that have none yet.
//
// Connections that marud does not keep are as many as a user likes to make, and descriptors that lie unread in them are closed
// with them. So those are taken out first, and closed one by one without waiting for what a socket of them still has to send:
// what waits here because of them stays little. What marud received before is bounded by who is behind.
//
// The threads are not waited for: marud ends while some close, and what they are at the kernel closes then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace maru::daemon {

class Closer {
 public:
  static constexpr size_t kThreadsMax = 256, kThreadsPerAccount = 16;
  // Of an account's: for connections. What lies unread in one may last whatever is done here: the close of a file of a file
  // system that does not answer, which the user serves itself. Its descriptors that marud received do not wait for that.
  static constexpr size_t kConnectionsPerAccount = kThreadsPerAccount / 2;
  // Of them all, for accounts that have nothing closing yet.
  static constexpr size_t kThreadsForFirst = 16;
  // Descriptors of one account that wait: a user with more may not bring others.
  static constexpr size_t kWaitingMax = 1024;

  Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer();

  // Never blocks, unless marud could not start a thread at all. `account`: the user on whose account it is (users.h).
  // Any thread.
  // A connection is one that nothing can come on any more.
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
