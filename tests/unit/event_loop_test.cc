// The event loop where the kernel does not take what it is asked for.
#include "daemon/server/event_loop.h"

#include "libmaru/base/file_descriptor.h"

#include <cerrno>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <poll.h>
#include <set>
#include <sys/eventfd.h>
#include <sys/socket.h>

namespace {
bool kernel_is_short = false;
}

// Instead of liburing's.
extern "C" int io_uring_submit(io_uring* ring) {
  using Submit = int (*)(io_uring*);
  static const auto real = reinterpret_cast<Submit>(::dlsym(RTLD_NEXT, "io_uring_submit"));
  return kernel_is_short ? -EAGAIN : real(ring);
}

namespace maru::daemon {
namespace {

TEST(EventLoop, WhatTheKernelDoesNotTakeNowWaits) {
  auto loop = EventLoop::create();
  if (!loop) GTEST_SKIP() << loop.error().text();
  const FileDescriptor ready(::eventfd(1, EFD_CLOEXEC));
  constexpr uint64_t kCount = 5000;  // several times what the queue holds
  kernel_is_short = true;
  for (uint64_t id = 1; id <= kCount; ++id) (*loop)->watch_process(id, ready.get());
  kernel_is_short = false;
  std::set<uint64_t> seen;
  for (int turns = 0; turns < 10'000 && seen.size() < kCount; ++turns) {
    const auto events = (*loop)->wait(1000);
    ASSERT_TRUE(events) << events.error().text();
    for (const Event& event : **events) EXPECT_TRUE(seen.insert(event.id).second);
  }
  EXPECT_EQ(seen.size(), kCount);
}

// Who will send no more is told from who has sent something: only the latter waits for a turn.
TEST(EventLoop, AConnectionThatIsHalfClosedIsOver) {
  auto loop = EventLoop::create();
  if (!loop) GTEST_SKIP() << loop.error().text();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor ours(ends[0]), theirs(ends[1]);
  const auto next = [&] {
    (*loop)->watch_packets(7, ours.get());
    const auto events = (*loop)->wait(60'000);
    return events && (*events)->size() == 1 ? (*events)->front().result : -1;
  };
  ASSERT_EQ(::send(theirs.get(), "x", 1, 0), 1);
  EXPECT_EQ(next() & (POLLIN | POLLRDHUP), POLLIN);
  char byte;
  ASSERT_EQ(::recv(ours.get(), &byte, 1, 0), 1);
  ASSERT_EQ(::shutdown(theirs.get(), SHUT_WR), 0);
  EXPECT_NE(next() & POLLRDHUP, 0);
}

// Whoever waits for the next turn waits behind all who came meanwhile.
TEST(EventLoop, ATurnTakesAllThatHasCompleted) {
  auto loop = EventLoop::create();
  if (!loop) GTEST_SKIP() << loop.error().text();
  const FileDescriptor ready(::eventfd(1, EFD_CLOEXEC));
  constexpr uint64_t kCount = 5000;
  for (uint64_t id = 1; id <= kCount; ++id) (*loop)->watch_process(id, ready.get());
  const auto events = (*loop)->wait(1000);
  ASSERT_TRUE(events) << events.error().text();
  EXPECT_GT((*events)->size(), kCount / 2);
}

}  // namespace
}  // namespace maru::daemon
