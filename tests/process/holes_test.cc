// A pool has holes, which become memory when anything looks there. Mapping a pool, and dumping the memory of a process that has
// done so, is not to fill them.
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace maru::test {
namespace {

// Of the mappings of a process whose file has this in its name: which a core dump leaves out, as the kernel has it.
std::vector<bool> left_out(pid_t pid, const std::string& name) {
  std::vector<bool> all;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/smaps");
  bool is_wanted = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(':')) is_wanted = line.find(name) != std::string::npos;
    if (is_wanted && line.starts_with("VmFlags:")) all.push_back((line + " ").find(" dd ") != std::string::npos);
  }
  return all;
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

void expect_left_out(bool expected) {
  MarudProcess marud({PoolWish{}, PoolWish{.name = "in-file", .in_file = true}});
  const TestClient in_memory(marud.socket_path()), in_file(marud.socket_path(), "in-file");
  const std::string memory = "/memfd:marud:default", file = marud.pool_file("in-file");
  for (const pid_t pid : {::getpid(), marud.pid()})
    for (const std::string& name : {memory, file}) {
      const std::vector<bool> found = left_out(pid, name);
      EXPECT_FALSE(found.empty()) << name << " of process " << pid;
      EXPECT_EQ(std::count(found.begin(), found.end(), !expected), 0) << name << " of process " << pid;
    }
}

TEST(Holes, CoreDumpsLeavePoolsOut) { expect_left_out(true); }

TEST(Holes, CoreDumpsHoldPoolsWhenTheEnvironmentAsksForThem) {
  const Environment environment("MARU_DUMP_POOLS", "1");
  expect_left_out(false);
}

// What marud's pools in memory take.
uint64_t bytes_of_pools(const MarudProcess& marud) {
  uint64_t bytes = 0;
  std::vector<ino_t> seen;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(marud.pid()) + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("/memfd:marud:") != 0) continue;
    struct stat status = {};
    if (::stat(entry.path().c_str(), &status) != 0 || std::count(seen.begin(), seen.end(), status.st_ino)) continue;
    seen.push_back(status.st_ino);
    bytes += uint64_t(status.st_blocks) * 512;
  }
  return bytes;
}

constexpr uint64_t kPoolBytes = 512u << 20;
constexpr int kCannotLock = 77;

// Not through the C library, where a sanitizer does nothing instead.
int lock_what_is_mapped_from_now_on() { return int(::syscall(SYS_mlockall, MCL_FUTURE)); }

int status_of_child(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run());
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Holes, AClientThatLocksWhatItMapsFillsNone) {
  if (kHasAddressSanitizer || kHasThreadSanitizer) GTEST_SKIP() << "a sanitizer maps more than can be locked";
  MarudProcess marud({PoolWish{.bytes = kPoolBytes}});
  const std::string socket_path = marud.socket_path();
  ASSERT_EQ(TestClient(socket_path).store("k", "text"), 0);
  const uint64_t before = bytes_of_pools(marud);
  ASSERT_GT(before, 0u);
  const int status = status_of_child([&] {
    if (lock_what_is_mapped_from_now_on() != 0) return kCannotLock;
    int result = 0;
    const auto client = TestClient::try_attach(socket_path, "default", &result);
    if (result == -ENOLCK) return kCannotLock;
    if (!client) return 1;
    if (client->text("k") != "text") return 2;
    return client->store("another", "text") == 0 ? 0 : 3;
  });
  if (status == kCannotLock) GTEST_SKIP() << "this user may not lock so much memory";
  ASSERT_EQ(status, 0);
  // A store needs a page, and the kernel may give a huge one for each piece.
  EXPECT_LT(bytes_of_pools(marud), before + kPoolBytes / 8);
}

bool lose_the_right_to_lock() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  rlimit limit = {};
  if (::syscall(SYS_capset, &header, data) != 0 || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 64u << 20);
  return ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

TEST(Holes, AClientThatMayNotLockSoMuchIsToldSo) {
  if (kHasAddressSanitizer || kHasThreadSanitizer) GTEST_SKIP() << "a sanitizer maps more than can be locked";
  MarudProcess marud({PoolWish{.bytes = kPoolBytes}});
  const std::string socket_path = marud.socket_path();
  const int status = status_of_child([&] {
    if (!lose_the_right_to_lock() || lock_what_is_mapped_from_now_on() != 0) return kCannotLock;
    int result = 0;
    (void)TestClient::try_attach(socket_path, "default", &result);
    return -result;
  });
  if (status == kCannotLock) GTEST_SKIP() << "this user may lock nothing";
  EXPECT_EQ(status, ENOLCK);
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; })) << "the lane is kept";
}

}  // namespace
}  // namespace maru::test
