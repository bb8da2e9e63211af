// Descriptors whose close lasts: sockets that linger, with bytes that nobody reads.
#include "daemon/base/closer.h"

#include "libmaru/base/file_descriptor.h"
#include "libmaru/wire/passed_descriptors.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <iterator>
#include <netinet/in.h>
#include <new>
#include <poll.h>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {
std::atomic<size_t> fails_of = 0;  // the next allocation of so many bytes by a thread of a closer fails
thread_local bool is_of_a_closer = true;
}  // namespace

void* operator new(size_t bytes) {
  size_t wanted = bytes;
  if (is_of_a_closer && bytes != 0 && fails_of.compare_exchange_strong(wanted, 0)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace maru::daemon {
namespace {

class Lingering {
 public:
  Lingering() {
    FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    const int small = 4096;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    if (::bind(listener.get(), any, bytes) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), any, &bytes) != 0)
      throw std::runtime_error("cannot listen");
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    if (::connect(socket.get(), any, bytes) != 0) throw std::runtime_error("cannot connect");
    reader_.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> text(1 << 16);
    while (::send(socket.get(), text.data(), text.size(), MSG_DONTWAIT) > 0) continue;
    const linger wish = {1, 3600};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &wish, sizeof(wish));
    writer_ = socket.release();
  }
  int writer() const { return writer_; }  // whoever closes it waits until the reader is closed

 private:
  FileDescriptor reader_;
  int writer_ = -1;
};

class Pipe {
 public:
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    reader_.reset(ends[0]);
    writer = ends[1];
  }
  bool is_closed() const {
    pollfd entry = {reader_.get(), 0, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
  }
  int writer;

 private:
  FileDescriptor reader_;
};

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return size_t(std::distance(begin(tasks), end(tasks)));
}

// The first one, so that no other closer's threads are there.
TEST(Closer, ItsEndWaitsForNothingAndItsThreadsEnd) {
  std::thread([] {}).join();  // the thread sanitizer has one of its own as soon as there is a second
  const size_t before = threads();
  std::vector<Lingering> sockets(Closer::kThreadsPerAccount);
  Pipe idle, waiting;
  {
    Closer closer;
    for (const Lingering& socket : sockets) closer.close(socket.writer(), 1000);
    closer.close(idle.writer, 1001);
    EXPECT_TRUE(test::wait_until([&] { return idle.is_closed(); }));
    closer.close(waiting.writer, 1000);
    EXPECT_GT(threads(), before);
  }
  EXPECT_FALSE(waiting.is_closed()) << "what waits the kernel closes at the end of marud";
  sockets.clear();
  EXPECT_TRUE(test::wait_until([&] { return threads() <= before; }));
  ::close(waiting.writer);
}

TEST(Closer, WhatOneUserLeavesOpenKeepsNoOtherWaiting) {
  std::vector<Lingering> sockets(Closer::kThreadsMax + 44);
  Pipe others, own;
  Closer closer;
  for (const Lingering& socket : sockets) closer.close(socket.writer(), 1000);
  closer.close(others.writer, 1001);
  EXPECT_TRUE(test::wait_until([&] { return others.is_closed(); }));
  closer.close(own.writer, 1000);
  const auto open = [&] {
    return std::count_if(sockets.begin(), sockets.end(), [](const Lingering& one) { return is_open(one.writer()); });
  };
  EXPECT_TRUE(test::wait_until([&] { return open() <= std::ptrdiff_t(sockets.size() - Closer::kThreadsPerAccount); }));
  EXPECT_EQ(open(), std::ptrdiff_t(sockets.size() - Closer::kThreadsPerAccount)) << "the others wait for these";
  EXPECT_FALSE(own.is_closed());
  sockets.clear();  // nobody reads them any more, so nothing lingers
  EXPECT_TRUE(test::wait_until([&] { return own.is_closed(); }));
}

TEST(Closer, WhatManyUsersLeaveOpenKeepsNoOtherWaiting) {
  constexpr size_t kUsers = Closer::kThreadsMax / Closer::kThreadsPerAccount;
  std::vector<Lingering> sockets(kUsers * Closer::kThreadsPerAccount);
  Pipe others;
  Closer closer;
  for (size_t i = 0; i < sockets.size(); ++i) closer.close(sockets[i].writer(), 1000 + i % kUsers);
  closer.close(others.writer, 999);
  EXPECT_TRUE(test::wait_until([&] { return others.is_closed(); }));
  sockets.clear();
}

TEST(Closer, WhatWaitedForOtherUsersIsClosedWhenTheyAreDone) {
  constexpr size_t kUsers = Closer::kThreadsMax / Closer::kThreadsPerAccount;
  std::vector<Lingering> others(kUsers * Closer::kThreadsPerAccount), own(2);
  std::vector<Pipe> pipes(Closer::kThreadsPerAccount);
  Closer closer;
  for (size_t i = 0; i < others.size(); ++i) closer.close(others[i].writer(), 1000 + i % kUsers);
  for (const Lingering& socket : own) closer.close(socket.writer(), 999);
  for (const Pipe& pipe : pipes) closer.close(pipe.writer, 999);
  others.clear();  // its own two do not end, so nothing of its own makes it look again
  for (const Pipe& pipe : pipes) ASSERT_TRUE(test::wait_until([&] { return pipe.is_closed(); }));
}

// Whether this process may have so many descriptors open. A first process may have a thousand unless it asks for more.
bool may_open(rlim_t descriptors) {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= descriptors) return true;
  limit.rlim_cur = std::min(descriptors, limit.rlim_max);
  return limit.rlim_cur == descriptors && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST(Closer, WhoLeavesTooMuchOpenIsBehind) {
  constexpr rlim_t kDescriptors = 2 * (Closer::kWaitingMax + 1) + 4 * Closer::kThreadsPerAccount + 64;
  if (!may_open(kDescriptors)) GTEST_SKIP() << "found a limit below " << kDescriptors << " open files (ulimit -Hn)";
  std::vector<Lingering> sockets(Closer::kThreadsPerAccount);
  std::vector<Pipe> pipes(Closer::kWaitingMax + 1);
  Closer closer;
  for (const Lingering& socket : sockets) closer.close(socket.writer(), 1000);
  for (size_t i = 0; i < Closer::kWaitingMax; ++i) closer.close(pipes[i].writer, 1000);
  EXPECT_FALSE(closer.is_behind(1000));
  closer.close(pipes.back().writer, 1000);
  EXPECT_TRUE(closer.is_behind(1000));
  EXPECT_FALSE(closer.is_behind(1001));
  sockets.clear();
  EXPECT_TRUE(test::wait_until([&] { return pipes.back().is_closed(); }));
  EXPECT_FALSE(closer.is_behind(1000));
}

// In one packet, which nobody reads. The other end has them alone afterwards.
void send_unread(int far, int descriptor, int second = -1) {
  char byte = 0;
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  wire::DescriptorRoom room;
  wire::attach_descriptors(message, room, descriptor, second);
  if (::sendmsg(far, &message, 0) != 1) throw std::runtime_error("a descriptor is not sent");
  ::close(descriptor);
  if (second >= 0) ::close(second);
}

// A connection in which descriptors lie unread, and nobody else has them.
FileDescriptor connection_with(const std::vector<int>& descriptors) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no connection");
  const FileDescriptor far(ends[0]);
  FileDescriptor near(ends[1]);
  for (const int fd : descriptors) {
    if (::send(far.get(), "", 0, 0) != 0) throw std::runtime_error("an empty packet is not sent");
    send_unread(far.get(), fd);
  }
  ::shutdown(near.get(), SHUT_RDWR);
  return near;
}

TEST(Closer, WhatLiesUnreadInConnectionsKeepsNothingWaiting) {
  constexpr size_t kConnections = 2 * Closer::kThreadsPerAccount;
  std::vector<Lingering> sockets(3 * kConnections);
  Pipe deep, own;
  Closer closer;
  for (size_t i = 0; i < kConnections; ++i) {
    std::vector<int> unread = {sockets[3 * i].writer(), sockets[3 * i + 1].writer()};
    // In the queue of a socket that lies in the queue.
    std::vector<int> inner = {sockets[3 * i + 2].writer()};
    if (i == 0) inner.push_back(deep.writer);
    unread.push_back(connection_with(inner).release());
    closer.close(connection_with(unread).release(), 1000, Closer::Kind::kConnection);
  }
  EXPECT_TRUE(test::wait_until([&] { return deep.is_closed(); }));
  closer.close(own.writer, 1000);
  EXPECT_TRUE(test::wait_until([&] { return own.is_closed(); })) << "its threads wait for sockets that linger";
  EXPECT_TRUE(test::wait_until([&] { return closer.connections_waiting(1000) == 0; }));
}

// A listening socket, and a connection to it that nobody took, with descriptors unread in it.
FileDescriptor listener_with(int descriptor) {
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const FileDescriptor far(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof(sa_family_t);  // a name of the kernel's choice
  if (::bind(listener.get(), any, bytes) != 0 || ::listen(listener.get(), 8) != 0)
    throw std::runtime_error("no socket");
  bytes = sizeof(address);
  if (::getsockname(listener.get(), any, &bytes) != 0 || ::connect(far.get(), any, bytes) != 0)
    throw std::runtime_error("cannot connect");
  send_unread(far.get(), descriptor);
  return listener;
}

TEST(Closer, WhatLiesUnreadInConnectionsThatNobodyTookKeepsNothingWaiting) {
  constexpr size_t kConnections = 2 * Closer::kThreadsPerAccount;
  std::vector<Lingering> sockets(kConnections);
  Pipe last;
  Closer closer;
  for (const Lingering& socket : sockets)
    closer.close(connection_with({listener_with(socket.writer()).release()}).release(), 1000,
                 Closer::Kind::kConnection);
  closer.close(connection_with({last.writer}).release(), 1000, Closer::Kind::kConnection);
  EXPECT_TRUE(test::wait_until([&] { return last.is_closed(); })) << "its threads wait for sockets that linger";
}

// As when what lies unread in them is of a file system that does not answer.
TEST(Closer, ConnectionsThatLastKeepNoOtherOfTheirUsersDescriptorsWaiting) {
  std::vector<Lingering> sockets(2 * Closer::kThreadsPerAccount);
  Pipe connection, file;
  Closer closer;
  for (const Lingering& socket : sockets) closer.close(socket.writer(), 1000, Closer::Kind::kConnection);
  closer.close(connection.writer, 1000, Closer::Kind::kConnection);
  closer.close(file.writer, 1000);
  EXPECT_TRUE(test::wait_until([&] { return file.is_closed(); })) << "it waits for connections";
  EXPECT_FALSE(connection.is_closed());
  sockets.clear();
  EXPECT_TRUE(test::wait_until([&] { return connection.is_closed(); }));
}

TEST(Closer, NoMemoryForWhatLiesUnreadIsNoEnd) {
  is_of_a_closer = false;
  Pipe first, second, after;
  Closer closer;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor far(ends[0]);
  send_unread(far.get(), first.writer, second.writer);
  fails_of = 2 * sizeof(FileDescriptor);
  closer.close(ends[1], 1000, Closer::Kind::kConnection);
  EXPECT_TRUE(test::wait_until([&] { return first.is_closed() && second.is_closed(); }));
  EXPECT_EQ(fails_of, 0u) << "it needed no memory";
  closer.close(after.writer, 1000);
  EXPECT_TRUE(test::wait_until([&] { return after.is_closed(); }));
}

TEST(Closer, ConnectionsThatWaitAreCounted) {
  std::vector<Lingering> sockets(Closer::kConnectionsPerAccount), files(Closer::kThreadsPerAccount);
  Pipe connection, file;
  Closer closer;
  for (const Lingering& socket : sockets) closer.close(socket.writer(), 1000, Closer::Kind::kConnection);
  for (const Lingering& socket : files) closer.close(socket.writer(), 1000);
  EXPECT_EQ(closer.connections_waiting(1000), 0u);
  closer.close(connection.writer, 1000, Closer::Kind::kConnection);
  closer.close(file.writer, 1000);
  EXPECT_EQ(closer.connections_waiting(1000), 1u);
  EXPECT_EQ(closer.connections_waiting(1001), 0u);
  sockets.clear();
  files.clear();
  EXPECT_TRUE(test::wait_until([&] { return connection.is_closed() && file.is_closed(); }));
  EXPECT_EQ(closer.connections_waiting(1000), 0u);
}

}  // namespace
}  // namespace maru::daemon
