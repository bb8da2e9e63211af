// Memory that goes bad under a client: the library's own copies turn it into an error, views read zeros and say so, marud hears
// of it, and a SIGBUS that is not the library's goes where it went before.
//
// The memory of a file that was truncated is really gone, and copies meet that. A memory error proper (MADV_HWPOISON) can be
// made by kernels with CONFIG_MEMORY_FAILURE alone: the tests named Real do that or skip, and `scripts/vm-test kernel` runs
// them where they do not. The others send the signal that the kernel would (tests/support/memory_error.h).
#include "tests/support/memory_error.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/flush.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace maru::test {
namespace {

using nlohmann::json;

volatile sig_atomic_t passed_on = 0;

class MemoryError : public ::testing::Test {
 protected:
  // Before the library's handler, which is installed once and stays; for all suites of this fixture.
  static void SetUpTestSuite() {
    static bool is_done = false;
    if (std::exchange(is_done, true)) return;
    struct sigaction action = {};
    // A real one that is passed on would come again and again.
    action.sa_handler = [](int number) {
      passed_on = passed_on + 1;
      if (passed_on > 100) ::signal(number, SIG_DFL);
    };
    ASSERT_EQ(::sigaction(SIGBUS, &action, nullptr), 0);
    ASSERT_EQ(maru_handle_memory_errors(MARU_MEMORY_ERRORS_VIEWS), 0);
  }
  void SetUp() override {
    if (kHasThreadSanitizer)
      GTEST_SKIP() << "the thread sanitizer runs handlers later, and loses track of one that is left by a jump";
    passed_on = 0;
  }
  static PoolWish checked_file() {
    PoolWish pool;
    pool.in_file = true;
    pool.checksums = true;
    return pool;
  }
  // The pages of the file are gone, the control region is not.
  static void lose_pages(const MarudProcess& marud, const TestClient& client) {
    ASSERT_EQ(::truncate(marud.pool_file("default").c_str(), off_t(client.geometry().control_bytes)), 0);
  }
};

TEST_F(MemoryError, CopyAndChecksumsSayThatMemoryIsGone) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  lose_pages(marud, client);
  EXPECT_EQ(client.store("new", std::string(3000, 'x')), -EHWPOISON);
  EXPECT_EQ(client.store("new", std::string(9000, 'x')), -EHWPOISON) << "a run";
  EXPECT_EQ(client.exists("new"), 0);
  EXPECT_TRUE(marud.has_logged("is said to have bad memory, but marud cannot look")) << marud.log();
}

// An emulated processor has nothing to write back, and passes over the instruction without looking at its address.
bool meets_what_it_flushes(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  EXPECT_NE(page, MAP_FAILED);
  EXPECT_EQ(::ftruncate(file.get(), 0), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGBUS, [](int) { ::_exit(1); });
    shm::flush_lines(page, 64);
    ::_exit(0);
  }
  ::munmap(page, 4096);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status != 0;
}

// What lies in such memory is flushed before it is visible, also where it has no checksum.
TEST_F(MemoryError, StoringIntoDurableMemoryThatIsGoneSaysSo) {
  TemporaryDirectory directory;
  if (!meets_what_it_flushes(directory.file("gone")))
    GTEST_SKIP() << "this processor's " << shm::flush_instruction() << " touches no memory that is gone";
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  {
    std::fstream file(marud.pool_file("default"), std::ios::in | std::ios::out | std::ios::binary);
    format::Header header;
    ASSERT_TRUE(file.read(reinterpret_cast<char*>(&header), sizeof(header)));
    header.incompat_flags |= format::kIncompatDurable;  // for the client that comes; marud has its copy
    header.checksum = shm::header_checksum(header);
    ASSERT_TRUE(file.seekp(0).write(reinterpret_cast<const char*>(&header), sizeof(header)).flush());
  }
  TestClient client(marud.socket_path());
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client, 100, &buffer), 0);
  std::memset(buffer.data, 'x', buffer.bytes);
  lose_pages(marud, client);
  const maru_key key = key_of("k");
  EXPECT_EQ(maru_store(client, &key, &buffer, nullptr, nullptr), -EHWPOISON);
  EXPECT_EQ(passed_on, 0);
  EXPECT_EQ(client.exists("k"), 0);
}

TEST_F(MemoryError, RetrievingWithChecksumsSaysSo) {
  MarudProcess marud({checked_file()});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  EXPECT_EQ(client.text("k"), "text");
  lose_pages(marud, client);
  maru_view view;
  EXPECT_EQ(client.retrieve("k", &view), -EHWPOISON);
  EXPECT_EQ(client.statistics().pins, 0u) << "nothing stays pinned";
  const maru_key key = key_of("k");
  EXPECT_EQ(maru_retrieve_batch(client, &key, 1, &view), 0) << "absent in a batch";
  EXPECT_EQ(view.bytes, uint64_t(EHWPOISON)) << "and why is said";
}

TEST_F(MemoryError, ViewReadsZerosAndSaysSo) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", std::string(5000, 'x')), 0);
  ASSERT_EQ(client.store("other", "text"), 0);
  maru_view view, other;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  ASSERT_EQ(client.retrieve("other", &other), 0);
  EXPECT_EQ(maru_view_error(client, &view), 0);
  const auto* bytes = static_cast<const volatile char*>(view.data);
  ASSERT_TRUE(raise_memory_error(static_cast<const char*>(view.data) + 4100, BUS_MCEERR_AR));
  EXPECT_EQ(bytes[0], 'x');
  EXPECT_EQ(bytes[4096], 0);
  EXPECT_EQ(maru_view_error(client, &view), -EHWPOISON);
  EXPECT_EQ(maru_view_error(client, &other), 0);
  EXPECT_EQ(passed_on, 0);
  // marud looks for itself: this memory is good, so it stays until an administrator says otherwise.
  EXPECT_TRUE(marud.has_logged("but marud reads all of it")) << marud.log();
  json list = marud.ask({{"command", "memory.list"}}).at("memory");
  ASSERT_EQ(list.size(), 1u) << list.dump();
  EXPECT_EQ(list[0].at("state"), "reported");
  const uint64_t page = list[0].at("page");
  EXPECT_EQ(marud.ask({{"command", "memory.poison"}, {"page", page}}).value("result", ""), "poisoned");
  EXPECT_EQ(client.exists("k"), 0);
  EXPECT_EQ(client.text("other"), "text");
  client.release(view);
  client.release(other);
  EXPECT_EQ(client.store("k", "again"), 0);
  EXPECT_TRUE(wait_until([&] { return marud.ask({{"command", "check"}, {"quiesce", true}}).at("found") == 0; }));
  marud.kill();
  marud.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("condition") == "serving"; }));
  EXPECT_EQ(marud.pool_status().at("page_states").at("poisoned"), 2) << "the bad page and the head of its run";
  EXPECT_EQ(client.text("k"), "again");
}

TEST_F(MemoryError, AMarudThatWasAwayIsToldWhenItIsBack) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  marud.kill();
  ASSERT_TRUE(raise_memory_error(view.data, BUS_MCEERR_AR));
  EXPECT_EQ(maru_view_error(client, &view), -EHWPOISON);
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == -ECONNREFUSED; }));  // when it has noticed
  marud.start();
  EXPECT_TRUE(marud.has_logged("is said to have bad memory, but marud reads all of it")) << marud.log();
  client.release(view);
}

// Bytes that marud has not received yet of what this process sent it.
int unreceived(const MarudProcess& marud) {
  int all = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_un peer = {};
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sun_family != AF_UNIX) continue;
    int bytes = 0;
    if (peer.sun_path == marud.socket_path() && ::ioctl(fd, SIOCOUTQ, &bytes) == 0) all += bytes;
  }
  return all;
}

// A report that marud does not answer is nothing that others wait for.
TEST_F(MemoryError, WhileMarudHangsCallsDoNotWaitForTheReport) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  marud.suspend();
  ASSERT_TRUE(raise_memory_error(view.data, BUS_MCEERR_AR));
  ASSERT_TRUE(wait_until([&] { return unreceived(marud) > 0; })) << "marud is told";
  const int told = unreceived(marud);
  auto call = std::async(std::launch::async, [&] {
    const maru_key key = key_of("absent");
    return maru_delete_tree(client, &key, nullptr);
  });
  EXPECT_TRUE(wait_until([&] { return unreceived(marud) > told; }, far_too_long() / 2)) << "it has not asked marud yet";
  marud.resume();
  EXPECT_EQ(call.get(), -ENOENT);
  EXPECT_TRUE(marud.has_logged("is said to have bad memory, but marud reads all of it")) << marud.log();
  client.release(view);
}

// What the machine takes away is 2 MiB on devices and huge pages, and holds many pages of the pool.
class LargeMemoryError : public MemoryError, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr unsigned kBits = 21;
  static PoolWish pool() {
    PoolWish wish;
    wish.bytes = 64u << 20;
    wish.page_bytes = 64u << 10;
    wish.region_bytes = 8u << 20;
    wish.checksums = GetParam();
    return wish;
  }
  static bool are_neighbours(const void* a, const void* b) {
    return reinterpret_cast<uintptr_t>(a) >> kBits == reinterpret_cast<uintptr_t>(b) >> kBits;
  }
};
INSTANTIATE_TEST_SUITE_P(Checksums, LargeMemoryError, ::testing::Bool());

TEST_P(LargeMemoryError, BlocksNextToItAreRefusedAndStay) {
  MarudProcess marud({pool()});
  TestClient client(marud.socket_path()), other(marud.socket_path());
  std::vector<std::string> neighbours;
  maru_view bad, view;
  ASSERT_EQ(client.store("bad", "text"), 0);
  ASSERT_EQ(client.retrieve("bad", &bad), 0);
  for (int i = 0; i < 40; ++i) {
    const std::string key = "block " + std::to_string(i);
    ASSERT_EQ(client.store(key, key, i == 0 ? "" : "block " + std::to_string(i - 1)), 0);
    ASSERT_EQ(client.retrieve(key, &view), 0);
    if (are_neighbours(view.data, bad.data)) neighbours.push_back(key);
    client.release(view);
  }
  ASSERT_GE(neighbours.size(), 2u);
  ASSERT_LT(neighbours.size(), 40u);
  const std::string first = neighbours[0], second = neighbours[1];
  maru_view held;
  ASSERT_EQ(client.retrieve(first, &held), 0);
  ASSERT_TRUE(raise_memory_error(bad.data, BUS_MCEERR_AR, kBits));
  EXPECT_EQ(maru_view_error(client, &held), -EHWPOISON) << "a view from before reads zeros as well";
  client.release(held);
  for (const std::string& key : neighbours) EXPECT_EQ(client.retrieve(key, &view), -EHWPOISON) << key;
  const maru_key keys[] = {key_of(second), key_of("block 39")};
  maru_view views[2];
  EXPECT_EQ(maru_retrieve_batch(client, keys, 2, views), are_neighbours(bad.data, views[1].data) ? 0 : 1);
  maru_release_batch(client, views, 2);
  maru_match match;
  const maru_key chain = key_of("block 0");
  ASSERT_EQ(maru_match_prefix(client, &chain, 1, &match), 0);
  EXPECT_EQ(maru_resolve(client, &match, &chain, 1, &view), first == "block 0" ? -EHWPOISON : 0);
  maru_release_match(client, &match);
  for (int i = 0; i < 40; ++i) {
    const std::string key = "block " + std::to_string(i);
    EXPECT_EQ(other.text(key), key) << "nothing is wrong with it for others, and nobody deleted it";
  }
  EXPECT_EQ(client.statistics().checksum_errors, 0u);
  client.release(bad);
}

TEST_P(LargeMemoryError, WhatWasWrittenNextToItIsNotStored) {
  MarudProcess marud({pool()});
  TestClient client(marud.socket_path()), other(marud.socket_path());
  maru_buffer buffers[2];
  ASSERT_EQ(maru_alloc_batch(client, 100, 2, buffers), 0);
  std::vector<maru_buffer> more;
  while (!are_neighbours(buffers[0].data, buffers[1].data)) {  // the pages of one huge page follow one another
    more.push_back(buffers[0]);
    buffers[0] = buffers[1];
    ASSERT_EQ(maru_alloc(client, 100, &buffers[1]), 0);
  }
  ASSERT_TRUE(raise_memory_error(buffers[0].data, BUS_MCEERR_AR, kBits));
  std::memset(buffers[1].data, 'x', 100);
  const maru_key key = key_of("k");
  EXPECT_EQ(maru_store(client, &key, &buffers[1], nullptr, nullptr), -EHWPOISON);
  EXPECT_EQ(maru_abort(client, &buffers[1]), -EHWPOISON);
  EXPECT_EQ(other.exists("k"), 0);
  for (int i = 0; i < 200; ++i) {  // also of what the client has in its caches
    const std::string name = "new " + std::to_string(i), text(i % 2 ? 100 : 200'000, 'y');
    ASSERT_EQ(client.store(name, text), 0) << i;
    ASSERT_EQ(other.text(name), text) << i;
  }
  for (const maru_buffer& buffer : more) maru_abort(client, &buffer);
}

TEST_F(MemoryError, StoreIntoAPageThatWasTakenAwaySaysSo) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client, 100, &buffer), 0);
  const uint64_t page = (buffer.block >> 32) - 1;
  EXPECT_EQ(marud.ask({{"command", "memory.poison"}, {"page", page}}).value("was", ""), "reserved");
  const maru_key key = key_of("k");
  EXPECT_EQ(maru_store(client, &key, &buffer, nullptr, nullptr), -EHWPOISON);
  EXPECT_EQ(client.exists("k"), 0);
  EXPECT_EQ(client.store("k", "text"), 0);
}

TEST_F(MemoryError, WhatIsNotOursIsPassedOn) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  int elsewhere = 0;
  ASSERT_TRUE(raise_memory_error(&elsewhere, BUS_MCEERR_AR));
  EXPECT_EQ(passed_on, 1);
  EXPECT_EQ(maru_handle_memory_errors(1u << 7), -EINVAL);
  EXPECT_EQ(maru_view_error(client, nullptr), -EINVAL);
}

// The parent's views are no memory of the child, which may have its own there by now. 0, or bits of what went wrong.
int meet_errors_in_a_child(maru_client* inherited, const maru_attach_options& options, const maru_view& parents) {
  auto* page = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(parents.data) / 4096 * 4096);
  if (::mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page) return 1;
  page[10] = 'c';
  passed_on = 0;
  if (!raise_memory_error(page + 10, BUS_MCEERR_AR)) return 2;
  int failed = page[10] == 'c' ? 0 : 4;  // replaced by zeros
  if (passed_on != 1) failed |= 8;
  maru_client* client = nullptr;
  if (maru_attach(&options, &client) != 0) return failed | 16;
  maru_detach(inherited);
  const maru_key key = key_of("k");
  maru_view view;
  if (maru_retrieve(client, &key, &view) != 0) return failed | 32;
  if (!raise_memory_error(view.data, BUS_MCEERR_AR)) return failed | 2;
  if (*static_cast<const volatile char*>(view.data) != 0 || maru_view_error(client, &view) != -EHWPOISON) failed |= 64;
  if (passed_on != 1) failed |= 128;
  maru_detach(client);
  return failed;
}

TEST_F(MemoryError, ChildsOfForkHaveOnlyTheirOwn) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  const std::string pool = "default";
  const maru_attach_options options = attach_options(marud.socket_path(), pool);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(meet_errors_in_a_child(client, options, view));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of meet_errors_in_a_child";
  ASSERT_TRUE(raise_memory_error(view.data, BUS_MCEERR_AR));
  EXPECT_EQ(maru_view_error(client, &view), -EHWPOISON) << "the parent's are as before";
  EXPECT_EQ(passed_on, 0);
  client.release(view);
}

// -- the real thing ---------------------------------------------------------------------------------------------------

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif

// Makes the memory around this address bad, for every process that has it. What hinders it; empty: done.
std::string make_bad(const void* address) {
  auto* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) / 4096 * 4096);
  if (::madvise(page, 4096, MADV_HWPOISON) == 0) return {};
  return std::string("this kernel makes no memory errors (") + std::strerror(errno) +
         "; it takes CONFIG_MEMORY_FAILURE and CAP_SYS_ADMIN): scripts/vm-test kernel runs this";
}

TEST_F(MemoryError, RealErrorUnderAViewEndsInAMissAndMarudLives) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  ASSERT_EQ(client.store("other", "other text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  ASSERT_EQ(*static_cast<const volatile char*>(view.data), 't');
  if (const std::string hindered = make_bad(view.data); !hindered.empty()) GTEST_SKIP() << hindered;
  EXPECT_EQ(*static_cast<const volatile char*>(view.data), 0) << "zeros, instead of the end of this process";
  EXPECT_EQ(maru_view_error(client, &view), -EHWPOISON);
  EXPECT_TRUE(marud.has_logged("has bad memory at byte")) << marud.log();
  EXPECT_TRUE(wait_until([&] { return client.exists("k") == 0; }));
  EXPECT_EQ(marud.pool_status().at("page_states").at("poisoned"), 1);
  EXPECT_EQ(client.text("other"), "other text");
  EXPECT_EQ(client.release(view), 0);
  EXPECT_EQ(client.store("k", "again"), 0);
  EXPECT_EQ(client.text("k"), "again");
  marud.kill();
  marud.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_EQ(marud.pool_status().at("page_states").at("poisoned"), 1);
}

TEST_F(MemoryError, RealErrorUnderACopyIsAnError) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client, 100, &buffer), 0);
  std::memset(buffer.data, 'x', buffer.bytes);
  if (const std::string hindered = make_bad(buffer.data); !hindered.empty()) GTEST_SKIP() << hindered;
  ASSERT_EQ(maru_abort(client, &buffer), 0);  // nobody knows yet: the next store gets this page
  EXPECT_EQ(client.store("k", "text"), -EHWPOISON);
  EXPECT_TRUE(marud.has_logged("has bad memory at byte")) << marud.log();
  EXPECT_EQ(client.store("k", "text"), 0);
  EXPECT_EQ(client.text("k"), "text");
}

TEST_F(MemoryError, RealErrorInTheControlRegionFencesThePool) {
  PoolWish second;
  second.name = "second";
  MarudProcess marud({PoolWish{}, second});
  const ControlMap map(marud.socket_path());
  auto* line = &map.region().block(0);
  if (const std::string hindered = make_bad(line); !hindered.empty()) GTEST_SKIP() << hindered;
  EXPECT_TRUE(marud.has_logged("in the part \"blocks\" of the control region")) << marud.log();
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("condition") == "fenced"; }));
  EXPECT_EQ(marud.pool_status("second").at("condition"), "serving");
}

}  // namespace
}  // namespace maru::test
