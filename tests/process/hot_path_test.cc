// No system call on the hot path: a worker does what engines do all day between two marks, and strace sees nothing between
// them, whether marud runs or stands still.
#include "libmaru/base/file_descriptor.h"
#include "tests/process/roles.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/syscall.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr size_t kKeys = 64;  // a chain
constexpr int kRounds = 200;
// The calls that mark begin and end; nothing else here makes them.
constexpr const char* kBeginMark = "getpgid(1234567";
constexpr const char* kEndMark = "getpgid(7654321";

class HotPath {
 public:
  explicit HotPath(TestClient& client) : client_(client) {
    for (size_t i = 0; i < kKeys; ++i) names_[i] = "hot " + std::to_string(i);
    for (size_t i = 0; i < kKeys; ++i) keys_[i] = key_of(names_[i]);
    for (size_t i = 0; i < kKeys; ++i) must(client.store(names_[i], names_[i], i ? names_[i - 1] : ""), "prepare");
  }

  // Everything that must not enter the kernel. Nothing here allocates or prints.
  void round() {
    for (size_t i = 0; i < kKeys; i += 8) must(maru_exists(client_, &keys_[i]) == 1 ? 0 : -1, "exists");
    must(maru_exists_batch(client_, keys_, kKeys, present_) == int(kKeys) ? 0 : -1, "exists_batch");
    for (size_t i = 0; i < kKeys; i += 8) {
      maru_view view;
      must(maru_retrieve(client_, &keys_[i], &view), "retrieve");
      must(maru_release(client_, &view), "release");
      must(maru_pin(client_, &keys_[i], &view), "pin");
      must(maru_unpin(client_, &view), "unpin");
    }
    must(maru_retrieve_batch(client_, keys_, kKeys, views_) == int(kKeys) ? 0 : -1, "retrieve_batch");
    must(maru_release_batch(client_, views_, kKeys), "release_batch");
    must(maru_pin_batch(client_, keys_, kKeys, views_) == int(kKeys) ? 0 : -1, "pin_batch");
    must(maru_release_batch(client_, views_, kKeys), "release_batch");
    const maru_key fresh_keys[] = {key_of("fresh 1"), key_of("fresh 2"), key_of("fresh 3")};
    const void* const texts[] = {"a", "b", "c"};
    const uint64_t sizes[] = {1, 1, 1};
    maru_buffer buffers[3];
    int32_t results[3];
    must(maru_store_copy_batch(client_, fresh_keys, texts, sizes, 3, nullptr, nullptr, nullptr) - 3,
         "store_copy_batch");
    must(maru_delete_batch(client_, fresh_keys, 3, nullptr) - 3, "delete_batch");
    must(maru_alloc_batch(client_, 3000, 3, buffers), "alloc_batch");
    must(maru_store_batch(client_, fresh_keys, buffers, 3, nullptr, nullptr, results) - 3, "store_batch");
    must(maru_delete_batch(client_, fresh_keys, 3, nullptr) - 3, "delete_batch");
    maru_match match;
    must(maru_match_prefix(client_, keys_, kKeys, &match), "match_prefix");
    must(match.blocks == kKeys ? 0 : -1, "the chain is there");
    must(maru_resolve(client_, &match, keys_, kKeys, views_), "resolve");
    must(maru_release_match(client_, &match), "release_match");
    const maru_key fresh = key_of("stored and deleted");
    must(maru_store_copy(client_, &fresh, "text", 4, nullptr, nullptr), "store_copy");
    must(maru_delete(client_, &fresh), "delete");
    maru_buffer buffer;
    must(maru_alloc(client_, 3000, &buffer), "alloc");
    must(maru_store(client_, &fresh, &buffer, nullptr, nullptr), "store");
    must(maru_delete(client_, &fresh), "delete");
    must(maru_alloc(client_, 3000, &buffer), "alloc");
    must(maru_abort(client_, &buffer), "abort");
  }

 private:
  static void must(int result, const char* doing) {
    if (result == 0) return;
    std::fprintf(stderr, "hot path: %s: %d\n", doing, result);
    std::exit(3);
  }

  TestClient& client_;
  std::string names_[kKeys];
  maru_key keys_[kKeys];
  maru_view views_[kKeys];
  uint8_t present_[kKeys];
};

class HotPathTest : public ::testing::TestWithParam<bool> {};

bool can_trace(const TemporaryDirectory& directory) {
  ChildProcess probe({"strace", "-f", "-o", directory.file("probe"), "true"}, "/dev/null");
  const auto ended = probe.wait();
  return ended && !ended->by_signal && ended->code == 0;
}

TEST_P(HotPathTest, MakesNoSystemCall) {
  if (kHasAddressSanitizer || kHasThreadSanitizer) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  MarudProcess marud;
  if (!can_trace(marud.directory())) GTEST_SKIP() << "strace is missing or may not trace here";
  const std::string trace = marud.directory().file("trace");
  int ends[2], done[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(done, O_CLOEXEC), 0);
  FileDescriptor ready(ends[0]), ready_writer(ends[1]), go(done[0]), go_writer(done[1]);
  ChildProcess worker({"strace", "-f", "-o", trace, own_program(), "--role", "hot-path", marud.socket_path(),
                       std::to_string(ready_writer.get()), std::to_string(go.get())},
                      "", {ready_writer.get(), go.get()});
  ready_writer.reset();  // so that the worker's end is the end of the pipe
  go.reset();
  char byte = 0;
  ASSERT_EQ(::read(ready.get(), &byte, 1), 1) << "the worker did not get ready";
  const bool is_stopped = GetParam();
  if (is_stopped) marud.suspend();
  ASSERT_EQ(::write(go_writer.get(), "g", 1), 1);
  // It says so again when the hot path is behind it, so that marud can go on before the worker detaches.
  ASSERT_EQ(::read(ready.get(), &byte, 1), 1) << "the worker did not finish";
  if (is_stopped) marud.resume();
  const auto ended = worker.wait();
  ASSERT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "hangs");

  std::ifstream file(trace);
  bool is_between = false, has_begun = false, has_ended = false;
  // Of the thread that works: the library's own may still be on its way to where it waits. A mark that another thread's line
  // cut in two ends in a line of its own.
  std::string calls, worker_thread;
  for (std::string line; std::getline(file, line);) {
    const std::string thread = line.substr(0, line.find(' '));
    if (line.find(kEndMark) != std::string::npos) {
      is_between = false;
      has_ended = true;
    }
    if (is_between && thread == worker_thread && line.find("<... getpgid resumed>") == std::string::npos)
      calls += line + "\n";
    if (line.find(kBeginMark) != std::string::npos) {
      is_between = has_begun = true;
      worker_thread = thread;
    }
  }
  EXPECT_TRUE(has_begun && has_ended) << "the marks are not in the trace";
  EXPECT_EQ(calls, "") << "system calls on the hot path";
}

INSTANTIATE_TEST_SUITE_P(While, HotPathTest, ::testing::Values(false, true),
                         [](const auto& which) { return which.param ? "MarudStandsStill" : "MarudRuns"; });

}  // namespace

// --role hot-path SOCKET READY_FD GO_FD
int run_hot_path(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  const int ready = std::atoi(arguments[1]), go = std::atoi(arguments[2]);
  TestClient client(arguments[0]);
  HotPath path(client);
  // The first pages of a region are mapped to be written, and the heap grows to what it needs: once.
  for (int i = 0; i < kRounds; ++i) path.round();
  char byte = 'r';
  if (::write(ready, &byte, 1) != 1 || ::read(go, &byte, 1) != 1) return 2;
  ::syscall(SYS_getpgid, 1234567);
  for (int i = 0; i < kRounds; ++i) path.round();
  ::syscall(SYS_getpgid, 7654321);
  return ::write(ready, &byte, 1) == 1 ? 0 : 2;
}

}  // namespace maru::test
