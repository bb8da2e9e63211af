#include "daemon/base/log_queue.h"

#include "libmaru/base/file_descriptor.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarTooLong(120'000);
constexpr int kPipeBytes = 4096;

std::string told(uint64_t lines) { return "dropped " + std::to_string(lines) + "\n"; }

// A pipe of 4 KiB, whose reader reads when the test says so.
struct SmallPipe {
  SmallPipe() {
    std::array<int, 2> ends = {};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    if (::fcntl(writer.get(), F_SETPIPE_SZ, kPipeBytes) != kPipeBytes) throw std::runtime_error("no small pipe");
  }
  // Until this line has come.
  std::string read_to(const std::string& last) const {
    std::string text;
    char buffer[65536];
    while (!text.ends_with(last)) {
      const ssize_t got = ::read(reader.get(), buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, size_t(got));
    }
    return text;
  }
  FileDescriptor reader, writer;
};

std::string line(uint64_t number) {
  std::string text = std::to_string(number);
  return std::string(63 - text.size(), '.') + text + "\n";
}

TEST(LogQueue, WritesLinesInTheirOrder) {
  const SmallPipe pipe;
  LogQueue queue(pipe.writer.get(), told);
  std::string expected;
  for (uint64_t i = 0; i < 3000; ++i) queue.put(line(i)), expected += line(i);
  EXPECT_EQ(pipe.read_to(line(2999)), expected);
  EXPECT_TRUE(queue.flush(kFarTooLong));
  EXPECT_EQ(queue.dropped_lines(), 0u);
}

// Each put() returns without a reader. The reader then gets the lines that had room, and the number of the others.
TEST(LogQueue, DropsAndCountsLinesForAPipeWithoutAReader) {
  const SmallPipe pipe;
  LogQueue queue(pipe.writer.get(), told);
  uint64_t put = 0;
  while (queue.dropped_lines() < 1000) queue.put(line(put++));
  EXPECT_FALSE(queue.flush(milliseconds(1)));
  const std::string word = told(queue.dropped_lines());
  const std::string text = pipe.read_to(word);
  std::string expected;
  for (uint64_t i = 0; i < put - queue.dropped_lines(); ++i) expected += line(i);
  EXPECT_EQ(text, expected + word);
  EXPECT_GE(expected.size(), LogQueue::kBytes - line(0).size());

  queue.put(line(put));
  EXPECT_EQ(pipe.read_to(line(put)), line(put)) << "it flows again";
}

TEST(LogQueue, AwaitsTheReaderOfASharedDescriptorThatIsNonBlocking) {
  const SmallPipe pipe;
  ASSERT_EQ(::fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK), 0);
  LogQueue queue(pipe.writer.get(), told);
  for (uint64_t i = 0; i < 1000; ++i) queue.put(line(i));
  EXPECT_EQ(pipe.read_to(line(999)).size(), 64'000u);
  EXPECT_EQ(queue.dropped_lines(), 0u);
}

TEST(LogQueue, KeepsWhatIsRefusedAndDoesNotHoldUpTheEndForIt) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.is_open());
  LogQueue queue(full.get(), told);
  while (queue.dropped_lines() == 0) queue.put(line(0));
  EXPECT_FALSE(queue.flush(kFarTooLong));
  queue.await_from_signal_handler(kFarTooLong);
}

TEST(LogQueue, WritesWhatWasRefusedWhenThereIsRoomAgain) {
  // The reader of a socket that takes no more has gone, and another one comes to the same descriptor.
  std::array<int, 2> gone = {}, fresh = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, gone.data()), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fresh.data()), 0);
  const FileDescriptor writer(gone[0]), next(fresh[0]), reader(fresh[1]);
  ::close(gone[1]);
  LogQueue queue(writer.get(), told);
  queue.put("refused\n");
  EXPECT_FALSE(queue.flush(kFarTooLong));
  ASSERT_EQ(::dup3(next.get(), writer.get(), O_CLOEXEC), writer.get());
  char text[16] = {};
  EXPECT_EQ(::read(reader.get(), text, sizeof(text)), 8);
  EXPECT_STREQ(text, "refused\n");
}

LogQueue* ended_queue = nullptr;

TEST(LogQueue, WritesWhatWasPutBeforeAProcessEndsItself) {
  const SmallPipe pipe;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ended_queue = new LogQueue(pipe.writer.get(), told);
    std::signal(SIGABRT, [](int) { ended_queue->await_from_signal_handler(kFarTooLong); });
    for (uint64_t i = 0; i < 1000; ++i) ended_queue->put(line(i));
    std::abort();
  }
  EXPECT_EQ(pipe.read_to(line(999)).size(), 64'000u);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace maru::daemon
